#include "mantissa/quant/stored_fp8.h"

#include <cstdint>

#include <ATen/TensorOperators.h>
#include <ATen/ops/repeat_interleave.h>
#include <c10/util/Exception.h>

namespace mantissa {
namespace {

constexpr const char *kScales = ".scale_inv", *kExponents = ".exponents", *kAmax = ".amax";
constexpr int64_t kScaledBlock = 128, kMXBlock = 32;

int64_t blocks_in(int64_t size, int64_t block) { return (size + block - 1) / block; }

/// Returns the scale of each code from those of the blocks.
at::Tensor spread(const at::Tensor& scales, at::IntArrayRef sizes, int64_t block) {
  return scales.repeat_interleave(block, 0)
      .repeat_interleave(block, 1)
      .narrow(0, 0, sizes[0])
      .narrow(1, 0, sizes[1]);
}

}  // namespace

bool is_stored_fp8(const std::map<std::string, at::ScalarType>& dtypes, const std::string& name) {
  const auto codes = dtypes.find(name);
  return codes != dtypes.end() && codes->second == at::kFloat8_e4m3fn &&
         (dtypes.contains(name + kScales) || dtypes.contains(name + kExponents));
}

std::vector<std::string> stored_fp8_parts(const std::map<std::string, at::ScalarType>& dtypes,
                                          const std::string& name) {
  std::vector<std::string> parts = {name};
  for (const char* const part : {kScales, kExponents, kAmax})
    if (dtypes.contains(name + part)) parts.push_back(name + part);
  return parts;
}

at::Tensor dequantize_stored_fp8(const std::map<std::string, at::Tensor>& stored, const std::string& name,
                                 at::ScalarType dtype) {
  const at::Tensor& codes = stored.at(name);
  const bool is_mx = stored.contains(name + kExponents);
  const std::string scales_name = name + (is_mx ? kExponents : kScales);
  const at::Tensor& scales = stored.at(scales_name);
  const at::ScalarType wanted = is_mx ? at::kFloat8_e8m0fnu : at::kFloat;
  TORCH_CHECK_VALUE(codes.dim() == 2 && scales.scalar_type() == wanted, "'", scales_name, "' is ",
                    scales.scalar_type(), " and '", name, "' has shape ", codes.sizes(),
                    ", and a matrix in FP8 needs ", wanted, "; save the model again");
  const at::Tensor values = codes.to(at::kFloat), numbers = scales.to(at::kFloat);
  if (!is_mx && scales.numel() == 1) return (values * numbers.flatten()).to(dtype);
  const int64_t block = is_mx ? kMXBlock : kScaledBlock, rows = blocks_in(codes.size(0), block),
                cols = blocks_in(codes.size(1), block);
  TORCH_CHECK_VALUE(scales.numel() == rows * cols, "'", scales_name, "' has ", scales.numel(),
                    " scales, and '", name, "' of shape ", codes.sizes(), " has ", rows * cols, " blocks of ",
                    block, " x ", block, " codes; save the model again");
  return (values * spread(numbers.reshape({rows, cols}), codes.sizes(), block)).to(dtype);
}

}  // namespace mantissa
