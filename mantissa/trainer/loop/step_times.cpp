#include <algorithm>

#include "mantissa/trainer/loop/step_times_internal.h"

namespace mantissa {
namespace {

/// Times that are kept for the median.
constexpr size_t kStepTimes = 10'000;

}  // namespace

void StepTimes::add(double step_ms, double samples) {
  samples_ += samples;
  total_ms_ += step_ms;
  if (step_ms_.size() < kStepTimes) {
    step_ms_.push_back(step_ms);
  } else {
    step_ms_[next_] = step_ms;
    next_ = (next_ + 1) % kStepTimes;
  }
}

double StepTimes::median_ms() const {
  if (step_ms_.empty()) return 0;
  std::vector<double> sorted = step_ms_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

}  // namespace mantissa
