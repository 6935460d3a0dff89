#pragma once

// 4-bit weights, written once for all vector tiers. This header follows the rules of elements_internal.h. Here
// V also has these members:
//
//   Codes, Table               kLanes integers; the 16 values of the codes
//   table(values)              makes a table
//   decode(table, bytes)       the values of kLanes adjacent codes
//   look_up<kStep>(table, words)   the values of code kStep of each lane, which holds eight adjacent codes
//   nf4_codes(x), fp4_codes(x) the codes of scaled values, which nf4_code() and fp4_code() define
//   store_codes(to, codes)     packs 32 codes into 16 bytes

#include <cstdint>

#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/cpu/elements_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu {

/// Codes that are quantized and stored together. Each block is a multiple of it.
constexpr int64_t kCodeGroup = 32;

template <class V>
typename V::Table table_of(Code4 code) {
  return V::table(code == Code4::kNF4 ? kNF4Values : kFP4Values);
}

/// Loads the vector at `i` of `count` values; lanes behind the end are 0.
template <class V, class Source>
typename V::Float load_until(const typename Source::Storage* from, int64_t i, int64_t count) {
  if (count - i >= V::kLanes) return Source::load(from + i);
  return i < count ? Source::gather(from + i, 1, count - i) : V::zero();
}

/// Returns the largest magnitude, or NaN if there is one.
template <class V, class Source>
float absmax4_of(const typename Source::Storage* from, int64_t count) {
  auto largest = V::zero(), not_finite = V::zero();  // 0 times inf or NaN is NaN
  for (int64_t i = 0; i < count; i += V::kLanes) {
    const auto value = load_until<V, Source>(from, i, count);
    largest = V::max(largest, V::abs(value));
    not_finite = V::fma(value, V::zero(), not_finite);
  }
  if (V::is_nan(not_finite)) {
    for (int64_t i = 0; i < count; i += V::kLanes)
      if (V::is_nan(load_until<V, Source>(from, i, count))) return __builtin_nanf("");
    return __builtin_inff();
  }
  alignas(64) float lanes[V::kLanes];
  V::store(lanes, largest);
  float result = 0;
  for (const float lane : lanes) result = lane > result ? lane : result;
  return result;
}

template <class V, class Source, bool kIsNF4>
void quantize_block(const typename Source::Storage* from, int64_t count, float absmax, uint8_t* to) {
  const float inverse = absmax == 0 ? 0 : 1 / absmax;
  const bool divides = inverse == __builtin_inff();
  const auto factor = V::set(divides ? absmax : inverse);
  for (int64_t i = 0; i < count; i += kCodeGroup) {
    typename V::Codes codes[kCodeGroup / V::kLanes];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kCodeGroup / V::kLanes; ++v) {
      const auto value = load_until<V, Source>(from, i + v * V::kLanes, count);
      const auto scaled = divides ? V::div(value, factor) : V::mul(value, factor);
      codes[v] = kIsNF4 ? V::nf4_codes(scaled) : V::fp4_codes(scaled);
    }
    if (count - i >= kCodeGroup) {
      V::store_codes(to + i / 2, codes);
      continue;
    }
    uint8_t rest[kCodeGroup / 2];
    V::store_codes(rest, codes);
    for (int64_t byte = 0; byte < (count - i + 1) / 2; ++byte) to[i / 2 + byte] = rest[byte];
  }
}

template <class V>
void quantize4_with(const Quantize4& q, int64_t begin, int64_t end) {
  with_elements<V>(q.element, q.element, [&](auto source) {
    using Source = decltype(source);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * q.block, count = q.count - first < q.block ? q.count - first : q.block;
      const auto* const from = static_cast<const typename Source::Storage*>(q.values) + first;
      const float absmax = absmax4_of<V, Source>(from, count);
      if (q.code == Code4::kNF4) {
        quantize_block<V, Source, true>(from, count, absmax, q.codes + first / 2);
      } else {
        quantize_block<V, Source, false>(from, count, absmax, q.codes + first / 2);
      }
      q.absmax[block] = absmax;
    }
  });
}

/// Loads the value of one code.
template <class V>
float value_at(const float* values, const uint8_t* codes, int64_t index) {
  return values[index % 2 == 0 ? codes[index / 2] >> 4 : codes[index / 2] & 15];
}

/// Dequantizes values [first, first + count), which may begin and end anywhere. Writes no more than `count`.
/// scale_of(b) is the scale of block b.
template <class V, class Out, class Scales>
[[gnu::always_inline]] inline void decode_run_with(const Weight4& w, const typename V::Table& table,
                                                   int64_t first, int64_t count, typename Out::Storage* to,
                                                   const Scales& scale_of) {
  const float* const values = w.code == Code4::kNF4 ? kNF4Values : kFP4Values;
  int64_t i = 0;
  while (i < count) {
    const int64_t at = first + i, in_block = w.block - at % w.block;
    const int64_t end = count - i < in_block ? count : i + in_block;
    const float scale = scale_of(at / w.block);
    const auto scales = V::set(scale);
    const auto one_by_one = [&](int64_t until) {
      for (; i < until; ++i)
        Out::scatter(to + i, 1, 1, V::set(value_at<V>(values, w.codes, first + i) * scale));
    };
    if (at % 2 != 0) one_by_one(i + 1);
    for (; i + V::kLanes <= end; i += V::kLanes)
      Out::store(to + i, V::mul(V::decode(table, w.codes + (first + i) / 2), scales));
    one_by_one(end);
  }
}

template <class V, class Out>
void decode_run(const Weight4& w, const typename V::Table& table, int64_t first, int64_t count,
                typename Out::Storage* to) {
  decode_run_with<V, Out>(w, table, first, count, to, [&](int64_t block) { return w.absmax[block]; });
}

template <class V>
void dequantize4_with(const Dequantize4& d, int64_t begin, int64_t end) {
  const Weight4 weight{d.codes, d.absmax, 1, d.count, d.block, d.code};
  with_elements<V>(d.element, d.element, [&](auto out) {
    using Out = decltype(out);
    decode_run<V, Out>(weight, table_of<V>(d.code), begin, end - begin,
                       static_cast<typename Out::Storage*>(d.values) + begin);
  });
}

template <class V>
void dequantize_rows4_with(const DequantizeRows4& d, int64_t begin, int64_t end) {
  const Weight4& w = d.weight;
  const auto table = table_of<V>(w.code);
  with_elements<V>(d.element, d.element, [&](auto out) {
    using Out = decltype(out);
    auto* const values = static_cast<typename Out::Storage*>(d.values);
    const auto decode_rows = [&](const auto& scale_of) {
      for (int64_t i = begin; i < end; ++i)
        decode_run_with<V, Out>(w, table, d.rows[i] * w.cols, w.cols, values + i * w.cols, scale_of);
    };
    const NestedScales4& nested = d.nested;
    if (nested.codes == nullptr) return decode_rows([&](int64_t block) { return w.absmax[block]; });
    decode_rows([&, offset = *nested.offset](int64_t block) {
      return nested.map[nested.codes[block]] * nested.absmax[block / kNestedBlock4] + offset;
    });
  });
}

}  // namespace mantissa::kernels::cpu
