#include "cli/run_length.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include <c10/util/Exception.h>

#include "mantissa/core/parse_number.h"

namespace mantissa::cli {
namespace {

BatchLimit batch_limit(const char* flag, const std::string& text) {
  if (const auto count = parse_number<int64_t>(text).value) return *count;
  const ParsedNumber<double> parsed = parse_number<double>(text);
  TORCH_CHECK_VALUE(!parsed.is_out_of_range, flag, " ", parsed.problem);
  const std::optional<double> share = parsed.value;
  TORCH_CHECK_VALUE(share && *share >= 0 && *share <= 1, flag, " '", text,
                    "' is neither a number of batches nor a share of them; give one such as 100, or 0.25");
  return *share;
}

std::optional<std::chrono::milliseconds> max_time(const FitOptions& o) {
  const std::string& text = *o.max_time;
  if (text.empty()) return std::nullopt;
  // Days, hours, minutes, seconds: a part's largest number keeps the sum far from overflow.
  constexpr std::array<int64_t, 4> kSeconds{86'400, 3'600, 60, 1}, kLargest{100'000, 23, 59, 59};
  int64_t seconds = 0;
  size_t parts = 0;
  bool is_time = true;
  for (size_t begin = 0; begin <= text.size() && is_time; ++parts) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const auto value = parse_number<int64_t>(std::string_view(text).substr(begin, end - begin)).value;
    is_time = parts < kSeconds.size() && value && *value >= 0 && *value <= kLargest[parts];
    if (is_time) seconds += *value * kSeconds[parts];
    begin = end + 1;
  }
  TORCH_CHECK_VALUE(
      is_time && parts == kSeconds.size() && seconds > 0, "--max-time '", text,
      "' is no time above 0; write DD:HH:MM:SS with at most 23 hours, 59 minutes and 59 seconds, "
      "such as 00:01:30:00 for an hour and a half");
  return std::chrono::seconds(seconds);
}

}  // namespace

RunLength run_length(const FitOptions& o) {
  TORCH_CHECK_VALUE(*o.check_val_every_n_epoch >= 0, "--check-val-every-n-epoch ", *o.check_val_every_n_epoch,
                    " is negative; choose 1 or more, or 0 for --val-check-interval over all epochs");
  return {.max_time = max_time(o),
          .limit_train_batches = batch_limit("--limit-train-batches", *o.limit_train_batches),
          .limit_val_batches = batch_limit("--limit-val-batches", *o.limit_val_batches),
          .overfit_batches = batch_limit("--overfit-batches", *o.overfit_batches),
          .val_check_interval = batch_limit("--val-check-interval", *o.val_check_interval)};
}

void check_shares(const FitOptions& o, const Loader& train, const Loader* val) {
  if (*o.fast_dev_run > 0) return;
  const RunLength limits = run_length(o);
  limits.overfit_batches.of(train.size(), "overfit_batches");
  limits.limit_train_batches.of(train.size(), "limit_train_batches");
  if (val != nullptr) limits.limit_val_batches.of(val->size(), "limit_val_batches");
}

int64_t total_steps(const FitOptions& o, const Loader& train) {
  if (*o.fast_dev_run > 0) return *o.fast_dev_run;
  const RunLength limits = run_length(o);
  int64_t batches = train.size();
  if (!limits.overfit_batches.is_none()) batches = limits.overfit_batches.of(batches, "overfit_batches");
  batches = limits.limit_train_batches.of(batches, "limit_train_batches");
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t per_epoch = batches == 0 ? 0 : (batches - 1) / *o.accumulate_grad_batches + 1;
  int64_t by_epochs = kNone;
  if (*o.max_epochs >= 0 && __builtin_mul_overflow(*o.max_epochs, per_epoch, &by_epochs)) by_epochs = kNone;
  const int64_t by_steps = *o.max_steps < 0 ? kNone : *o.max_steps;
  return std::max<int64_t>(1, std::min(by_epochs, by_steps));
}

}  // namespace mantissa::cli
