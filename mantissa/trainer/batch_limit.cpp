#include "mantissa/trainer/batch_limit.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>

#include <c10/util/Exception.h>

namespace mantissa {

void BatchLimit::check(const char* name) const {
  TORCH_CHECK_VALUE(
      !is_share_ || (share_ >= 0 && share_ <= 1), "Trainer: ", name, "=", to_string(),
      " is a share, which must be between 0.0 and 1.0; give an integer for a number of batches");
  TORCH_CHECK_VALUE(is_share_ || count_ >= 0, "Trainer: ", name, "=", to_string(),
                    " is negative; give a number of batches, or a share of them between 0.0 and 1.0");
}

int64_t BatchLimit::rounded_down(int64_t total) const {
  if (!is_share_) return std::min(count_, total);
  // In binary, a share such as 0.29 of 100 is 28.999...: 29 is meant.
  return static_cast<int64_t>(std::floor(share_ * static_cast<double>(total) + 1e-9));
}

int64_t BatchLimit::of_at_least_one(int64_t total) const { return std::max<int64_t>(1, rounded_down(total)); }

int64_t BatchLimit::of(int64_t total, const char* name) const {
  const int64_t batches = rounded_down(total);
  if (!is_share_) return batches;
  TORCH_CHECK_VALUE(batches > 0 || is_none() || total == 0, "Trainer: ", name, "=", to_string(), " of ",
                    total, " batches leaves no batch; give at least ", 1.0 / static_cast<double>(total),
                    ", or a number of batches");
  return batches;
}

std::string BatchLimit::to_string() const {
  return is_share_ ? fmt::format("{}", share_) : fmt::format("{}", count_);
}

int64_t AccumulationSchedule::at(int64_t epoch) const {
  const auto next = from_epoch_.upper_bound(epoch);
  return next == from_epoch_.begin() ? first_ : std::prev(next)->second;
}

bool AccumulationSchedule::is_always(int64_t batches) const {
  return std::all_of(from_epoch_.begin(), from_epoch_.end(),
                     [&](const auto& entry) { return entry.second == batches; }) &&
         (first_ == batches || from_epoch_.contains(0));
}

void AccumulationSchedule::check() const {
  TORCH_CHECK_VALUE(first_ >= 1, "Trainer: accumulate_grad_batches must be at least 1, got ", first_);
  for (const auto& [epoch, batches] : from_epoch_) {
    TORCH_CHECK_VALUE(epoch >= 0 && batches >= 1, "Trainer: accumulate_grad_batches=", to_string(), " has {",
                      epoch, ": ", batches, "}; give epochs from 0 and, for each, at least 1 batch");
  }
}

std::string AccumulationSchedule::to_string() const {
  if (from_epoch_.empty()) return fmt::format("{}", first_);
  std::string text;
  for (const auto& [epoch, batches] : from_epoch_)
    text += fmt::format("{}{}: {}", text.empty() ? "{" : ", ", epoch, batches);
  return text + "}";
}

}  // namespace mantissa
