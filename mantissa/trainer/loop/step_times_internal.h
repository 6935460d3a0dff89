#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mantissa {

/// Host times of training batches.
class StepTimes {
 public:
  void add(double step_ms, double samples);
  /// The median of the last 10,000 batches; 0 before the first.
  double median_ms() const;
  double samples_per_second() const { return total_ms_ > 0 ? samples_ / total_ms_ * 1e3 : 0; }

 private:
  std::vector<double> step_ms_;
  size_t next_ = 0;
  double total_ms_ = 0, samples_ = 0;
};

}  // namespace mantissa
