#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "mantissa/weights/float32_parameters.h"
#include "mantissa/weights/packed_data.h"

namespace mantissa::lora {

/// A trained tensor of an adapter. It is the module "default" in "fc.lora_A.default.weight", so that the names of
/// parameters are PEFT's. It stays in float32, also in a model that is converted to 16 bits, and is no
/// torch::nn::Linear, so that nothing which looks for linear layers finds it.
class Factor final : public torch::nn::Module, public KeepsFloat32 {
 public:
  explicit Factor(const at::Tensor& values);
  void to(at::Device device, at::ScalarType dtype, bool non_blocking) override;
  void to(at::ScalarType dtype, bool non_blocking) override;
  using torch::nn::Module::to;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor weight;
};

/// The child "lora_A" of a layer, which holds the factors of all adapters by name.
class Factors final : public torch::nn::Module {
 public:
  Factors() : torch::nn::Module("LoraFactors") {}
  /// Makes a child in the container's training mode.
  std::shared_ptr<Factor> add(const std::string& adapter, const at::Tensor& values);
};

/// One adapter of one layer: y += scaling * B (A dropout(x)); with a magnitude, the direction of each row of
/// W + scaling * B A is kept and its length becomes that of the magnitude (DoRA).
struct Adapter {
  std::string name;
  double scaling = 1, dropout = 0;
  std::shared_ptr<Factor> a, b;                 // [r, in], [out, r]
  std::shared_ptr<Factor> magnitude = nullptr;  // [out]

  int64_t rank() const { return a->weight.size(0); }
  void set_requires_grad(bool requires_grad) const;
  void drop_gradients() const;
  std::vector<at::Tensor> parameters() const;
};
using AdapterPtr = std::shared_ptr<const Adapter>;

/// A frozen weight with the adapters that are active: what a layer's weight becomes. The base, a plain or marked matrix
/// or a packed weight of any format, computes its own product.
class LoraWeight final : public PackedData {
 public:
  LoraWeight(const at::Tensor& base, std::vector<AdapterPtr> adapters);

  std::string description() const override;
  at::IntArrayRef sizes() const override { return base_.sizes(); }
  /// The parts are those of the base: the adapters' tensors are parameters of the module.
  Parts parts() const override;
  PackedDataPtr with_parts(Parts parts) const override;
  /// What a file stores is the base, and what a file has replaces the base.
  Parts state(const std::string& name) const override;
  PackedDataPtr with_state(const Parts& stored, const std::string& name) const override;
  PackedDataPtr with_values(const at::Tensor& values, const std::string& name) const override;
  /// The values of the layer without its adapters, plus what they add. Autograd records them.
  at::Tensor dequantize(at::ScalarType dtype) const override;
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias) const override;
  /// Inputs are not dropped: it is not what a linear layer computes.
  at::Tensor multiply_transposed(const at::Tensor& x) const override;
  bool records_gradients() const override { return true; }
  PackedDataPtr with_dtype(at::ScalarType dtype) const override;
  void check_clone() const override;
  at::Tensor base() const override { return base_; }
  PackedDataPtr with_base(const at::Tensor& base) const override;

 private:
  /// Returns the base for a product with `x`.
  at::Tensor base_for(const at::Tensor& x) const;

  const at::Tensor base_;
  const std::vector<AdapterPtr> adapters_;
};

/// Returns the values of a plain or packed matrix in `dtype`, computed from its own codes.
at::Tensor values_of(const at::Tensor& weight, at::ScalarType dtype);

/// Returns the lengths of the rows of a matrix in float32, as DoRA's magnitude starts.
at::Tensor row_lengths(const at::Tensor& matrix);

}  // namespace mantissa::lora
