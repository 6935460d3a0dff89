// Products with 4-bit weights in the tiles of AMX, which multiply bf16 and sum in float32. A value of float32 is the
// sum of three bf16 numbers, and one of fp16 the sum of two. The products of these numbers that float32 can tell from
// 0 are six and four, and AMX still computes them in less time than AVX-512 the one of float32.

#include <cstdint>
#include <immintrin.h>

#include "mantissa/kernels/cpu/avx512/code4_internal.h"
#include "mantissa/kernels/cpu/avx512_bf16/vector_internal.h"
#include "mantissa/kernels/cpu/product4_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu::amx_bf16 {
namespace {

using Single = avx512::Avx512Code4;
using Float = __m512;

constexpr int64_t kTileFloats = 256;            // a tile of 16 lines of 64 bytes
constexpr int64_t kDeep = 32, kTileLines = 16;  // steps of k that a tile holds, and its lines
constexpr int64_t kPanelFloats = kTileKC4 / 2 * kTile4;

Float first_of(Float pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16)); }
Float second_of(Float pairs) {
  return _mm512_and_ps(pairs, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

/// AVX-512 with packed panels of pairs of bf16: kNumbers panels, whose sum is the weight.
template <int kNumbers>
struct Terms4 : Single {
  using Single = avx512::Avx512Code4;
  static constexpr int kSteps = 2, kTerms = kNumbers;

  static void store_pairs(float* to, Float first, Float second) {
#pragma GCC unroll 3
    for (int term = 0; term < kTerms; ++term) {
      const Float pairs = avx512_bf16::pairs_of_lanes(first, second);
      store(to + term * kPanelFloats, pairs);
      if (term + 1 == kTerms) return;
      first = sub(first, first_of(pairs));
      second = sub(second, second_of(pairs));
    }
  }
};

/// Completes the stores before it. GCC 12's intrinsics for tiles do not tell the compiler what memory they read and
/// write, so that it may move or drop those stores.
[[gnu::always_inline]] inline void complete_stores() { __asm__ volatile("" ::: "memory"); }

/// Configures eight tiles of 16 lines of 64 bytes for this thread, and afterwards restores what was configured.
class TileConfig {
 public:
  TileConfig() {
    _tile_storeconfig(&before_);
    complete_stores();
    Config config;
    for (int i = 0; i < 8; ++i) {
      config.bytes[i] = 64;
      config.lines[i] = kTileLines;
    }
    config.palette = 1;
    complete_stores();
    _tile_loadconfig(&config);
  }
  ~TileConfig() {
    if (before_.palette == 0) {
      _tile_release();
    } else {
      _tile_loadconfig(&before_);
    }
  }
  TileConfig(const TileConfig&) = delete;
  TileConfig& operator=(const TileConfig&) = delete;

 private:
  struct alignas(64) Config {
    uint8_t palette = 0, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t lines[16] = {};
  };
  Config before_;
};

/// Reads a row of a, whose elements are converted to float32.
template <class Source>
struct Row {
  const typename Source::Storage* from;
  int64_t step, count;

  [[gnu::always_inline]] inline Float load(int64_t k) const {
    const int64_t left = count - k;
    if (left <= 0) return Single::zero();
    if (step != 1) return Source::gather(from + k * step, step, left < 16 ? left : 16);
    return left < 16 ? Source::load_some(from + k, left) : Source::load(from + k);
  }
};

/// Whether the sum of kTerms bf16 numbers can be each value of a row: values must be finite in bf16, and the smaller
/// numbers of the largest value no denormals, which AMX takes for 0.
bool is_representable(Float largest, Float not_finite) {
  constexpr float kMost = 0x1.FEp127F, kLeast = 0x1p-100F;
  const float most = _mm512_reduce_max_ps(largest);
  return !Single::is_nan(not_finite) && most <= kMost && (most >= kLeast || most == 0);
}

/// Packs a row into line `line` of the tiles of a micro-tile's operand a, which has two tiles for each term of each
/// kDeep steps. Returns whether the terms represent the row.
template <int kTerms, class Source>
bool pack_row(const Row<Source>& row, int64_t depth, int64_t line, float* to) {
  Float largest = Single::zero(), not_finite = Single::zero();  // 0 times inf or NaN is NaN
  float* out = to + line / kTileLines * kTileFloats + line % kTileLines * 16;
  for (int64_t k = 0; k < depth; k += kDeep) {
    Float first = row.load(k), second = row.load(k + 16);
    if constexpr (kTerms > 1) {
      largest = Single::max(Single::max(Single::abs(first), Single::abs(second)), largest);
      not_finite = Single::fma(second, Single::zero(), Single::fma(first, Single::zero(), not_finite));
    }
#pragma GCC unroll 3
    for (int term = 0; term < kTerms; ++term, out += 2 * kTileFloats) {
      const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
      _mm512_store_si512(out, both);
      if (term + 1 == kTerms) continue;
      first = Single::sub(first, Single::widen_bf16(_mm512_castsi512_si256(both)));
      second = Single::sub(second, Single::widen_bf16(_mm512_extracti64x4_epi64(both, 1)));
    }
  }
  return kTerms == 1 || is_representable(largest, not_finite);
}

template <int kTerms>
void clear_row(int64_t depth, int64_t line, float* to) {
  float* out = to + line / kTileLines * kTileFloats + line % kTileLines * 16;
  for (int64_t k = 0; k < depth; k += kDeep)
    for (int term = 0; term < kTerms; ++term, out += 2 * kTileFloats) Single::store(out, Single::zero());
}

/// Multiplies a packed micro-tile's operands: sums[line * kTile4 + column].
template <int kTerms>
void multiply(const float* a, const float* b, int64_t depth, float* sums, bool accumulate) {
  constexpr int64_t kLine = kTile4 * sizeof(float);
  complete_stores();
  float* const lower = sums + kTileLines * kTile4;
  if (accumulate) {
    _tile_loadd(0, sums, kLine);
    _tile_loadd(1, sums + 16, kLine);
    _tile_loadd(2, lower, kLine);
    _tile_loadd(3, lower + 16, kLine);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const auto load_a = [&](int64_t term) __attribute__((always_inline)) {
    _tile_loadd(4, a + term * 2 * kTileFloats, 64);
    _tile_loadd(5, a + (term * 2 + 1) * kTileFloats, 64);
  };
  const auto load_b = [&](int64_t term) __attribute__((always_inline)) {
    _tile_loadd(6, b + term * kPanelFloats, kLine);
    _tile_loadd(7, b + term * kPanelFloats + 16, kLine);
  };
  const auto add_products = []() __attribute__((always_inline)) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  for (int64_t k = 0; k < depth; k += kDeep) {
    // The smaller products come first where that costs no further load.
    load_a(0);
    if constexpr (kTerms == 3) {
      load_b(2);
      add_products();
    }
    if constexpr (kTerms > 1) {
      load_b(1);
      add_products();
    }
    load_b(0);
    add_products();
    if constexpr (kTerms > 1) {
      load_a(1);
      add_products();
      load_b(1);
      add_products();
    }
    if constexpr (kTerms == 3) {
      load_a(2);
      load_b(0);
      add_products();
    }
    a += kTileFloats * 2 * kTerms;
    b += kDeep / 2 * kTile4;
  }
  _tile_stored(0, sums, kLine);
  _tile_stored(1, sums + 16, kLine);
  _tile_stored(2, lower, kLine);
  _tile_stored(3, lower + 16, kLine);
}

/// Adds the products of a row that the terms do not represent. Those of the weight are added up to float32 again.
template <int kTerms, class Source>
void add_row(const Row<Source>& row, int64_t depth, const float* b, float* sums) {
  alignas(64) float values[kTileKC4];
  for (int64_t k = 0; k < depth; k += 16) Single::store(values + k, row.load(k));
  for (int64_t v = 0; v < kTile4; v += 16) {
    Float total = Single::zero();
    for (int64_t k = 0; k < depth; ++k) {
      Float weight = Single::zero();
      for (int term = kTerms; term-- > 0;) {
        const Float pairs = Single::load(b + term * kPanelFloats + k / 2 * kTile4 + v);
        weight = Single::add(weight, k % 2 == 0 ? first_of(pairs) : second_of(pairs));
      }
      total = Single::fma(Single::set(values[k]), weight, total);
    }
    Single::store(sums + v, Single::add(Single::load(sums + v), total));
  }
}

/// The rows of one micro-tile's operand a.
template <int kTerms>
class Rows {
 public:
  Rows(const ConstMatrix& a, int64_t begin, int64_t count, int64_t k, int64_t depth)
      : a_(a), begin_(begin), count_(count), k_(k), depth_(depth) {}

  /// Packs the rows. Returns those that have to be added by add(), one bit for each.
  uint32_t pack(float* to) const {
    uint32_t others = 0;
    for (int64_t line = 0; line < kTile4; ++line) {
      if (line < count_ &&
          with_row(line, [&](const auto& row) { return pack_row<kTerms>(row, depth_, line, to); }))
        continue;
      clear_row<kTerms>(depth_, line, to);
      if (line < count_) others |= uint32_t{1} << line;
    }
    return others;
  }

  void add(uint32_t others, const float* b, float* sums) const {
    for (; others != 0; others &= others - 1) {
      const int64_t line = __builtin_ctz(others);
      with_row(line, [&](const auto& row) {
        add_row<kTerms>(row, depth_, b, sums + line * kTile4);
        return true;
      });
    }
  }

 private:
  template <class F>
  bool with_row(int64_t line, const F& f) const {
    return with_elements<Single>(a_.element, a_.element, [&](auto source) {
      using Source = decltype(source);
      const auto* const from = static_cast<const typename Source::Storage*>(a_.data) +
                               (begin_ + line) * a_.row_stride + k_ * a_.col_stride;
      return f(Row<Source>{from, a_.col_stride, depth_});
    });
  }

  const ConstMatrix& a_;
  int64_t begin_, count_, k_, depth_;
};

/// Packs a panel of the weight, followed by zeros up to a whole number of tiles.
template <int kTerms>
void pack_panel(const Operands4<Terms4<kTerms>>& operands, const PackedBlock& block, float* to) {
  operands.pack_b(block, to);
  const int64_t end = (block.depth + kDeep - 1) / kDeep * kDeep / 2 * kTile4;
  for (int64_t i = (block.depth + 1) / 2 * kTile4; i < end; i += 16)
    for (int term = 0; term < kTerms; ++term) Single::store(to + term * kPanelFloats + i, Single::zero());
}

template <int kTerms>
void multiply_part(const Product4& p, const Gemm& g, const GemmPart& part, float* scratch) {
  const TileConfig config;
  const Operands4<Terms4<kTerms>> operands(g, p.weight, p.transposed);
  const auto size =
      tile_scratch4<Single>(kTerms, part.row_end - part.row_begin, part.col_end - part.col_begin);
  float *const a = scratch, *const b = a + size.rows, *const sums = b + size.panel;
  constexpr int64_t kRowFloats = kPanelFloats * kTerms;  // of a micro-tile's operand a
  uint32_t others[kGemmSumRows / kTile4];
  for (int64_t col = part.col_begin; col < part.col_end; col += kGemmNC) {
    const int64_t cols = least<Single>(kGemmNC, part.col_end - col), panels = (cols + kTile4 - 1) / kTile4;
    for (int64_t row = part.row_begin; row < part.row_end; row += kGemmSumRows) {
      const int64_t rows = least<Single>(kGemmSumRows, part.row_end - row);
      for (int64_t k = 0; k < g.k; k += kTileKC4) {
        const int64_t depth = least<Single>(kTileKC4, g.k - k);
        for (int64_t j = 0; j < cols; j += kTile4) {
          const int64_t here = least<Single>(kTile4, cols - j);
          pack_panel<kTerms>(operands, {0, 0, col + j, here, k, depth}, b);
          for (int64_t i = 0; i < rows; i += kTile4) {
            const int64_t count = least<Single>(kTile4, rows - i), tile = i / kTile4;
            const Rows<kTerms> lines(p.a, row + i, count, k, depth);
            if (j == 0) others[tile] = lines.pack(a + tile * kRowFloats);
            float* const to = sums + (tile * panels + j / kTile4) * kTile4 * kTile4;
            multiply<kTerms>(a + tile * kRowFloats, b, depth, to, k > 0);
            lines.add(others[tile], b, to);
            if (k + depth == g.k) finish_tile<Single>(g, {0, row + i, col + j, count, here}, to, kTile4);
          }
        }
      }
    }
  }
}

}  // namespace

void tiles4(const Product4& p, const Gemm& g, const GemmPart& part, float* scratch) {
  switch (terms_of4<Single>(p.a.element)) {
    case 1:
      return multiply_part<1>(p, g, part, scratch);
    case 2:
      return multiply_part<2>(p, g, part, scratch);
    default:
      return multiply_part<3>(p, g, part, scratch);
  }
}

}  // namespace mantissa::kernels::cpu::amx_bf16
