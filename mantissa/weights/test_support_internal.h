#pragma once

// For the tests of this room: a format that needs nothing but ATen.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {

/// Int8 codes with one scale per row, dequantized as a whole for each operation: code * scale.
class Int8Rows final : public PackedData {
 public:
  Int8Rows(at::Tensor codes, at::Tensor scale) : codes_(std::move(codes)), scale_(std::move(scale)) {}

  std::string description() const override { return "int8 per row"; }
  at::IntArrayRef sizes() const override { return codes_.sizes(); }
  Parts parts() const override { return {{"", codes_}, {"scale", scale_}}; }
  PackedDataPtr with_parts(Parts parts) const override {
    TORCH_CHECK_VALUE(parts.at("scale").is_meta() || parts.at("scale").ge(0).all().item<bool>(),
                      "int8 per row: a scale is negative");
    return std::make_shared<Int8Rows>(parts.at(""), parts.at("scale"));
  }
  at::Tensor dequantize(at::ScalarType dtype) const override {
    std::vector<int64_t> shape(codes_.dim(), 1);
    shape[0] = codes_.size(0);
    return (codes_.to(at::kFloat) * scale_.view(shape)).to(dtype);
  }
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias) const override {
    ++products;
    const at::Tensor y = PackedData::multiply(x, bias);
    return y.view(y.sizes());  // formats may return views
  }
  at::Tensor multiply_transposed(const at::Tensor& x) const override {
    ++transposed_products;
    return PackedData::multiply_transposed(x);
  }

  mutable std::atomic<int> products = 0, transposed_products = 0;

 private:
  at::Tensor codes_, scale_;
};

/// Rounds `weight` to Int8Rows.
inline at::Tensor pack(const at::Tensor& weight, at::ScalarType dtype = at::kFloat) {
  const at::Tensor rows = weight.detach().flatten(1).to(at::kFloat);
  const at::Tensor scale = rows.abs().amax(1) / 127;
  const at::Tensor codes = (rows / scale.clamp_min(1e-30).unsqueeze(1)).round().to(at::kChar);
  return make_packed_weight(std::make_shared<Int8Rows>(codes.view(weight.sizes()), scale), dtype);
}

inline const Int8Rows& rows_of(const at::Tensor& weight) {
  return dynamic_cast<const Int8Rows&>(*packed_data(weight));
}

}  // namespace mantissa
