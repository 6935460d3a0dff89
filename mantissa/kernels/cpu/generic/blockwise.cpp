#include <cmath>

#include "mantissa/kernels/cpu/blockwise4_internal.h"
#include "mantissa/kernels/cpu/blockwise_codes_internal.h"
#include "mantissa/kernels/cpu/blockwise_kernel.h"
#include "mantissa/kernels/cpu/blockwise_states_internal.h"
#include "mantissa/kernels/cpu/generic/element_internal.h"
#include "mantissa/kernels/cpu/stochastic_round_kernel.h"

namespace mantissa::kernels::cpu::generic {
namespace {

struct Here;  // makes this build's own copies of the templates

float decoded(DynamicMap map, uint8_t code, float absmax) {
  return (map == DynamicMap::kSigned ? kDynamicSigned : kDynamicUnsigned)[code] * absmax;
}

float larger(float largest, float value) { return std::fabs(value) > largest ? std::fabs(value) : largest; }

/// Returns the block's absmax.
template <class CodeOf>
float encode(const CodeOf& code_of_one, const float* values, uint8_t* codes, int64_t count) {
  float absmax = 0;
  for (int64_t i = 0; i < count; ++i) absmax = larger(absmax, values[i]);
  if (absmax > kLargestFloat) absmax = kLargestFloat;
  const auto [first, second] = normalizer<Here>(absmax);
  for (int64_t i = 0; i < count; ++i) codes[i] = code_of_one(values[i] * first * second);
  return absmax;
}

float decoded_state(DynamicMap map, uint8_t code, float absmax) {
  const bool is_signed = map == DynamicMap::kSigned;
  const StateValues& values = is_signed ? kSignedStateValues : kUnsignedStateValues;
  const float rank = is_signed ? static_cast<float>(code - kSignedZero) : static_cast<float>(code) + 1;
  const float f = std::fabs(rank);
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &f, sizeof bits);
  const uint32_t i = bits >> 23 & 7;
  const float sum = std::fma(f, values.slope[i] * absmax, values.offset[i] * absmax);
  const float value = sum > 0 ? sum : 0;  // the rounding of a tiny absmax can make the sum negative
  return is_signed ? std::copysign(value, rank) : value;
}

float sign(float x) { return static_cast<float>((x > 0) - (x < 0)); }

/// One element: its parameter, and its states before and after.
struct Value {
  float p, m, v;
};

Value updated(UpdateRule rule, const UpdateFactors& f, float g, Value x) {
  switch (rule) {
    case UpdateRule::kAdam:
      x.m = f.beta1 * x.m + f.rest1 * g;
      x.v = f.beta2 * x.v + f.rest2 * g * g;
      x.p = (x.p - f.step_size * (x.m / (std::sqrt(x.v) + f.eps))) * f.keep;
      return x;
    case UpdateRule::kAdamDecayFirst:
      g += f.decay * x.p;
      x.m = f.beta1 * x.m + f.rest1 * g;
      x.v = f.beta2 * x.v + f.rest2 * g * g;
      x.p = x.p * f.keep - f.step_size * (x.m / (std::sqrt(x.v) + f.eps));
      return x;
    case UpdateRule::kLion:
      x.p = x.p * f.keep - f.step_size * sign(f.beta1 * x.m + f.rest1 * g);
      x.m = f.beta2 * x.m + f.rest2 * g;
      return x;
    case UpdateRule::kSGD:
      g += f.decay * x.p;
      x.m = f.beta1 * x.m + g;
      x.p -= f.step_size * x.m;
      return x;
    case UpdateRule::kRMSprop:
    case UpdateRule::kAdagrad:
      g += f.decay * x.p;
      x.m = rule == UpdateRule::kRMSprop ? f.beta1 * x.m + f.rest1 * g * g : x.m + g * g;
      x.p -= f.step_size * (g / (std::sqrt(x.m) + f.eps));
  }
  return x;
}

void load_state(const UpdateState& state, DynamicMap map, int64_t block, float* values, int64_t count) {
  const int64_t begin = block * kStateBlock;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = state.codes != nullptr    ? decoded_state(map, state.codes[begin + i], state.absmax[block])
                : state.values != nullptr ? state.values[begin + i]
                                          : 0;
  }
}

void store_state(const UpdateState& state, DynamicMap map, int64_t block, const float* values,
                 int64_t count) {
  const int64_t begin = block * kStateBlock;
  if (state.codes != nullptr)
    state.absmax[block] =
        encode([&](float x) { return state_code_of<Here>(map, x); }, values, state.codes + begin, count);
  for (int64_t i = 0; state.values != nullptr && i < count; ++i) state.values[begin + i] = values[i];
}

/// The same with codes of 4 bits.
void load_state4(const UpdateState& state, DynamicMap map, int64_t block, float* values, int64_t count) {
  const int64_t begin = block * kStateBlock;
  for (int64_t i = 0; i < count; ++i) {
    const int byte = state.codes[(begin + i) / 2], code = i % 2 == 0 ? byte >> 4 : byte & 15;
    const float value =
        map == DynamicMap::kSigned ? kDynamic4Signed[code] : (static_cast<float>(code) + 1) / 16;
    values[i] = value * state.absmax[(begin + i) / kState4Block];
  }
}

void store_state4(const UpdateState& state, DynamicMap map, int64_t block, const float* values,
                  int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kState4Block) {
    float absmax = 0;
    for (int64_t i = begin; i < begin + kState4Block; ++i) absmax = larger(absmax, values[i]);
    absmax = scale4_of<Here>(absmax);
    const int64_t place = block * kStateBlock + begin;
    state.absmax[place / kState4Block] = absmax;
    const auto code = [&](int64_t i) { return code4_of<Here>(map, values[i] * (1 / absmax)); };
    for (int64_t i = 0; i < kState4Block; i += 2)
      state.codes[(place + i) / 2] = static_cast<uint8_t>(code(begin + i) << 4 | code(begin + i + 1));
  }
}

void store_parameter(const BlockwiseUpdate& u, const float* values, int64_t begin, int64_t count) {
  if (u.rounds_stochastically && u.element != Element::kFloat32) {
    auto* const to = static_cast<uint16_t*>(u.parameter) + begin;
    return stochastic_round(
        {values, to, u.element, count, u.seed, &u.stream, u.first_draw + static_cast<uint64_t>(begin)}, 0,
        count);
  }
  for (int64_t i = 0; i < count; ++i) store(u.element, u.parameter, begin + i, values[i]);
}

int64_t count_in(int64_t block, int64_t count) { return least(count - block * kStateBlock, kStateBlock); }

}  // namespace

void quantize_blocks(const QuantizeBlockwise& problem, int64_t first, int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    const int64_t begin = block * kStateBlock;
    problem.absmax[block] = encode([&](float x) { return code_of<Here>(problem.map, x); }, problem.in + begin,
                                   problem.codes + begin, count_in(block, problem.count));
  }
}

void dequantize_blocks(const DequantizeBlockwise& problem, int64_t first, int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    const int64_t begin = block * kStateBlock;
    for (int64_t i = begin; i < begin + count_in(block, problem.count); ++i)
      problem.out[i] = decoded(problem.map, problem.codes[i], problem.absmax[block]);
  }
}

void update_blocks(const BlockwiseUpdate& u, int64_t first, int64_t last) {
  float p[kStateBlock], m[kStateBlock], v[kStateBlock];
  for (int64_t block = first; block < last; ++block) {
    const int64_t begin = block * kStateBlock, count = count_in(block, u.count);
    const auto load_its = u.has_4_bit_codes ? &load_state4 : &load_state;
    const auto store_its = u.has_4_bit_codes ? &store_state4 : &store_state;
    load_its(u.state1, DynamicMap::kSigned, block, m, count);
    load_its(u.state2, DynamicMap::kUnsigned, block, v, count);
    for (int64_t i = 0; i < count; ++i) {
      float g = load(u.element, u.gradient, begin + i);
      if (u.grad_scale != 1) store(u.element, u.gradient, begin + i, g /= u.grad_scale);
      const Value before = {load(u.element, u.parameter, begin + i), m[i], v[i]};
      const Value after =
          std::isfinite(g) ? updated(u.rule, u.factors, u.maximize ? -g : g, before) : Value{before.p, 0, 0};
      p[i] = after.p, m[i] = after.m, v[i] = after.v;
    }
    store_its(u.state1, DynamicMap::kSigned, block, m, count);
    store_its(u.state2, DynamicMap::kUnsigned, block, v, count);
    store_parameter(u, p, begin, count);
  }
}

}  // namespace mantissa::kernels::cpu::generic
