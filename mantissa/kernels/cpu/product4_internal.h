#pragma once

// Products with 4-bit weights for more than a few rows, for all vector tiers: the weight is decoded into the
// packed micro-panels of the product. This header follows the rules of quantized4_internal.h. V also has these
// members:
//
//   Single               the tier's V with kSteps = 1, which is V itself unless V packs pairs
//   kTerms               if V packs pairs: the bf16 numbers whose sum is a value; 1 rounds the value to bf16
//   store_pairs(to, first, second)   if V packs pairs: stores the pairs of the lanes, one vector for each term

#include <cstdint>
#include <utility>

#include "mantissa/kernels/cpu/gemm_blocked_internal.h"
#include "mantissa/kernels/cpu/quantized4_internal.h"

namespace mantissa::kernels::cpu {

/// Operand b of a product: the codes of a weight.
template <class V>
struct Operands4 : GemmOperands<V> {
  using Float = typename V::Float;
  using Single = typename V::Single;
  static constexpr int kLanes = V::kLanes, kVectors = V::kVectors, kNR = kLanes * kVectors;
  static constexpr int64_t kWord = 8;     ///< codes that are loaded as one lane
  static constexpr int64_t kChunk4 = 64;  ///< steps of k that are decoded one by one and then packed

  Operands4(const Gemm& gemm, const Weight4& weight, bool is_transposed)
      : GemmOperands<V>{gemm},
        w(weight),
        transposed(is_transposed),
        element(gemm.a.element),
        table(table_of<V>(weight.code)) {}

  void pack_b(const PackedBlock& block, float* to) const {
    const bool is_plain = w.cols % (transposed ? kWord : kLanes) == 0;
    if (!is_plain) return pack_chunks(block, to);
    if constexpr (is_rounded_by_pairing()) return pack_as<Elements<V, Element::kFloat32>>(block, to);
    if (element == Element::kBFloat16)
      return pack_as<Elements<V, Element::kFloat32, Element::kBFloat16>>(block, to);
    if (element == Element::kFloat16)
      return pack_as<Elements<V, Element::kFloat32, Element::kFloat16>>(block, to);
    pack_as<Elements<V, Element::kFloat32>>(block, to);
  }

  const Weight4& w;
  const bool transposed;
  const Element element;  ///< of a, to which the weight is rounded
  const int shift =
      __builtin_ctzll(static_cast<uint64_t>(w.block));  ///< a division per vector takes longer than decoding
  const typename V::Table table;

 private:
  static constexpr bool is_rounded_by_pairing() {
    if constexpr (V::kSteps == 2) return V::kTerms == 1;
    return false;
  }

  template <class Rounded>
  void pack_as(const PackedBlock& block, float* to) const {
    transposed ? pack_words<Rounded>(block, to) : pack_rows<Rounded>(block, to);
  }

  /// Stores two steps of k: as they are, or as pairs.
  template <class Rounded>
  [[gnu::always_inline]] inline void store_steps(float* to, Float first, Float second) const {
    if constexpr (V::kSteps == 2) {
      V::store_pairs(to, Rounded::widen(first), Rounded::widen(second));
    } else {
      V::store(to, Rounded::widen(first));
      V::store(to + kNR, Rounded::widen(second));
    }
  }

  /// The scales of the lanes at step k of row `begin` of the weight; 0 for lanes that do not exist.
  void load_scales(const PackedBlock& block, int64_t k, float* scales) const {
    if (w.cols % w.block == 0) {
      const int64_t step = w.cols / w.block;
      const float* const from = w.absmax + block.begin * step + k / w.block;
      for (int64_t lane = 0; lane < block.count; ++lane) scales[lane] = from[lane * step];
      return;
    }
    for (int64_t lane = 0; lane < block.count; ++lane)
      scales[lane] = w.absmax[((block.begin + lane) * w.cols + k) / w.block];
  }

  /// Packs w^T. The lanes are rows of the weight, whose codes are adjacent along k: eight codes of each lane
  /// are loaded together, and each step of k shifts its codes to the lowest bits.
  template <class Rounded>
  void pack_words(const PackedBlock& block, float* to) const {
    constexpr int64_t kMaxWords = kGemmKC * V::kSteps / kWord;
    alignas(64) float words[kMaxWords * kNR + kGemmSlack], scales[kNR] = {};
    const int64_t count = block.depth / kWord, step = w.cols / kWord;
    pack_micro_panel<Single, kNR, Elements<Single, Element::kFloat32>>(
        reinterpret_cast<const float*>(w.codes + (block.begin * w.cols + block.k) / 2), step, 1, block.count,
        count, words);
    const bool changes_often = w.cols % w.block != 0;
    const int64_t vectors = (block.count + kLanes - 1) / kLanes;
    for (int64_t word = 0; word < count; ++word) {
      const int64_t k = block.k + word * kWord;
      if (word == 0 || changes_often || k % w.block == 0) load_scales(block, k, scales);
      float* const out = to + word * (kWord / V::kSteps) * kNR;
      for (int64_t v = 0; v < vectors; ++v) {
        const Float codes = V::load(words + word * kNR + v * kLanes), scale = V::load(scales + v * kLanes);
        decode_word<Rounded>(codes, scale, out + v * kLanes, std::make_integer_sequence<int, kWord / 2>{});
      }
    }
  }

  template <class Rounded, int... kPair>
  [[gnu::always_inline]] inline void decode_word(Float codes, Float scale, float* to,
                                                 std::integer_sequence<int, kPair...>) const {
    (store_steps<Rounded>(to + 2 / V::kSteps * kPair * kNR,
                          V::mul(V::template look_up<2 * kPair>(table, codes), scale),
                          V::mul(V::template look_up<2 * kPair + 1>(table, codes), scale)),
     ...);
  }

  /// The values of kLanes columns from `column` on, in row k.
  [[gnu::always_inline]] inline Float row_values(int64_t k, int64_t column) const {
    const int64_t index = k * w.cols + column;
    return V::mul(V::decode(table, w.codes + index / 2), V::set(w.absmax[index >> shift]));
  }

  /// Packs w. The lanes are columns of the weight, whose codes are adjacent.
  template <class Rounded>
  void pack_rows(const PackedBlock& block, float* to) const {
    for (int64_t v = 0; v < block.count; v += kLanes) {
      const int64_t column = block.begin + v, end = block.k + block.depth;
      float* out = to + v;
      int64_t k = block.k;
      for (; k + 2 <= end; k += 2, out += 2 / V::kSteps * kNR)
        store_steps<Rounded>(out, row_values(k, column), row_values(k + 1, column));
      if (k == end) continue;
      if constexpr (V::kSteps == 2) {
        V::store_pairs(out, Rounded::widen(row_values(k, column)), V::zero());
      } else {
        V::store(out, Rounded::widen(row_values(k, column)));
      }
    }
  }

  /// Packs either by way of floats, for rows that do not fill whole vectors.
  void pack_chunks(const PackedBlock& block, float* to) const {
    using Plain = Elements<Single, Element::kFloat32>;
    const auto single_table = table_of<Single>(w.code);
    alignas(64) float values[kChunk4 * kNR];
    for (int64_t k = 0; k < block.depth; k += kChunk4) {
      const int64_t depth = block.depth - k < kChunk4 ? block.depth - k : kChunk4;
      const int64_t lines = transposed ? block.count : depth, length = transposed ? depth : block.count;
      const int64_t line_step = transposed ? kChunk4 : kNR;
      for (int64_t line = 0; line < lines; ++line) {
        const int64_t first = transposed ? (block.begin + line) * w.cols + block.k + k
                                         : (block.k + k + line) * w.cols + block.begin;
        decode_run<Single, Plain>(w, single_table, first, length, values + line * line_step);
      }
      const MicroPanels panels{values, transposed ? kChunk4 : 1, transposed ? 1 : kNR, block.count};
      if constexpr (V::kSteps == 1) {
        pack<V, kNR>(Element::kFloat32, element, panels, block.count, depth, to + k / V::kSteps * kNR);
      } else {
        alignas(64) float steps[kChunk4 * kNR + kGemmSlack];
        pack<Single, kNR>(Element::kFloat32, element, panels, block.count, depth, steps);
        for (int64_t step = 0; step < depth; step += 2)
          for (int64_t v = 0; v < block.count; v += kLanes)
            V::store_pairs(to + (k + step) / 2 * kNR + v, V::load(steps + step * kNR + v),
                           step + 1 < depth ? V::load(steps + (step + 1) * kNR + v) : V::zero());
      }
    }
  }
};

template <class V>
void product4_with(const Product4& p, const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  gemm_blocked<V>(g, part, scratch, Operands4<V>(g, p.weight, p.transposed));
}

}  // namespace mantissa::kernels::cpu
