#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/core/state_dict.h"

namespace mantissa {

class Strategy;

/// Values by name, ordered, ready for a table, a CSV row or JSON.
using Metrics = std::map<std::string, double>;

/// Formats a value for people: four decimals, or four significant digits from 1e5 on; nan without its
/// arbitrary sign.
std::string format_metric(double value);

StateDict to_state(const Metrics& metrics);
Metrics metrics_of(const StateReader& state);

/// Weighted means of named values over an epoch.
///
/// Sync: values on a GPU are summed there in float64, and read once in compute(). Values on the CPU are read
///       at once.
class MeanMetrics {
 public:
  /// `value`: one element of any real dtype. `weight`: usually the number of samples over which `value` is a
  /// mean.
  /// Errors:  c10::ValueError if `value` does not have exactly one element.
  void add(const std::string& name, const at::Tensor& value, double weight);
  void add(const std::string& name, double value, double weight);
  /// Adds everything that was added to `other`.
  void add(const MeanMetrics& other);

  /// Returns the means so far, without names whose weights sum to 0.
  Metrics compute() const;
  /// The same over all processes of `strategy`, so that decisions that follow from them are the same
  /// everywhere.
  /// Errors: c10::ValueError in every process if the processes have different names.
  Metrics compute(Strategy& strategy) const;
  bool empty() const { return sums_.empty(); }
  void reset() { sums_.clear(); }

  /// The state with which a resumed run continues the epoch: {"loss": {"host": 1.5, "weight": 3, "device":
  /// tensor}}.
  StateDict state_dict() const;
  void load_state_dict(const StateReader& state);

 private:
  struct Sum {
    double host = 0;
    at::Tensor device;  ///< 0-dim float64 on the values' device; undefined until a value comes from a GPU
    double weight = 0;

    /// Sync: reads the device's sum.
    double total() const;
  };
  std::map<std::string, Sum> sums_;
};

}  // namespace mantissa
