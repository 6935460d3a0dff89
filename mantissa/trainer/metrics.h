#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/core/state_dict.h"

namespace mantissa {

/// Values by name, ordered, ready for a table, a CSV row or JSON.
using Metrics = std::map<std::string, double>;

/// For people: four decimals, or four digits where those would be many; "nan" without the sign that
/// arithmetic happened to leave.
std::string format_metric(double value);

StateDict to_state(const Metrics& metrics);
Metrics metrics_of(const StateReader& state);

/// Weighted means of named values over an epoch.
///
/// Sync: values on a GPU are summed there, in float64, and read once in compute(); values on the CPU at once.
class MeanMetrics {
 public:
  /// `value`: one element of any real dtype. `weight`: usually the number of samples that it is a mean of.
  /// Errors:  c10::ValueError if `value` has not exactly one element.
  void add(const std::string& name, const at::Tensor& value, double weight);
  void add(const std::string& name, double value, double weight);
  /// All that was added to `other`.
  void add(const MeanMetrics& other);

  /// The means so far. A name that was only added with weight 0 is left out.
  Metrics compute() const;
  bool empty() const { return sums_.empty(); }
  void reset() { sums_.clear(); }

  /// {"loss": {"host": 1.5, "weight": 3, "device": tensor}}: for going on with the same epoch.
  StateDict state_dict() const;
  void load_state_dict(const StateReader& state);

 private:
  struct Sum {
    double host = 0;
    at::Tensor device;  ///< 0-dim float64 where the values are; undefined until one came from a GPU
    double weight = 0;
  };
  std::map<std::string, Sum> sums_;
};

}  // namespace mantissa
