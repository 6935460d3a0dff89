#include "mantissa/optim/blockwise.h"

#include <limits>
#include <map>
#include <mutex>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/aten/device_kernels.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/optim/blockwise_internal.h"
#include "mantissa/optim/stochastic_round.h"

namespace mantissa {

using kernels::DynamicMap;
using kernels::kStateBlock;
using kernels::UpdateRule;

namespace {

int64_t blocks_of(int64_t count) { return (count + kStateBlock - 1) / kStateBlock; }

/// The values of a map, and for each code but the last the largest float that does not belong to a later one.
struct MapTensors {
  at::Tensor values, thresholds;
};

MapTensors make_map(const float (&table)[256]) {
  MapTensors map = {at::empty({256}, at::kFloat), at::empty({255}, at::kFloat)};
  for (int code = 0; code < 256; ++code) map.values[code] = table[code];
  for (int code = 0; code < 255; ++code) {
    const double middle = (static_cast<double>(table[code]) + table[code + 1]) / 2;
    auto below = static_cast<float>(middle);
    if (below > middle) below = std::nextafter(below, -1.0F);
    map.thresholds[code] = below;
  }
  return map;
}

const MapTensors& map_on(DynamicMap map, at::Device device) {
  // Never destroyed, because the driver of a device may be gone when static objects are.
  static auto& maps = *new std::map<std::pair<DynamicMap, std::string>, MapTensors>();
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  MapTensors& tensors = maps[{map, device.str()}];
  if (!tensors.values.defined()) {
    const at::NoGradGuard no_grad;
    const MapTensors made = make_map(map == DynamicMap::kSigned ? kDynamicSigned : kDynamicUnsigned);
    tensors = {made.values.to(device), made.thresholds.to(device)};
  }
  return tensors;
}

DynamicMap map_of(bool is_signed) { return is_signed ? DynamicMap::kSigned : DynamicMap::kUnsigned; }

}  // namespace

at::Tensor in_blocks(const at::Tensor& values) {
  const int64_t blocks = blocks_of(values.numel());
  const at::Tensor flat = values.reshape({-1});
  return at::constant_pad_nd(flat, {0, blocks * kStateBlock - flat.numel()}).view({blocks, kStateBlock});
}

at::Tensor out_of_blocks(const at::Tensor& blocks, const at::Tensor& like) {
  return blocks.view(-1).narrow(0, 0, like.numel()).view(like.sizes());
}

Normalized normalized(const at::Tensor& values) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  const at::Tensor numbers = in_blocks(values).nan_to_num(0, kLargest, -kLargest);
  const at::Tensor absmax = numbers.abs().amax(1, true);
  // The reciprocal of a tiny number would be infinite: see kernels/cpu/blockwise_codes_internal.h.
  const at::Tensor first = at::where(absmax < 0x1p-100, 0x1p60, 1.0).to(at::kFloat);
  const at::Tensor second = at::where(absmax == 0, 0.0, (absmax * first).reciprocal());
  return {numbers * first * second, absmax};
}

const at::Tensor& dynamic_map(DynamicMap map, at::Device device) { return map_on(map, device).values; }

BlockwiseCodes quantize_by_operations(const at::Tensor& values, DynamicMap map) {
  const auto [x, absmax] = normalized(values);
  const at::Tensor codes = at::bucketize(x, map_on(map, values.device()).thresholds, /*out_int32=*/true);
  return {out_of_blocks(codes.to(at::kByte), values), absmax.view(-1)};
}

at::Tensor dequantize_by_operations(const BlockwiseCodes& quantized, DynamicMap map) {
  const at::Tensor codes = in_blocks(quantized.codes);
  const at::Tensor values = dynamic_map(map, codes.device()).index_select(0, codes.view(-1).to(at::kInt));
  return out_of_blocks(values.view(codes.sizes()) * quantized.absmax.unsqueeze(1), quantized.codes);
}

BlockwiseCodes quantize_blockwise(const at::Tensor& values, bool is_signed) {
  const at::ScalarType dtype = values.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                   "quantize_blockwise: the numbers must be float32, bfloat16 or float16; they are ", dtype);
  const at::NoGradGuard no_grad;
  const at::Tensor numbers = values.to(at::kFloat).contiguous();
  auto* const kernel = kernels::aten::device_kernels(values.device().type()).quantize_blockwise;
  if (kernel == nullptr) return quantize_by_operations(numbers, map_of(is_signed));
  const BlockwiseCodes out = {at::empty(numbers.sizes(), numbers.options().dtype(at::kByte)),
                              at::empty({blocks_of(numbers.numel())}, numbers.options())};
  kernel(encoding_of(numbers, out.codes, out.absmax, map_of(is_signed)));
  return out;
}

at::Tensor dequantize_blockwise(const BlockwiseCodes& quantized, bool is_signed) {
  const auto& [codes, absmax] = quantized;
  TORCH_CHECK_TYPE(codes.scalar_type() == at::kByte && absmax.scalar_type() == at::kFloat,
                   "dequantize_blockwise: needs uint8 codes and float32 absmax; they are ",
                   codes.scalar_type(), " and ", absmax.scalar_type());
  TORCH_CHECK_VALUE(absmax.sizes() == at::IntArrayRef({blocks_of(codes.numel())}),
                    "dequantize_blockwise: ", codes.numel(), " codes have ", blocks_of(codes.numel()),
                    " blocks; absmax has the shape ", absmax.sizes());
  const at::NoGradGuard no_grad;
  auto* const kernel = kernels::aten::device_kernels(codes.device().type()).dequantize_blockwise;
  const BlockwiseCodes in = {codes.contiguous(), absmax.contiguous()};
  if (kernel == nullptr) return dequantize_by_operations(in, map_of(is_signed));
  const at::Tensor out = at::empty(codes.sizes(), absmax.options());
  kernel(decoding_of(in.codes, in.absmax, out, map_of(is_signed)));
  return out;
}

namespace {

/// Returns the square root, rounded correctly. On the CPU libtorch computes it with a library that does not.
at::Tensor root(const at::Tensor& x) {
  return x.is_cpu() ? x.to(at::kDouble).sqrt().to(at::kFloat) : x.sqrt();
}

struct Values {
  at::Tensor p, m, v;
};

Values updated(const kernels::BlockwiseUpdate& update, const UpdateFactorTensors& t, at::Tensor g, Values x) {
  const kernels::UpdateFactors& f = update.factors;
  switch (update.rule) {
    case UpdateRule::kAdam:
      x.m = x.m * f.beta1 + g * f.rest1;
      x.v = x.v * f.beta2 + g * f.rest2 * g;
      x.p = (x.p - t.step_size * (x.m / (root(x.v) + t.eps))) * f.keep;
      return x;
    case UpdateRule::kAdamDecayFirst:
      g = g + x.p * f.decay;
      x.m = x.m * f.beta1 + g * f.rest1;
      x.v = x.v * f.beta2 + g * f.rest2 * g;
      x.p = x.p * f.keep - t.step_size * (x.m / (root(x.v) + t.eps));
      return x;
    case UpdateRule::kLion:
      x.p = x.p * f.keep - t.step_size * (x.m * f.beta1 + g * f.rest1).sign();
      x.m = x.m * f.beta2 + g * f.rest2;
      return x;
    case UpdateRule::kSGD:
      g = g + x.p * f.decay;
      x.m = x.m * f.beta1 + g;
      x.p = x.p - t.step_size * x.m;
      return x;
    case UpdateRule::kRMSprop:
    case UpdateRule::kAdagrad:
      g = g + x.p * f.decay;
      x.m = update.rule == UpdateRule::kRMSprop ? x.m * f.beta1 + g * f.rest1 * g : x.m + g * g;
      x.p = x.p - t.step_size * (g / (root(x.m) + t.eps));
  }
  return x;
}

at::Tensor loaded(const kernels::BlockwiseUpdate& update, const at::Tensor& state, const at::Tensor& absmax,
                  DynamicMap map, const at::Tensor& like) {
  if (!absmax.defined()) return state;
  if (update.has_4_bit_codes) return decode_states4_by_operations({state, absmax}, map).view(like.sizes());
  return decode_states_by_operations({state, absmax}, map);
}

void store(const kernels::BlockwiseUpdate& update, const at::Tensor& state, const at::Tensor& absmax,
           DynamicMap map, const at::Tensor& values, const at::Tensor& found_inf) {
  if (!absmax.defined()) return write_unless(found_inf, state, values);
  const BlockwiseCodes encoded = update.has_4_bit_codes ? encode_states4_by_operations(values, map)
                                                        : encode_states_by_operations(values, map);
  write_unless(found_inf, state, encoded.codes);
  write_unless(found_inf, absmax, encoded.absmax);
}

}  // namespace

void write_unless(const at::Tensor& found_inf, const at::Tensor& tensor, const at::Tensor& value) {
  const at::Tensor same_dtype = value.to(tensor.scalar_type());
  tensor.copy_(found_inf.defined() ? at::where(found_inf != 0, tensor, same_dtype) : same_dtype);
}

UpdateFactorTensors factors_of_step(UpdateRule rule, const LowBitHyperparameters& settings,
                                    const at::Tensor& step) {
  if (!kernels::has_second_state(rule))
    return {at::scalar_tensor(settings.lr, step.options()), at::scalar_tensor(settings.eps, step.options())};
  const at::Tensor t = step.to(at::kDouble);
  const at::Tensor root = (1 - at::pow(settings.beta2, t)).sqrt();
  return {(settings.lr * root / (1 - at::pow(settings.beta1, t))).to(at::kFloat),
          (settings.eps * root).to(at::kFloat)};
}

void update_by_operations(const kernels::BlockwiseUpdate& update, const UpdateTensors& tensors,
                          const UpdateFactorTensors& factors) {
  const at::NoGradGuard no_grad;
  const at::Tensor& found_inf = tensors.found_inf;
  at::Tensor g = tensors.gradient.to(at::kFloat);
  if (tensors.grad_scale.defined()) {
    g = g / tensors.grad_scale;
    write_unless(found_inf, tensors.gradient, g);
  }
  const bool has_v = kernels::has_second_state(update.rule);
  const auto load = [&](const at::Tensor& state, const at::Tensor& absmax, DynamicMap map) {
    return loaded(update, state, absmax, map, tensors.parameter);
  };
  const Values before = {tensors.parameter.to(at::kFloat),
                         load(tensors.state1, tensors.absmax1, DynamicMap::kSigned),
                         has_v ? load(tensors.state2, tensors.absmax2, DynamicMap::kUnsigned) : at::Tensor()};
  const at::Tensor is_finite = g.isfinite();
  const Values after = updated(update, factors, update.maximize ? -g : g, before);
  const at::Tensor p = at::where(is_finite, after.p, before.p);
  const auto store_its = [&](const at::Tensor& state, const at::Tensor& absmax, DynamicMap map,
                             const at::Tensor& values) {
    store(update, state, absmax, map, at::where(is_finite, values, 0.0), found_inf);
  };
  store_its(tensors.state1, tensors.absmax1, DynamicMap::kSigned, after.m);
  if (has_v) store_its(tensors.state2, tensors.absmax2, DynamicMap::kUnsigned, after.v);
  if (!tensors.stream.defined()) return write_unless(found_inf, tensors.parameter, p);
  const at::Tensor rounded = at::empty_like(tensors.parameter);
  stochastic_round_(rounded, p, update.seed, tensors.stream, update.first_draw);
  write_unless(found_inf, tensors.parameter, rounded);
}

}  // namespace mantissa
