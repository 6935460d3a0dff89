#include "mantissa/lora/lora_config.h"

#include <cmath>

#include <c10/util/Exception.h>

#include "mantissa/io/json_internal.h"
#include "mantissa/lora/expression_internal.h"

namespace mantissa {
namespace {

/// Returns the expression that PEFT makes of a pattern, which stands for the whole name or for an end of it that follows a dot.
std::string expression_of(const std::string& pattern) { return "(.*\\.)?(" + pattern + ")"; }

/// Returns the value of the pattern that means the layer `name`, or `fallback`.
template <typename Value>
Value value_of(const std::map<std::string, Value>& patterns, const std::string& name, Value fallback) {
  for (const auto& [pattern, value] : patterns)
    if (ends_with_name(name, pattern) || lora::matches_whole(name, expression_of(pattern))) return value;
  return fallback;
}

void check_pattern(const std::string& member, const std::string& pattern) {
  const std::string problem = lora::problem_of(expression_of(pattern));
  TORCH_CHECK_VALUE(problem.empty(), "LoraConfig: ", member, " has the key '", fit_for_message(pattern),
                    "', which is no regular expression (", problem, "); give ends of layers' names");
}

void check_rank(const std::string& member, int64_t rank) {
  TORCH_CHECK_VALUE(rank > 0 && rank <= 1 << 20, "LoraConfig: ", member, " must be 1 to 1048576; got ", rank);
}

void check_alpha(const std::string& member, double alpha) {
  TORCH_CHECK_VALUE(std::isfinite(alpha), "LoraConfig: ", member, " must be finite; got ", alpha);
}

}  // namespace

int64_t LoraConfig::rank_of(const std::string& name) const { return value_of(rank_pattern, name, r); }

double LoraConfig::alpha_of(const std::string& name) const {
  return value_of(alpha_pattern, name, lora_alpha);
}

double LoraConfig::scaling_of(const std::string& name) const {
  const auto rank = static_cast<double>(rank_of(name));
  return alpha_of(name) / (use_rslora ? std::sqrt(rank) : rank);
}

void check_lora_config(const LoraConfig& config) {
  check_rank("r", config.r);
  check_alpha("lora_alpha", config.lora_alpha);
  TORCH_CHECK_VALUE(config.lora_dropout >= 0 && config.lora_dropout < 1,
                    "LoraConfig: lora_dropout must be at least 0 and below 1; got ", config.lora_dropout);
  TORCH_CHECK_VALUE(!config.target_modules.empty(),
                    "LoraConfig: target_modules names no layer; give names or \"all-linear\"");
  for (const auto& [pattern, rank] : config.rank_pattern) {
    check_pattern("rank_pattern", pattern);
    check_rank("rank_pattern of '" + fit_for_message(pattern) + "'", rank);
  }
  for (const auto& [pattern, alpha] : config.alpha_pattern) {
    check_pattern("alpha_pattern", pattern);
    check_alpha("alpha_pattern of '" + fit_for_message(pattern) + "'", alpha);
  }
}

}  // namespace mantissa
