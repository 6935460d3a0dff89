#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace mantissa {

/// The largest number of steps, batches and the like that a saved state may hold. A reader can add to such a
/// number without overflow, and a double holds each of them exactly.
inline constexpr int64_t kMaxCount = int64_t{1} << 53;

class StateValue;
using StateList = std::vector<StateValue>;
/// The state that a run must save, by name: StateDict{{"step", 3}, {"groups", StateList{...}}}.
using StateDict = std::map<std::string, StateValue, std::less<>>;

/// One node of a state: nothing, a bool, a whole number, a floating-point number, text, a tensor, a list of
/// nodes or a dict of nodes. It holds data only, never code, so reading one from a file is safe.
///
/// Numbers keep their kind (1 is not 1.0) and their bits, also for NaN and -0.0.
/// Memory:  a tensor is held as an at::Tensor, so a node shares memory with the tensor that it was made from
///          until snapshot() is called.
/// Errors:  c10::ValueError for an undefined tensor and for an unsigned number above 2^63 - 1.
class StateValue {
 public:
  StateValue() = default;
  StateValue(std::same_as<bool> auto value) : value_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) StateValue(T value) : value_(checked(value)) {}
  StateValue(std::floating_point auto value) : value_(static_cast<double>(value)) {}
  StateValue(std::string value) : value_(std::move(value)) {}
  StateValue(std::string_view value) : value_(std::string(value)) {}
  StateValue(const char* value) : value_(std::string(value)) {}
  StateValue(at::Tensor value);
  StateValue(StateList value) : value_(std::move(value)) {}
  StateValue(StateDict value) : value_(std::move(value)) {}

  /// Returns the value if it is a T, else null. T: bool, int64_t, double, std::string, at::Tensor, StateList,
  /// StateDict.
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&value_);
  }
  template <typename T>
  T* get_if() {
    return std::get_if<T>(&value_);
  }
  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  /// Returns a name for errors: "nothing", "a bool", "a tensor", ...
  std::string_view kind() const;

 private:
  template <typename T>
  static int64_t checked(T value) {
    if (!std::in_range<int64_t>(value)) refuse_unsigned(static_cast<uint64_t>(value));
    return static_cast<int64_t>(value);
  }
  [[noreturn]] static void refuse_unsigned(uint64_t value);

  std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, StateList, StateDict> value_;
};

/// A place in a state that knows its own path. Code that loads a state descends through readers, and every
/// error names the place ("optimizers.0.state.3.exp_avg: is a list; a tensor was expected").
///
///     const StateReader run(state);
///     step_ = run.at("progress").at("global_step").to_int();
///
/// Memory:  borrows the state.
/// Errors:  c10::ValueError naming the place, from every function below.
/// Example: state_dict_test.cpp, StateReader.NamesThePlaceOfEveryError
class StateReader {
 public:
  explicit StateReader(const StateValue& value, std::string path = "")
      : value_(&value), path_(std::move(path)) {}
  explicit StateReader(const StateDict& dict, std::string path = "") : dict_(&dict), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool is_null() const { return value_ && value_->is_null(); }
  /// Returns StateValue::kind().
  std::string_view kind() const;

  bool to_bool() const;
  int64_t to_int() const;
  /// Returns a number in [min, max].
  int64_t to_int(int64_t min, int64_t max) const;
  /// Returns a number of things that a run has counted, from 0 to kMaxCount.
  int64_t to_count() const { return to_int(0, kMaxCount); }
  /// Accepts whole numbers too.
  double to_double() const;
  /// Returns a number in [min, max]; NaN is refused.
  double to_double(double min, double max) const;
  const std::string& to_string() const;
  /// Returns the state's own tensor: clone() it before changing it.
  const at::Tensor& to_tensor() const;
  const StateList& to_list() const;
  const StateDict& to_dict() const;

  /// Returns an entry of a dict or of a list.
  StateReader at(std::string_view key) const;
  StateReader at(size_t index) const;
  /// Returns at(key), or nothing if the dict has no such entry.
  std::optional<StateReader> find(std::string_view key) const;
  /// Returns the number of entries of the list or dict.
  size_t size() const;

  /// Throws c10::ValueError "PATH: WHAT", for an error that the caller finds in the value.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  template <typename T>
  const T& get(const char* expected) const;
  std::string below(std::string_view name) const;

  /// Exactly one is set: a dict need not be copied into a value to be read.
  const StateValue* value_ = nullptr;
  const StateDict* dict_ = nullptr;
  std::string path_;
};

/// Returns a copy that shares no memory with `state`, with its tensors on the CPU, contiguous and without a
/// graph. A run may change its own tensors afterwards.
///
/// Sync: waits for each tensor that is on a device.
StateDict snapshot(const StateDict& state);
at::Tensor snapshot(const at::Tensor& tensor);

/// Returns where `a` and `b` first differ and how ("scheduler.step: 3 and 4"), or "" if they are equal: the
/// same kinds, names and numbers, and tensors of the same dtype, shape and values, all compared bit for bit.
/// A tensor's device and whether it requires a gradient do not matter.
std::string difference(const StateDict& a, const StateDict& b);

/// Convert numbers by name, as GradScaler::state_dict() and Precision::state_dict() return them. Of
/// at::Scalar's kinds, bools, whole numbers and floating-point numbers are supported.
/// Errors: c10::ValueError for a complex number.
StateDict scalars_to_state(const std::map<std::string, at::Scalar>& scalars);
std::map<std::string, at::Scalar> scalars_from_state(const StateReader& state);

/// The interface of an object with state that a run must save, such as callbacks and schedules; it is found
/// by dynamic_cast.
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual StateDict state_dict() const = 0;
  /// Errors: c10::ValueError for a state that does not fit, before anything is changed.
  virtual void load_state_dict(const StateReader& state) = 0;
};

}  // namespace mantissa
