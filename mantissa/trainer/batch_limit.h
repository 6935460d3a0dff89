#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

namespace mantissa {

/// A limit on the batches of a loader: a count (an integer) or a share (a floating-point number). As in
/// Lightning, 1 and 1.0 differ.
class BatchLimit {
 public:
  template <std::integral Count>
  constexpr BatchLimit(Count count) : count_(static_cast<int64_t>(count)) {}
  template <std::floating_point Share>
  constexpr BatchLimit(Share share) : share_(share), is_share_(true) {}

  bool is_share() const { return is_share_; }
  /// Whether it lets all batches through.
  bool is_all() const { return is_share_ && share_ == 1; }
  bool is_none() const { return is_share_ ? share_ == 0 : count_ == 0; }
  /// Returns the number of batches out of `total`: the count, at most `total`, or the share, rounded down.
  /// Errors: c10::ValueError, with `name` in its message, for a share above 0 that leaves no batch.
  int64_t of(int64_t total, const char* name) const;
  /// The same, but returns at least 1.
  int64_t of_at_least_one(int64_t total) const;
  /// "10", "0.25".
  std::string to_string() const;
  /// Errors: c10::ValueError, with `name` in its message, for a negative count and a share outside [0, 1].
  void check(const char* name) const;

 private:
  int64_t rounded_down(int64_t total) const;

  int64_t count_ = 0;
  double share_ = 0;
  bool is_share_ = false;
};

/// The number of batches whose gradients are accumulated before a step: one number, or one for each epoch
/// from which it holds (Lightning: GradientAccumulationScheduler). Before the first of those epochs it is 1.
class AccumulationSchedule {
 public:
  template <std::integral Count>
  constexpr AccumulationSchedule(Count batches) : first_(static_cast<int64_t>(batches)) {}
  AccumulationSchedule(std::map<int64_t, int64_t> from_epoch) : from_epoch_(std::move(from_epoch)) {}
  /// {{epoch, batches}, ...}
  AccumulationSchedule(std::initializer_list<std::pair<const int64_t, int64_t>> from_epoch)
      : from_epoch_(from_epoch) {}

  int64_t at(int64_t epoch) const;
  /// Whether it is `batches` in every epoch.
  bool is_always(int64_t batches) const;
  std::string to_string() const;
  /// Errors: c10::ValueError for an epoch below 0 or a number below 1.
  void check() const;

 private:
  int64_t first_ = 1;
  std::map<int64_t, int64_t> from_epoch_;
};

}  // namespace mantissa
