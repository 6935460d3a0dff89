#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace mantissa {

/// One value that an optimizer keeps for a parameter: its name in the state, its shape and its dtype. A value
/// with its own storage format is described by the tensors that hold it: block-wise 8-bit moments are two
/// tensors, the codes of all blocks and the scale of each block.
struct StateFormat {
  enum class Kind {
    kTensor,  ///< of `sizes` and `dtype`
    kCount,   ///< a number of steps: a number or a one-element tensor; `sizes` and `dtype` are ignored
  };

  std::string name;
  std::vector<int64_t> sizes = {};
  /// Unset: any floating-point or complex dtype; the optimizer converts it to its own.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// False: a state without it is complete.
  bool is_required = true;
  Kind kind = Kind::kTensor;

  /// Returns the format of "step", the counter of Python's optimizers.
  static StateFormat step() { return {.name = "step", .kind = Kind::kCount}; }
  /// Returns the format of a value with the parameter's shape.
  static StateFormat like(const at::Tensor& parameter, std::string name, bool is_required = true) {
    return {.name = std::move(name), .sizes = parameter.sizes().vec(), .is_required = is_required};
  }

  /// Returns why `tensor` is not in this format, for the end of an error message: "has shape [3]; [4] was
  /// expected". Empty if it is. Only for a kTensor.
  std::string misfit(const at::Tensor& tensor) const;
};

/// A mixin for an optimizer that defines the values in its state. load_optimizer_state() and load() check a
/// saved state against them before anything changes. Without it, values must have the parameter's shape, as
/// those of libtorch's own optimizers do.
///
/// Example: optimizer_state_test.cpp, BlockwiseMomentum
class HasStateFormats {
 public:
  virtual ~HasStateFormats() = default;
  /// Returns all values that the optimizer may keep for `parameter`.
  virtual std::vector<StateFormat> state_formats(const at::Tensor& parameter) const = 0;
};

/// Returns the row of `formats` with this name, or null.
const StateFormat* find_format(const std::vector<StateFormat>& formats, const std::string& name);

}  // namespace mantissa
