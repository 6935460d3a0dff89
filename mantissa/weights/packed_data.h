#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace mantissa {

class PackedData;
/// Packed data is never changed, so tensors, threads and clones may share it.
using PackedDataPtr = std::shared_ptr<const PackedData>;

/// The codes and scales of a weight in a format such as NF4, and the arithmetic of that format. A format is a
/// subclass; make_packed_weight() (packed_weight.h) turns its object into a tensor.
///
/// Shapes:  the weight W has sizes(), as a layer stores it: [out, in] for torch::nn::Linear, [rows, width] for
///          Embedding, [out, in / groups, ...] for convolutions. A format needs to compute multiply() and
///          multiply_transposed() for two dimensions only.
/// Dtypes:  a format computes for float32, float16, bfloat16 and float64 inputs, and returns the input's
///          dtype. Which dtype it uses inside is its own choice.
/// Threads: several threads call the const functions of one object at the same time, also from autograd's.
/// Example: test_support_internal.h has a format of 40 lines: int8 codes with one scale per row.
class PackedData {
 public:
  /// Tensors by name. The weight's main tensor has the name "", the others names like "absmax". In a saved
  /// state() the part "absmax" of the parameter "fc.weight" is "fc.weight.absmax".
  using Parts = std::map<std::string, at::Tensor>;

  PackedData() = default;
  PackedData(const PackedData&) = delete;
  PackedData& operator=(const PackedData&) = delete;
  virtual ~PackedData() = default;

  /// Returns what an error should call the format: "nf4, blocks of 64".
  virtual std::string description() const = 0;
  /// Returns the sizes of the weight.
  virtual at::IntArrayRef sizes() const = 0;
  /// Returns all tensors that the weight consists of, at least one, all on one device.
  virtual Parts parts() const = 0;
  /// Returns a weight of the same format and sizes() with other parts, as a copy on another device needs it. The
  /// names, dtypes and shapes of `parts` are those of parts().
  /// Errors: c10::ValueError for values that are no weight of this format, before anything is made.
  virtual PackedDataPtr with_parts(Parts parts) const = 0;

  /// Returns the tensors under which a file stores this weight, by their full names. `name` is the parameter's
  /// full name, such as "fc.weight". Unless a format overrides it, these are the parts, with the names
  /// "fc.weight" and "fc.weight.absmax".
  virtual Parts state(const std::string& name) const;
  /// Returns a weight of the same format, sizes() and device from what state() returned for another weight. It
  /// is independent of the memory of `stored`. Other names in `stored` are ignored. Unless a format overrides
  /// it, every part must be in `stored`, in its own dtype and shape.
  /// Errors: c10::ValueError that names the tensor at fault and the cure, for a state that is incomplete or
  ///         that belongs to another format.
  virtual PackedDataPtr with_state(const Parts& stored, const std::string& name) const;
  /// Returns a weight of the same format and device with the values of a plain tensor [sizes()] of a
  /// floating-point dtype. Errors call it `name`. Unless a format overrides it, plain values are refused.
  /// Errors: c10::ValueError for values that the format cannot hold.
  virtual PackedDataPtr with_values(const at::Tensor& values, const std::string& name) const;

  /// Returns the weight as a plain tensor [sizes()] of `dtype`, one of those above.
  virtual at::Tensor dequantize(at::ScalarType dtype) const = 0;
  /// Returns the rows `rows` (int64 [n], on device()) of the weight: [n, sizes()[1:]...]. Unless a format
  /// overrides it, the whole weight is dequantized.
  /// Errors: those of index_select() for a row that does not exist.
  virtual at::Tensor dequantize_rows(const at::Tensor& rows, at::ScalarType dtype) const;
  /// Returns x W^T + bias: x [..., in], at least one row; bias [out] in x's dtype, or undefined; result
  /// [..., out] in x's dtype. Unless a format overrides it, the whole weight is dequantized to x's dtype.
  virtual at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias) const;
  /// Returns x W: x [..., out], at least one row; result [..., in] in x's dtype. It is also the backward pass
  /// of multiply(). Unless a format overrides it, the whole weight is dequantized to x's dtype.
  virtual at::Tensor multiply_transposed(const at::Tensor& x) const;

  /// Whether the weight has trained parameters of its own, as an adapter has. Its functions above then record
  /// gradients like any other operations: the room calls them where autograd records, with empty inputs too,
  /// and records no node for the product as a whole.
  virtual bool records_gradients() const { return false; }
  /// Returns the data for a copy of the weight whose nominal dtype is `dtype`, or null if the same data serves
  /// every dtype. Module::to(), the 16-bit modes and autocast make such copies.
  virtual PackedDataPtr with_dtype(at::ScalarType /*dtype*/) const { return nullptr; }
  /// Throws if Tensor::clone(), and with it Module::clone(), must not share the data.
  virtual void check_clone() const {}
  /// Returns the weight that this one wraps, as an adapter wraps a frozen weight, plain or packed; undefined if
  /// there is none.
  virtual at::Tensor base() const { return {}; }
  /// Returns this weight wrapped around `base` instead of base(); the sizes are equal. It is called only if
  /// base() is defined.
  virtual PackedDataPtr with_base(const at::Tensor& /*base*/) const { return nullptr; }

  /// Returns the device of the parts.
  at::Device device() const;
  /// Returns how many bytes the parts take.
  size_t nbytes() const;
  /// Returns this weight with its parts on `device`; parts that are there already are shared.
  PackedDataPtr to(at::Device device, bool non_blocking = false) const;
};

/// Whether formats compute with inputs of `dtype`: float32, float16, bfloat16 or float64.
bool is_packed_compute_dtype(at::ScalarType dtype);

}  // namespace mantissa
