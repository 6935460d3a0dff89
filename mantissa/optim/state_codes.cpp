// The codes of optimizers' states by tensor operations, with the bits of the kernels.
#include "mantissa/kernels/state_codes.h"

#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/optim/blockwise_internal.h"

namespace mantissa {

using kernels::DynamicMap;
using kernels::kState4Block;

namespace {

/// What codes and values are computed from.
struct StateTables {
  /// Of 8 bits: kernels::StateThresholds; of each code, f and the index of kernels::StateValues, and 1 or -1.
  at::Tensor least, f, index, sign, slope, offset;
  /// Of 4 bits: the values of the signed map, and the least number of each code from 1 on.
  at::Tensor values4, least4;
};

StateTables make_tables(DynamicMap map) {
  const bool is_signed = map == DynamicMap::kSigned;
  const auto table = [](const auto& numbers) { return at::tensor(at::ArrayRef<float>(numbers)); };
  const auto& values = is_signed ? kernels::kSignedStateValues : kernels::kUnsignedStateValues;
  const at::Tensor rank = at::arange(256, at::kFloat) + (is_signed ? -kernels::kSignedZero : 1);
  StateTables tables;
  tables.least =
      table((is_signed ? kernels::kSignedStateThresholds : kernels::kUnsignedStateThresholds).least);
  tables.f = rank.abs();
  tables.index = tables.f.view(at::kInt).div(1 << 23, "floor") % 8;
  tables.sign = at::where(rank < 0, -1.0, 1.0).to(at::kFloat);
  tables.slope = table(values.slope), tables.offset = table(values.offset);
  std::vector<float> least4;
  for (int code = 1; code < 16; ++code) least4.push_back(least_of_dynamic4_code(code));
  tables.values4 = table(kDynamic4Signed), tables.least4 = table(least4);
  return tables;
}

const StateTables& tables_on(DynamicMap map, at::Device device) {
  // Never destroyed, because the driver of a device may be gone when static objects are.
  static auto& all = *new std::map<std::pair<DynamicMap, std::string>, StateTables>();
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  StateTables& tables = all[{map, device.str()}];
  if (!tables.least.defined()) {
    const at::NoGradGuard no_grad;
    StateTables made = make_tables(map);
    for (at::Tensor* const each : {&made.least, &made.f, &made.index, &made.sign, &made.slope, &made.offset,
                                   &made.values4, &made.least4})
      *each = each->to(device);
    tables = std::move(made);
  }
  return tables;
}

}  // namespace

BlockwiseCodes encode_states_by_operations(const at::Tensor& values, DynamicMap map) {
  const auto [x, absmax] = normalized(values);
  const at::Tensor& least = tables_on(map, x.device()).least;
  const at::Tensor rank = at::bucketize(x.abs(), least, /*out_int32=*/true, /*right=*/true);
  constexpr int kZero = kernels::kSignedZero;
  // The unsigned map is that of second moments, of which none is negative.
  const at::Tensor codes =
      map == DynamicMap::kSigned ? kZero + at::where(x < 0, -rank.clamp_max(kZero), rank) : rank;
  return {out_of_blocks(codes.to(at::kByte), values), absmax.view(-1)};
}

at::Tensor decode_states_by_operations(const BlockwiseCodes& states, DynamicMap map) {
  const StateTables& tables = tables_on(map, states.codes.device());
  const at::Tensor blocks = in_blocks(states.codes), codes = blocks.view(-1).to(at::kInt);
  const at::Tensor index = tables.index.index_select(0, codes), absmax = states.absmax.unsqueeze(1);
  const auto of_code = [&](const at::Tensor& table, const at::Tensor& its) {
    return table.index_select(0, its).view(blocks.sizes());
  };
  const at::Tensor slope = of_code(tables.slope, index) * absmax,
                   offset = of_code(tables.offset, index) * absmax;
  // In double, product and sum are exact, so that the result is rounded once, as the kernels' is.
  at::Tensor value =
      (of_code(tables.f, codes).to(at::kDouble) * slope.to(at::kDouble) + offset.to(at::kDouble))
          .to(at::kFloat)
          .clamp_min(0);  // the rounding of a tiny absmax can make the sum negative
  if (map == DynamicMap::kSigned) value = value * of_code(tables.sign, codes);
  return out_of_blocks(value, states.codes);
}

BlockwiseCodes encode_states4_by_operations(const at::Tensor& values, DynamicMap map) {
  constexpr double kLargest = std::numeric_limits<float>::max(), kMinAbsmax = 1e-12F;
  const at::Tensor blocks = values.reshape({-1, kState4Block});
  const at::Tensor sizes = blocks.nan_to_num(0, kLargest, -kLargest).abs();
  const at::Tensor absmax = sizes.amax(1, true).clamp_min(kMinAbsmax);
  const at::Tensor x = blocks * absmax.reciprocal();
  at::Tensor codes = map == DynamicMap::kSigned ? at::bucketize(x, tables_on(map, x.device()).least4,
                                                                /*out_int32=*/true, /*right=*/true)
                                                : (x * 16 - 0.5).clamp(0, 15).nan_to_num(0).to(at::kInt);
  codes = at::where(x.isnan(), 0, codes).view({-1, 2});
  return {(codes.select(1, 0) * 16 + codes.select(1, 1)).to(at::kByte), absmax.view(-1)};
}

at::Tensor decode_states4_by_operations(const BlockwiseCodes& states, DynamicMap map) {
  const at::Tensor pairs = states.codes.to(at::kInt);
  const at::Tensor codes =
      at::stack({pairs.div(16, "floor"), pairs.remainder(16)}, 1).view({-1, kState4Block});
  const at::Tensor absmax = states.absmax.unsqueeze(1);
  if (map == DynamicMap::kUnsigned) return ((codes + 1).to(at::kFloat) * 0.0625 * absmax).view(-1);
  const at::Tensor& table = tables_on(map, codes.device()).values4;
  return (table.index_select(0, codes.view(-1)).view(codes.sizes()) * absmax).view(-1);
}

}  // namespace mantissa
