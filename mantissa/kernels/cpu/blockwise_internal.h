#pragma once

// The block-wise kernels, written once for all vector tiers. This header follows the rules of
// elements_internal.h. V has these members in addition:
//
//   sqrt(x)
//   largest(x)                       the largest lane, where none is negative or NaN
//   look_up(table, codes)            the values of kLanes codes
//   where_finite(x, a, b)            b where x is inf or nan
//   sign(x)                          -1, 0 or 1
//   Int, Lanes                       vectors of kLanes integers; a set of lanes
//   least_class(x)                   see CodeClasses
//   bits_of(x), rotated(x)           integers: the bits, and the bits rotated left by one
//   next_above(i, bits, bounds)      the integers i, plus 1 where the bits are above the bound
//   pick(table, i)                   values of a table of eight floats or integers
//   truncate(x)                      integers
//   is_whole(i), whole(i)            whether a rank in units is nearly whole, or just below; the whole rank
//   bits(lanes)                      a bit for each lane of the set
//   code_of_rank<kIsSigned>(rank, x)      the codes of numbers x; -1 stands for 0
//   store_bytes(to, codes)           four vectors of codes
//
// blockwise_states_internal.h and blockwise4_internal.h list those for states.

#include <cstddef>
#include <cstdint>

#include "mantissa/kernels/cpu/blockwise4_internal.h"
#include "mantissa/kernels/cpu/blockwise_codes_internal.h"
#include "mantissa/kernels/cpu/blockwise_kernel.h"
#include "mantissa/kernels/cpu/blockwise_states_internal.h"
#include "mantissa/kernels/cpu/elements_internal.h"
#include "mantissa/kernels/cpu/stochastic_round_kernel.h"

namespace mantissa::kernels::cpu {

template <class V>
int64_t count_in_block(int64_t block, int64_t count) {
  const int64_t rest = count - block * kStateBlock;
  return rest < kStateBlock ? rest : kStateBlock;
}

template <class V, DynamicMap kMap>
void decode_block(const uint8_t* codes, float absmax, float* values, int64_t count) {
  constexpr const float* kTable = kMap == DynamicMap::kSigned ? kDynamicSigned : kDynamicUnsigned;
  const auto scale = V::set(absmax);
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes)
    V::store(values + i, V::mul(V::look_up(kTable, codes + i), scale));
  for (; i < count; ++i) values[i] = kTable[codes[i]] * absmax;
}

/// Encodes a block and returns its absmax, given its largest magnitude. `values` holds a whole block, and
/// loses its values if they are tiny.
template <class V, DynamicMap kMap>
float encode_block(float* values, float largest, uint8_t* codes, int64_t count) {
  const float absmax = largest < kLargestFloat ? largest : kLargestFloat;
  const auto [first, second] = normalizer<V>(absmax);
  if (first != 1) {
    for (int64_t i = 0; i < kStateBlock; ++i) values[i] *= first;
  }
  if (largest > kLargestFloat) {
    for (int64_t i = 0; i < count; ++i) codes[i] = code_of<V>(kMap, values[i] * second);
    return absmax;
  }
  uint8_t copy[kStateBlock];
  uint8_t* const to = count == kStateBlock ? codes : copy;
  for (int64_t i = 0; i < kStateBlock; i += 4 * V::kLanes)
    store_codes<V, kMap>(to + i, values + i, V::set(second));
  if (to == copy) __builtin_memcpy(codes, copy, static_cast<size_t>(count));
  return absmax;
}

template <class V, DynamicMap kMap>
void quantize_block(const QuantizeBlockwise& problem, int64_t block) {
  alignas(64) float values[kStateBlock] = {};
  const int64_t begin = block * kStateBlock, count = count_in_block<V>(block, problem.count);
  __builtin_memcpy(values, problem.in + begin, static_cast<size_t>(count) * sizeof *values);
  auto largest = V::zero();
  for (int64_t i = 0; i < kStateBlock; i += V::kLanes) {
    const auto lanes = V::load(values + i);
    largest = V::max(V::abs(lanes), largest);
    if (kMap == DynamicMap::kUnsigned) V::store(values + i, V::max(lanes, V::zero()));
  }
  problem.absmax[block] = encode_block<V, kMap>(values, V::largest(largest), problem.codes + begin, count);
}

template <class V>
void quantize_blocks_with(const QuantizeBlockwise& problem, int64_t first, int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    if (problem.map == DynamicMap::kSigned) {
      quantize_block<V, DynamicMap::kSigned>(problem, block);
    } else {
      quantize_block<V, DynamicMap::kUnsigned>(problem, block);
    }
  }
}

template <class V>
void dequantize_blocks_with(const DequantizeBlockwise& problem, int64_t first, int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    const int64_t begin = block * kStateBlock, count = count_in_block<V>(block, problem.count);
    const uint8_t* const codes = problem.codes + begin;
    if (problem.map == DynamicMap::kSigned) {
      decode_block<V, DynamicMap::kSigned>(codes, problem.absmax[block], problem.out + begin, count);
    } else {
      decode_block<V, DynamicMap::kUnsigned>(codes, problem.absmax[block], problem.out + begin, count);
    }
  }
}

/// The factors of an update in all lanes.
template <class V>
struct WideFactors {
  typename V::Float step_size, beta1, beta2, rest1, rest2, eps, decay, keep, sign;

  explicit WideFactors(const BlockwiseUpdate& u)
      : step_size(V::set(u.factors.step_size)),
        beta1(V::set(u.factors.beta1)),
        beta2(V::set(u.factors.beta2)),
        rest1(V::set(u.rule == UpdateRule::kAdam && u.maximize ? -u.factors.rest1 : u.factors.rest1)),
        rest2(V::set(u.factors.rest2)),
        eps(V::set(u.factors.eps)),
        decay(V::set(u.factors.decay)),
        keep(V::set(u.factors.keep)),
        sign(V::set(u.maximize ? -1 : 1)) {}
};

/// Whether the rule divides by a root. The processor takes long for both, so that the parameter is updated in a
/// second pass, while it encodes the states.
template <class V>
constexpr bool divides(UpdateRule rule) {
  return rule != UpdateRule::kLion && rule != UpdateRule::kSGD;
}

/// Whether the states depend on the parameter, by its decay.
template <class V>
constexpr bool reads_parameter(UpdateRule rule) {
  return rule != UpdateRule::kAdam && rule != UpdateRule::kLion;
}

/// The values of kLanes elements.
template <class V>
struct Lanes {
  typename V::Float gradient, p, m, v, denominator;
};

/// Updates the states of kLanes elements, and their parameter if the rule does not divide: see UpdateRule.
/// kIsFinite: no gradient is inf or nan, and no parameter either where the states read it.
template <class V, UpdateRule kRule, bool kIsFinite>
[[gnu::always_inline]] inline void update_states(const WideFactors<V>& f, Lanes<V>& x) {
  using Float = typename V::Float;
  const Float before = x.p;
  // The sign of Adam's gradient is in rest1: its square has none.
  Float g = kRule == UpdateRule::kAdam ? x.gradient : V::mul(x.gradient, f.sign);
  if constexpr (has_second_state<V>(kRule)) {
    if constexpr (kRule == UpdateRule::kAdamDecayFirst) g = V::add(g, V::mul(f.decay, x.p));
    x.m = V::add(V::mul(f.beta1, x.m), V::mul(f.rest1, g));
    x.v = V::add(V::mul(f.beta2, x.v), V::mul(V::mul(f.rest2, g), g));
    x.denominator = V::add(V::sqrt(x.v), f.eps);
    if constexpr (!kIsFinite) x.v = V::where_finite(x.gradient, x.v, V::zero());
  } else if constexpr (kRule == UpdateRule::kLion) {
    const Float direction = V::add(V::mul(f.beta1, x.m), V::mul(f.rest1, g));
    x.p = V::sub(V::mul(x.p, f.keep), V::mul(f.step_size, V::sign(direction)));
    x.m = V::add(V::mul(f.beta2, x.m), V::mul(f.rest2, g));
  } else {
    g = V::add(g, V::mul(f.decay, x.p));
    if constexpr (kRule == UpdateRule::kSGD) {
      x.m = V::add(V::mul(f.beta1, x.m), g);
      x.p = V::sub(x.p, V::mul(f.step_size, x.m));
    } else {
      if constexpr (kRule == UpdateRule::kRMSprop) {
        x.m = V::add(V::mul(f.beta1, x.m), V::mul(V::mul(f.rest1, g), g));
      } else {
        x.m = V::add(x.m, V::mul(g, g));
      }
      x.denominator = V::add(V::sqrt(x.m), f.eps);
    }
  }
  if constexpr (!kIsFinite) {
    if constexpr (!divides<V>(kRule)) x.p = V::where_finite(x.gradient, x.p, before);
    x.m = V::where_finite(x.gradient, x.m, V::zero());
  }
}

/// Returns the new parameter of a rule that divides.
template <class V, UpdateRule kRule, bool kIsFinite>
[[gnu::always_inline]] inline typename V::Float divided(const WideFactors<V>& f, const Lanes<V>& x) {
  using Float = typename V::Float;
  const auto numerator = [&] {
    if constexpr (has_second_state<V>(kRule)) return x.m;
    return V::add(V::mul(x.gradient, f.sign), V::mul(f.decay, x.p));
  };
  const Float start = kRule == UpdateRule::kAdamDecayFirst ? V::mul(x.p, f.keep) : x.p;
  Float p = V::sub(start, V::mul(f.step_size, V::div(numerator(), x.denominator)));
  if constexpr (kRule == UpdateRule::kAdam) p = V::mul(p, f.keep);
  return kIsFinite ? p : V::where_finite(x.gradient, p, x.p);
}

/// Float32 values of a block: the memory itself if it is float32 and the block is whole, otherwise a copy that
/// ends in zeros.
template <class V, class Values>
[[gnu::always_inline]] inline float* values_of(void* data, int64_t begin, int64_t count, float* copy) {
  using Storage = typename Values::Storage;
  auto* const from = static_cast<Storage*>(data) + begin;
  if constexpr (sizeof(Storage) == sizeof(float)) {
    if (count == kStateBlock) return from;
  }
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) V::store(copy + i, Values::load(from + i));
  if (i < count) V::store(copy + i, Values::gather(from + i, 1, count - i)), i += V::kLanes;
  for (; i < kStateBlock; i += V::kLanes) V::store(copy + i, V::zero());
  return copy;
}

template <class V, class Values>
[[gnu::always_inline]] inline void write_back(const float* values, void* data, int64_t begin, int64_t count) {
  auto* const to = static_cast<typename Values::Storage*>(data) + begin;
  if (static_cast<const void*>(to) == values) return;
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) Values::store(to + i, V::load(values + i));
  if (i < count) Values::scatter(to + i, 1, count - i, V::load(values + i));
}

template <class V, class Values>
void write_parameter(const BlockwiseUpdate& u, const float* values, int64_t begin, int64_t count) {
  if (sizeof(typename Values::Storage) == sizeof(float) || !u.rounds_stochastically)
    return write_back<V, Values>(values, u.parameter, begin, count);
  auto* const to = static_cast<typename Values::Storage*>(u.parameter) + begin;
  generic::stochastic_round(
      {values, to, u.element, count, u.seed, &u.stream, u.first_draw + static_cast<uint64_t>(begin)}, 0,
      count);
}

/// One state of a block while it is updated. The new values of states with codes are kept until all of them are
/// known, and then encoded.
template <class V, DynamicMap kMap, StateBits kBits>
struct BlockOfState;

template <class V, DynamicMap kMap>
struct BlockOfState<V, kMap, StateBits::k8> {
  using Float = typename V::Float;

  const UpdateState& state;
  int64_t block, count;
  StateDecoder<V, kMap> decode;
  const uint8_t* codes;
  float* values;
  Float largest = V::zero();
  StateScale scale = {};

  [[gnu::always_inline]] inline BlockOfState(const UpdateState& its_state, int64_t its_block,
                                             int64_t its_count, CopyOfState& copy)
      : state(its_state),
        block(its_block),
        count(its_count),
        decode(state.absmax[block]),
        codes(state.codes + block * kStateBlock),
        values(copy.values) {
    if (count == kStateBlock) return;
    __builtin_memset(copy.codes, kMap == DynamicMap::kSigned ? kSignedZero : 0, sizeof copy.codes);
    __builtin_memcpy(copy.codes, codes, static_cast<size_t>(count));
    codes = copy.codes;
  }
  [[gnu::always_inline]] inline Float load(int64_t i) const { return decode(codes + i); }
  [[gnu::always_inline]] inline void store(int64_t i, Float value) {
    V::store(values + i, value);
    largest = V::max(kMap == DynamicMap::kSigned ? V::abs(value) : value, largest);
  }
  /// To be called for all states before the first finish(), because the processor waits for the result.
  [[gnu::always_inline]] inline void close() { scale = scale_of<V>(V::largest(largest)); }
  /// Calls also(i) for every kLanes elements of the block.
  template <bool kIsFinite, class Also>
  [[gnu::always_inline]] inline void finish(const Also& also) const {
    state.absmax[block] = scale.absmax;
    encode_states<V, kMap, kIsFinite>(values, scale, state.codes + block * kStateBlock, count, also);
  }
};

/// `values` are the memory itself, or a copy that ends in zeros.
template <class V, DynamicMap kMap>
struct BlockOfState<V, kMap, StateBits::k32> {
  using Float = typename V::Float;
  using Values = Elements<V, Element::kFloat32>;

  const UpdateState& state;
  int64_t begin, count;
  float* values;

  [[gnu::always_inline]] inline BlockOfState(const UpdateState& its_state, int64_t block, int64_t its_count,
                                             CopyOfState& copy)
      : state(its_state),
        begin(block * kStateBlock),
        count(its_count),
        values(values_of<V, Values>(state.values, begin, count, copy.values)) {}
  [[gnu::always_inline]] inline Float load(int64_t i) const { return V::load(values + i); }
  [[gnu::always_inline]] inline void store(int64_t i, Float value) { V::store(values + i, value); }
  [[gnu::always_inline]] inline void close() {}
  template <bool kIsFinite, class Also>
  [[gnu::always_inline]] inline void finish(const Also& also) const {
    for (int64_t i = 0; i < kStateBlock; i += V::kLanes) also(i);
    write_back<V, Values>(values, state.values, begin, count);
  }
};

template <class V, DynamicMap kMap>
struct BlockOfState<V, kMap, StateBits::k4> : BlockOf4BitState<V, kMap> {
  using BlockOf4BitState<V, kMap>::BlockOf4BitState;
};

/// Prefetches `count` elements of a later block, across the end of a page, where the processor's own
/// prefetching stops.
template <typename T>
[[gnu::always_inline]] inline void prefetch_later(const T* from) {
  constexpr int64_t kBlocksAhead = 3, kLine = 64;
  const auto* const later = reinterpret_cast<const char*>(from + kBlocksAhead * kStateBlock);
  for (int64_t byte = 0; byte < kStateBlock * static_cast<int64_t>(sizeof(T)); byte += kLine)
    __builtin_prefetch(later + byte);
}

/// Updates a block, given as float32 values, and its states.
template <class V, UpdateRule kRule, StateBits kBits, bool kIsFinite>
void update_block(const BlockwiseUpdate& u, int64_t block, const float* g, float* p) {
  alignas(64) float denominators[kStateBlock];
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): only a partial block needs them, and fills them in
  CopyOfState m_copy, v_copy;
  const int64_t count = count_in_block<V>(block, u.count);
  const WideFactors<V> factors(u);
  BlockOfState<V, DynamicMap::kSigned, kBits> m(u.state1, block, count, m_copy);
  const auto nothing = [](int64_t /*i*/) {};
  const auto finish_parameter = [&](int64_t i) {
    const Lanes<V> x = {V::load(g + i), V::load(p + i), V::load(m.values + i), V::zero(),
                        V::load(denominators + i)};
    V::store(p + i, divided<V, kRule, kIsFinite>(factors, x));
  };
  if constexpr (has_second_state<V>(kRule)) {
    BlockOfState<V, DynamicMap::kUnsigned, kBits> v(u.state2, block, count, v_copy);
    for (int64_t i = 0; i < kStateBlock; i += V::kLanes) {
      Lanes<V> x = {V::load(g + i), V::load(p + i), m.load(i), v.load(i), V::zero()};
      update_states<V, kRule, kIsFinite>(factors, x);
      m.store(i, x.m), v.store(i, x.v), V::store(denominators + i, x.denominator);
    }
    v.close(), m.close();
    v.template finish<kIsFinite>(finish_parameter);  // before m loses its values
    m.template finish<kIsFinite>(nothing);
  } else {
    for (int64_t i = 0; i < kStateBlock; i += V::kLanes) {
      Lanes<V> x = {V::load(g + i), V::load(p + i), m.load(i), V::zero(), V::zero()};
      update_states<V, kRule, kIsFinite>(factors, x);
      m.store(i, x.m);
      V::store(divides<V>(kRule) ? denominators + i : p + i, divides<V>(kRule) ? x.denominator : x.p);
    }
    m.close();
    if constexpr (divides<V>(kRule)) {
      m.template finish<kIsFinite>(finish_parameter);
    } else {
      m.template finish<kIsFinite>(nothing);
    }
  }
}

template <class V, class Values, UpdateRule kRule, StateBits kBits>
void update_blocks_by(const BlockwiseUpdate& u, int64_t first, int64_t last) {
  alignas(64) float p_copy[kStateBlock], g_copy[kStateBlock];
  for (int64_t block = first; block < last; ++block) {
    const int64_t begin = block * kStateBlock, count = count_in_block<V>(block, u.count);
    prefetch_later(static_cast<const typename Values::Storage*>(u.gradient) + begin);
    prefetch_later(static_cast<const typename Values::Storage*>(u.parameter) + begin);
    if constexpr (kBits == StateBits::k8) {
      prefetch_later(u.state1.codes + begin);
      if constexpr (has_second_state<V>(kRule)) prefetch_later(u.state2.codes + begin);
    }
    float* const g = values_of<V, Values>(u.gradient, begin, count, g_copy);
    if (u.grad_scale != 1) {
      const auto scale = V::set(u.grad_scale);
      for (int64_t i = 0; i < kStateBlock; i += V::kLanes) V::store(g + i, V::div(V::load(g + i), scale));
      write_back<V, Values>(g, u.gradient, begin, count);
    }
    float* const p = values_of<V, Values>(u.parameter, begin, count, p_copy);
    // 0 times inf or nan is nan, and stays in the sum.
    auto sum = V::zero();
    for (int64_t i = 0; i < kStateBlock; i += V::kLanes) {
      sum = V::fma(V::load(g + i), V::zero(), sum);
      if constexpr (reads_parameter<V>(kRule)) sum = V::fma(V::load(p + i), V::zero(), sum);
    }
    if (V::is_nan(sum)) [[unlikely]] {
      update_block<V, kRule, kBits, false>(u, block, g, p);
    } else {
      update_block<V, kRule, kBits, true>(u, block, g, p);
    }
    write_parameter<V, Values>(u, p, begin, count);
  }
}

/// Both states have codes, or both have values.
template <class V, class Values, UpdateRule kRule>
void update_blocks_by(const BlockwiseUpdate& u, int64_t first, int64_t last) {
  if constexpr (has_second_state<V>(kRule)) {
    if (u.has_4_bit_codes) return update_blocks_by<V, Values, kRule, StateBits::k4>(u, first, last);
  }
  if (u.state1.codes != nullptr) return update_blocks_by<V, Values, kRule, StateBits::k8>(u, first, last);
  update_blocks_by<V, Values, kRule, StateBits::k32>(u, first, last);
}

template <class V, class Values>
void update_blocks_of(const BlockwiseUpdate& u, int64_t first, int64_t last) {
  switch (u.rule) {
    case UpdateRule::kAdam:
      return update_blocks_by<V, Values, UpdateRule::kAdam>(u, first, last);
    case UpdateRule::kAdamDecayFirst:
      return update_blocks_by<V, Values, UpdateRule::kAdamDecayFirst>(u, first, last);
    case UpdateRule::kLion:
      return update_blocks_by<V, Values, UpdateRule::kLion>(u, first, last);
    case UpdateRule::kSGD:
      return update_blocks_by<V, Values, UpdateRule::kSGD>(u, first, last);
    case UpdateRule::kRMSprop:
      return update_blocks_by<V, Values, UpdateRule::kRMSprop>(u, first, last);
    case UpdateRule::kAdagrad:
      return update_blocks_by<V, Values, UpdateRule::kAdagrad>(u, first, last);
  }
}

template <class V>
void update_blocks_with(const BlockwiseUpdate& u, int64_t first, int64_t last) {
  with_elements<V>(u.element, u.element,
                   [&](auto values) { update_blocks_of<V, decltype(values)>(u, first, last); });
}

}  // namespace mantissa::kernels::cpu
