#include "mantissa/models/generate.h"

#include <algorithm>
#include <array>
#include <chrono>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "mantissa/core/evaluation_mode.h"

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_prompt(const CausalModel& model, const at::Tensor& prompt) {
  TORCH_CHECK_TYPE(prompt.scalar_type() == at::kLong || prompt.scalar_type() == at::kInt,
                   "generate: expects a prompt of int64 or int32; got ", prompt.scalar_type(),
                   "; convert with .to(at::kLong)");
  TORCH_CHECK_VALUE(prompt.dim() == 2, "generate: expects a prompt [batch, length]; got ", prompt.sizes(),
                    "; add a batch dimension with unsqueeze(0)");
  TORCH_CHECK_VALUE(prompt.numel() > 0, "generate: the prompt is empty; give at least one token");
  TORCH_CHECK_VALUE(prompt.size(1) <= model.context(), "generate: the prompt of ", prompt.size(1),
                    " tokens is longer than the model's context of ", model.context(), "; give its last ",
                    model.context(), " tokens, or fewer");
  const auto least = prompt.min().item<int64_t>(), most = prompt.max().item<int64_t>();
  TORCH_CHECK_VALUE(least >= 0 && most < model.vocabulary(), "generate: the prompt has the token ",
                    least < 0 ? least : most, ", and the vocabulary is 0 to ", model.vocabulary() - 1,
                    "; encode the prompt with the model's own tokenizer");
}

std::vector<int64_t> stop_tokens_of(const CausalModel& model, const GenerateOptions& options) {
  if (!options.stop_tokens) return model.stop_tokens();
  for (const int64_t token : *options.stop_tokens)
    TORCH_CHECK_VALUE(token >= 0 && token < model.vocabulary(), "generate: the stop token ", token,
                      " is outside of the vocabulary, 0 to ", model.vocabulary() - 1,
                      "; give tokens of this model");
  return *options.stop_tokens;
}

std::optional<at::Generator> generator_of(const GenerateOptions& options) {
  if (!options.seed) return std::nullopt;
  return at::detail::createCPUGenerator(*options.seed);
}

/// Returns the most tokens that the model reads, without a sum that could overflow.
int64_t longest(int64_t context, int64_t prompt, const GenerateOptions& options) {
  return prompt + std::min(context - prompt, options.max_new_tokens);
}

/// The sequences of one call.
class Generation {
 public:
  Generation(CausalModel& model, const at::Tensor& prompt, const GenerateOptions& options)
      : model_(model),
        options_(options),
        device_(model.parameters().front().device()),
        stop_tokens_(stop_tokens_of(model, options)),
        generator_(generator_of(options)),
        sequences_(prompt.to(at::kCPU, at::kLong)),
        is_done_(at::zeros({prompt.size(0)}, at::kBool)),
        cache_(options.slide ? model.context() : longest(model.context(), prompt.size(1), options)) {}

  Generated run() {
    Generated result;
    std::vector<at::Tensor> chosen;
    auto start = Clock::now();
    for (at::Tensor next = sequences_; next.defined(); next = next_input(chosen, result.end)) {
      chosen.push_back(choose(next));
      if (chosen.size() == 1) {
        result.prompt_seconds = seconds_since(start);
        start = Clock::now();
      }
    }
    result.seconds = seconds_since(start);
    result.tokens = at::stack(chosen, 1);
    return result;
  }

 private:
  /// Reads tokens [B, T] and returns the ones that follow, [B].
  at::Tensor choose(const at::Tensor& tokens) {
    const at::Tensor logits = model_.next_logits(tokens.to(device_), cache_).to(at::kCPU);
    const at::Tensor next = sample(logits, options_.sampling, generator_);
    return stop_tokens_.empty() ? next : next.masked_fill(is_done_, stop_tokens_.front());
  }

  /// Returns what the model reads next, or an undefined tensor and the reason why the text ends.
  at::Tensor next_input(const std::vector<at::Tensor>& chosen, GenerateEnd& end) {
    const at::Tensor& last = chosen.back();
    const bool goes_on = !options_.on_token || options_.on_token(last);
    for (const int64_t token : stop_tokens_) is_done_.logical_or_(last == token);
    const bool is_full = cache_.length() == model_.context();
    end = is_done_.all().item<bool>()                                      ? GenerateEnd::kStopToken
          : !goes_on                                                       ? GenerateEnd::kCaller
          : static_cast<int64_t>(chosen.size()) == options_.max_new_tokens ? GenerateEnd::kMaxNewTokens
                                                                           : GenerateEnd::kContext;
    if (end != GenerateEnd::kContext || (is_full && !options_.slide)) return {};
    if (!is_full) return last.unsqueeze(1);
    cache_.clear();
    const at::Tensor all = at::cat({sequences_, at::stack(chosen, 1)}, 1);
    return all.slice(1, all.size(1) - (model_.context() + 1) / 2);
  }

  CausalModel& model_;
  const GenerateOptions& options_;
  const at::Device device_;
  const std::vector<int64_t> stop_tokens_;
  const std::optional<at::Generator> generator_;
  const at::Tensor sequences_;
  at::Tensor is_done_;
  KeyValueCache cache_;
};

}  // namespace

const char* generate_end_name(GenerateEnd end) {
  constexpr std::array kNames{"max_new_tokens", "stop_token", "context", "caller"};
  return kNames[static_cast<size_t>(end)];
}

double Generated::tokens_per_second() const {
  return tokens.size(1) > 1 ? static_cast<double>(tokens.size(0) * (tokens.size(1) - 1)) / seconds : 0;
}

Generated generate(CausalModel& model, const at::Tensor& prompt, const GenerateOptions& options) {
  check_sampling_options(options.sampling);
  TORCH_CHECK_VALUE(options.max_new_tokens > 0, "generate: max_new_tokens is ", options.max_new_tokens,
                    "; give a number above 0");
  check_prompt(model, prompt);
  const EvaluationMode evaluation(model);
  const at::NoGradGuard no_grad;
  return Generation(model, prompt, options).run();
}

}  // namespace mantissa
