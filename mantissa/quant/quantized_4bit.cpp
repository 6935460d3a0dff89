#include "mantissa/quant/quantized_4bit.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <c10/util/irange.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/core/parallel_internal.h"
#include "mantissa/kernels/aten/device_kernels.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/quant/operations_4bit_internal.h"
#include "mantissa/quant/quantized_4bit_internal.h"

namespace mantissa {
namespace {

constexpr std::array kStorageDtypes = {at::kByte, at::kHalf, at::kBFloat16, at::kFloat};

int64_t blocks_of(int64_t count, int64_t blocksize) { return (count + blocksize - 1) / blocksize; }

int64_t bytes_for(int64_t count) { return (count + 1) / 2; }

/// Throws unless the codes of `count` values are whole elements of the dtype that stores them.
void check_fills_elements(int64_t count, at::ScalarType storage, std::string_view name) {
  const int64_t bytes = bytes_for(count);
  TORCH_CHECK_VALUE(bytes % static_cast<int64_t>(c10::elementSize(storage)) == 0, "quantize_4bit: ", name,
                    " has ", bytes, " bytes of codes, which do not fill whole elements of ", storage,
                    "; store them as uint8");
}

/// Throws if any value is not finite; a block that has such a value has such a scale.
void check_finite(const at::Tensor& tensor, const at::Tensor& absmax, std::string_view name) {
  if (absmax.isfinite().all().item<bool>()) return;
  const at::Tensor bad = tensor.isfinite().logical_not().reshape({-1});
  TORCH_CHECK_VALUE(false, "quantize_4bit: ", name, " has ", bad.sum().item<int64_t>(),
                    " values that are inf or nan, the first at index ",
                    bad.to(at::kByte).argmax().item<int64_t>(), " of ", tensor.numel(),
                    "; a 4-bit block cannot hold them: repair the tensor first");
}

/// The codes and scales of the double quantization of `residual`.
std::pair<at::Tensor, at::Tensor> quantize_nested(const at::Tensor& residual) {
  if (!residual.is_cpu()) return quant::quantize_nested_by_operations(residual);
  const int64_t count = residual.numel(), blocks = blocks_of(count, kNestedBlocksize);
  at::Tensor codes = at::empty({count}, at::kByte), absmax = at::empty({blocks}, at::kFloat);
  const float* const from = residual.const_data_ptr<float>();
  auto* const to = codes.mutable_data_ptr<uint8_t>();
  auto* const scales = absmax.mutable_data_ptr<float>();
  at::parallel_for(0, blocks, 8, [&](int64_t begin, int64_t end) {
    for (const auto block : c10::irange(begin, end)) {
      const int64_t first = block * kNestedBlocksize, last = std::min(count, first + kNestedBlocksize);
      float largest = 0;
      for (const auto i : c10::irange(first, last)) largest = std::max(largest, std::abs(from[i]));
      for (const auto i : c10::irange(first, last))
        to[i] = nearest_code(kDynamicSigned, largest == 0 ? 0 : from[i] / largest);
      scales[block] = largest;
    }
  });
  return {codes, absmax};
}

/// The mean of the scales. On the CPU they are added in order, so that threads do not change it.
at::Tensor mean_of(const at::Tensor& absmax) {
  if (!absmax.is_cpu()) return absmax.mean();
  double sum = 0;
  const float* const values = absmax.const_data_ptr<float>();
  for (const auto i : c10::irange(absmax.numel())) sum += values[i];
  return at::full({}, absmax.numel() == 0 ? 0 : sum / static_cast<double>(absmax.numel()), at::kFloat);
}

void compress_statistics(Quantized4Bit& quantized) {
  const at::Tensor offset = mean_of(quantized.absmax);
  std::tie(quantized.absmax, quantized.nested_absmax) = quantize_nested(quantized.absmax - offset);
  quantized.nested_offset = offset;
  quantized.nested_map = quant::dynamic_map(offset.device());
}

/// Adds each rounding of its own: see absmax_of().
void restore(const Quantized4Bit& quantized, float* to) {
  const auto* const codes = quantized.absmax.const_data_ptr<uint8_t>();
  const float *const map = quantized.nested_map.const_data_ptr<float>(), *const scales =
                                                                             quantized.nested_absmax
                                                                                 .const_data_ptr<float>();
  const float offset = *quantized.nested_offset.const_data_ptr<float>();
  const int64_t count = quantized.absmax.numel();
  constexpr int64_t kGrain = 16;  // blocks: some microseconds of work
  at::parallel_for(0, blocks_of(count, kNestedBlocksize), kGrain, [&](int64_t begin, int64_t end) {
    for (const auto block : c10::irange(begin, end)) {
      const float scale = scales[block];
      const int64_t last = std::min(count, (block + 1) * kNestedBlocksize);
#pragma GCC unroll 8
      for (int64_t i = block * kNestedBlocksize; i < last; ++i) to[i] = map[codes[i]] * scale + offset;
    }
  });
}

/// Throws if a kernel would read values that are not side by side.
void check_is_contiguous(const char* function, const char* what, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), function, ": the ", what, " have the strides ", tensor.strides(),
                    "; call contiguous() on them");
}

/// Checks what is there only after double quantization of `blocks` scales.
void check_is_whole_nested(const char* function, const Quantized4Bit& quantized, int64_t blocks) {
  check_is_contiguous(function, "scales of the scales", quantized.nested_absmax);
  TORCH_CHECK_VALUE(quantized.nested_absmax.numel() == blocks_of(blocks, kNestedBlocksize), function,
                    ": there are ", quantized.nested_absmax.numel(), " scales of ", blocks,
                    " quantized scales; there have to be ", blocks_of(blocks, kNestedBlocksize));
  const at::Tensor &map = quantized.nested_map, &offset = quantized.nested_offset;
  TORCH_CHECK_VALUE(map.defined() && map.numel() == 256 && map.is_contiguous(), function,
                    ": nested_map has the shape ", map.defined() ? map.sizes() : at::IntArrayRef(),
                    "; it is [256], contiguous");
  TORCH_CHECK_VALUE(offset.defined() && offset.numel() == 1, function, ": nested_offset has the shape ",
                    offset.defined() ? offset.sizes() : at::IntArrayRef(), "; it is one number");
}

}  // namespace

namespace quant {

at::Tensor dynamic_map(at::Device device) {
  // from_blob() takes no const pointer; the copy is what is kept.
  static const at::Tensor map = at::from_blob(const_cast<float*>(kDynamicSigned), {256}, at::kFloat).clone();
  return device.is_cpu() ? map : map.to(device);
}

void check_is_whole(const char* function, const Quantized4Bit& quantized) {
  TORCH_CHECK_VALUE(kernels::kSmallestBlock4 <= quantized.blocksize &&
                        quantized.blocksize <= kernels::kLargestBlock4 &&
                        std::has_single_bit(static_cast<uint64_t>(quantized.blocksize)),
                    function, ": the weight has blocks of ", quantized.blocksize,
                    " values; blocks have 32, 64, 128, 256, 512, 1024, 2048 or 4096");
  TORCH_CHECK_VALUE(quantized.codes.defined() && quantized.absmax.defined(), function, ": the ",
                    quantized.codes.defined() ? "scales" : "codes",
                    " are undefined; give everything that quantize_4bit() returns");
  check_is_contiguous(function, "codes", quantized.codes);
  check_is_contiguous(function, "scales", quantized.absmax);
  const int64_t count = quantized.numel(), bytes = bytes_for(count),
                blocks = blocks_of(count, quantized.blocksize);
  TORCH_CHECK_VALUE(static_cast<int64_t>(quantized.codes.nbytes()) == bytes, function, ": the codes have ",
                    quantized.codes.nbytes(), " bytes; a weight of shape ", at::IntArrayRef(quantized.shape),
                    " has ", bytes);
  TORCH_CHECK_VALUE(quantized.absmax.numel() == blocks, function, ": there are ", quantized.absmax.numel(),
                    " scales; a weight of shape ", at::IntArrayRef(quantized.shape), " in blocks of ",
                    quantized.blocksize, " has ", blocks);
  if (quantized.is_nested()) check_is_whole_nested(function, quantized, blocks);
}

at::Tensor bytes_of(const Quantized4Bit& quantized) { return quantized.codes.view(at::kByte).view({-1}); }

int64_t width_of(const Quantized4Bit& quantized) {
  return quantized.shape[0] == 0 ? 0 : quantized.numel() / quantized.shape[0];
}

kernels::Code4 code_of(Format format) {
  return format == Format::kNF4 ? kernels::Code4::kNF4 : kernels::Code4::kFP4;
}

}  // namespace quant

int64_t Quantized4Bit::numel() const { return c10::multiply_integers(shape); }

int64_t Quantized4Bit::nbytes() const {
  const auto bytes = [](const at::Tensor& x) { return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0; };
  return bytes(codes) + bytes(absmax) + bytes(nested_absmax) + bytes(nested_offset);
}

Quantized4Bit Quantized4Bit::to(at::Device device) const {
  Quantized4Bit result = *this;
  for (at::Tensor* const tensor :
       {&result.codes, &result.absmax, &result.nested_absmax, &result.nested_map, &result.nested_offset})
    if (tensor->defined()) *tensor = tensor->to(device);
  return result;
}

Quantized4Bit zeros_4bit(at::IntArrayRef shape, at::ScalarType dtype, const Quantize4BitOptions& options,
                         at::Device device) {
  check_options(options);
  Quantized4Bit zeros;
  zeros.shape = shape.vec();
  zeros.dtype = dtype;
  zeros.blocksize = options.blocksize;
  zeros.format = options.format;
  const at::TensorOptions bytes = at::TensorOptions(device).dtype(at::kByte),
                          floats = bytes.dtype(at::kFloat);
  const int64_t blocks = blocks_of(zeros.numel(), options.blocksize);
  check_fills_elements(zeros.numel(), options.quant_storage, "the tensor");
  zeros.codes = at::zeros({bytes_for(zeros.numel())}, bytes).view(options.quant_storage).view({-1, 1});
  zeros.absmax = at::zeros({blocks}, options.compress_statistics ? bytes : floats);
  if (!options.compress_statistics) return zeros;
  zeros.nested_absmax = at::zeros({blocks_of(blocks, kNestedBlocksize)}, floats);
  zeros.nested_map = quant::dynamic_map(device);
  // pack_state() reads the offset, also of a weight without values.
  zeros.nested_offset = at::zeros({}, device.is_meta() ? floats.device(at::kCPU) : floats);
  return zeros;
}

void check_options(const Quantize4BitOptions& options) {
  TORCH_CHECK_VALUE(options.format == Format::kNF4 || options.format == Format::kFP4,
                    "quantize_4bit: ", info(options.format).name, " has no 4-bit codes; choose nf4 or fp4");
  TORCH_CHECK_VALUE(options.blocksize >= kernels::kSmallestBlock4 &&
                        options.blocksize <= kernels::kLargestBlock4 &&
                        std::has_single_bit(static_cast<uint64_t>(options.blocksize)),
                    "quantize_4bit: blocksize ", options.blocksize, " makes blocks of ", options.blocksize,
                    " values; choose 32, 64, 128, 256, 512, 1024, 2048 or 4096");
  TORCH_CHECK_VALUE(
      std::find(kStorageDtypes.begin(), kStorageDtypes.end(), options.quant_storage) != kStorageDtypes.end(),
      "quantize_4bit: codes cannot be stored as ", options.quant_storage,
      "; choose uint8, float16, bfloat16 or float32");
}

Quantized4Bit quantize_4bit(const at::Tensor& tensor, const Quantize4BitOptions& options,
                            std::string_view name) {
  check_options(options);
  TORCH_CHECK_VALUE(tensor.defined(), "quantize_4bit: ", name, " is undefined; give a tensor with values");
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
                   "quantize_4bit: ", name, " has dtype ", dtype,
                   "; cast it to float32, float16 or bfloat16");
  const int64_t count = tensor.numel(), bytes = bytes_for(count);
  check_fills_elements(count, options.quant_storage, name);

  const at::Tensor values = tensor.detach().resolve_neg().contiguous();
  Quantized4Bit result;
  if (auto* const kernel = kernels::aten::device_kernels(values.device().type()).quantize4) {
    result.codes = at::empty({bytes}, values.options().dtype(at::kByte));
    result.absmax = at::empty({blocks_of(count, options.blocksize)}, values.options().dtype(at::kFloat));
    kernel({values.const_data_ptr(), element_of(dtype), count, options.blocksize,
            quant::code_of(options.format), result.codes.mutable_data_ptr<uint8_t>(),
            result.absmax.mutable_data_ptr<float>()});
  } else {
    std::tie(result.codes, result.absmax) =
        quant::quantize_by_operations(values, options.blocksize, options.format);
  }
  check_finite(values, result.absmax, name);
  result.codes = result.codes.view(options.quant_storage).view({-1, 1});
  result.shape = tensor.sizes().vec();
  result.dtype = dtype;
  result.blocksize = options.blocksize;
  result.format = options.format;
  if (options.compress_statistics) compress_statistics(result);
  return result;
}

at::Tensor absmax_of(const Quantized4Bit& quantized) {
  if (!quantized.is_nested()) return quantized.absmax;
  quant::check_is_whole("absmax_of", quantized);
  if (quantized.absmax.is_cpu()) {
    at::Tensor result = at::empty({quantized.absmax.numel()}, at::kFloat);
    restore(quantized, result.mutable_data_ptr<float>());
    return result;
  }
  const at::Tensor scales =
      quantized.nested_absmax.repeat_interleave(kNestedBlocksize).narrow(0, 0, quantized.absmax.numel());
  return quantized.nested_map.index({quantized.absmax.to(at::kInt)}) * scales + quantized.nested_offset;
}

at::Tensor dequantize_4bit(const Quantized4Bit& quantized, at::ScalarType dtype) {
  TORCH_CHECK_TYPE(
      dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kDouble,
      "dequantize_4bit: cannot restore values as ", dtype, "; choose float32, float16, bfloat16 or float64");
  if (dtype == at::kDouble) return dequantize_4bit(quantized, at::kFloat).to(at::kDouble);
  quant::check_is_whole("dequantize_4bit", quantized);
  const at::Tensor absmax = absmax_of(quantized), bytes = quant::bytes_of(quantized);
  const int64_t count = quantized.numel();
  auto* const kernel = kernels::aten::device_kernels(quantized.device().type()).dequantize4;
  if (kernel == nullptr)
    return quant::dequantize_by_operations(bytes, absmax, count, quantized.blocksize, quantized.format, dtype)
        .view(quantized.shape);
  at::Tensor out = at::empty(quantized.shape, absmax.options().dtype(dtype));
  kernel({bytes.const_data_ptr<uint8_t>(), absmax.const_data_ptr<float>(), count, quantized.blocksize,
          quant::code_of(quantized.format), out.mutable_data_ptr(), element_of(dtype)});
  return out;
}

at::Tensor dequantize_4bit(const Quantized4Bit& quantized) {
  return dequantize_4bit(quantized, quantized.dtype);
}

}  // namespace mantissa
