// States with codes of 4 bits, by tensor operations.
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/optim/blockwise_internal.h"

namespace mantissa {

using kernels::DynamicMap;
using kernels::kState4Block;

BlockwiseCodes quantize4_by_operations(const at::Tensor& values, DynamicMap map) {
  constexpr double kLargest = std::numeric_limits<float>::max(), kLeast = 1e-12F;
  const at::Tensor blocks = values.reshape({-1, kState4Block});
  const at::Tensor sizes = blocks.nan_to_num(0, kLargest, -kLargest).abs();
  const at::Tensor absmax =
      (sizes.numel() == 0 ? sizes.new_empty({0, 1}) : sizes.amax(1, true)).clamp_min(kLeast);
  const at::Tensor x = blocks * absmax.reciprocal();
  at::Tensor codes;
  if (map == DynamicMap::kSigned) {
    std::vector<float> least;
    for (int code = 1; code < 16; ++code) least.push_back(least_of_dynamic4_code(code));
    codes = at::bucketize(x, at::tensor(least).to(x.device()), /*out_int32=*/true, /*right=*/true);
  } else {
    codes = (x * 16 - 0.5).clamp(0, 15).nan_to_num(0).to(at::kInt);
  }
  codes = at::where(x.isnan(), 0, codes).view({-1, 2});
  return {(codes.select(1, 0) * 16 + codes.select(1, 1)).to(at::kByte), absmax.view(-1)};
}

at::Tensor dequantize4_by_operations(const BlockwiseCodes& quantized, DynamicMap map) {
  const at::Tensor pairs = quantized.codes.to(at::kInt);
  const at::Tensor codes =
      at::stack({pairs.div(16, "floor"), pairs.remainder(16)}, 1).view({-1, kState4Block});
  const at::Tensor absmax = quantized.absmax.unsqueeze(1);
  if (map == DynamicMap::kUnsigned) return ((codes + 1).to(at::kFloat) * 0.0625 * absmax).view(-1);
  const at::Tensor table = at::tensor(at::ArrayRef<float>(kDynamic4Signed)).to(codes.device());
  return (table.index_select(0, codes.view(-1)).view(codes.sizes()) * absmax).view(-1);
}

}  // namespace mantissa
