// Products with 4-bit weights in the tiles of AMX, which multiply bf16 and sum in float32. A value of float32 is the
// sum of three bf16 numbers, and one of fp16 the sum of two. The products of these numbers that float32 can tell from
// 0 are six and four, and AMX still computes them in less time than AVX-512 the one of float32.

#include <cstdint>
#include <immintrin.h>

#include "mantissa/kernels/cpu/amx_bf16/micro_kernel4_internal.h"
#include "mantissa/kernels/cpu/product4_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu::amx_bf16 {
namespace {

/// Configures eight tiles of 16 lines of 64 bytes for this thread, and afterwards restores what was configured.
class TileConfig {
 public:
  TileConfig() {
    complete_stores();  // before_'s own zeros
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
  constexpr float kMaxValue = 0x1.FEp127F, kMinValue = 0x1p-100F;
  const float most = _mm512_reduce_max_ps(largest);
  return !Single::is_nan(not_finite) && most <= kMaxValue && (most >= kMinValue || most == 0);
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

/// Makes the sums of a row that the terms do not represent: those of earlier blocks, which tiles would round to 0 below
/// 2^-126, plus the row's products.
template <int kTerms, class Source>
void add_row(const Row<Source>& row, int64_t depth, const float* b, const float* earlier, float* sums) {
  alignas(64) float values[kTileKC4];
  for (int64_t k = 0; k < depth; k += 16) Single::store(values + k, row.load(k));
  const float* const weight = b + kTerms * kPanelFloats;
  for (int64_t v = 0; v < kTile4; v += 16) {
    Float total = Single::zero();
    for (int64_t k = 0; k < depth; ++k)
      total = Single::fma(Single::set(values[k]),
                          Single::load(weight + k % 2 * kPanelFloats + k / 2 * kTile4 + v), total);
    Single::store(sums + v, Single::add(Single::load(earlier + v), total));
  }
}

/// The rows of a group that are multiplied in tiles.
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

  void add(uint32_t others, const float* b, const float* earlier, float* sums) const {
    for (; others != 0; others &= others - 1) {
      const int64_t line = __builtin_ctz(others), at = line * kTile4;
      with_row(line, [&](const auto& row) {
        add_row<kTerms>(row, depth_, b, earlier + at, sums + at);
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

/// Packs a group's vector rows, followed by zeros up to a whole number of tiles.
void pack_vector_rows(const ConstMatrix& a, int64_t begin, int64_t count, int64_t k, int64_t depth,
                      float* to) {
  const MicroPanels rows{element_at<Single>(a, begin * a.row_stride + k * a.col_stride), a.row_stride,
                         a.col_stride, count};
  pack<Single, kVectorRows4>(a.element, a.element, rows, count, depth, to);
  const int64_t end = (depth + kDeep - 1) / kDeep * kDeep * kVectorRows4;
  for (int64_t i = depth * kVectorRows4; i < end; ++i) to[i] = 0;
}

/// Packs a panel of the weight, followed by zeros up to a whole number of tiles.
template <int kTerms>
void pack_panel(const Operands4<Terms4<kTerms>>& operands, const PackedBlock& block, float* to) {
  operands.pack_b(block, to);
  const int64_t end = (block.depth + kDeep - 1) / kDeep * kDeep / 2 * kTile4;
  for (int64_t i = (block.depth + 1) / 2 * kTile4; i < end; i += 16)
    for (int64_t panel = 0; panel < panels_of4<Single>(kTerms); ++panel)
      Single::store(to + panel * kPanelFloats + i, Single::zero());
}

/// Copies the sums of a micro-tile, which are 0 unless there are any.
void keep_sums(const float* sums, bool are_there, float* to) {
  for (int64_t i = 0; i < kTile4 * kTile4; i += 16)
    Single::store(to + i, are_there ? Single::load(sums + i) : Single::zero());
}

template <int kTerms>
void multiply_part(const Product4& p, const Gemm& g, const GemmPart& part, float* scratch) {
  const TileConfig config;
  const Operands4<Terms4<kTerms>> operands(g, p.weight, p.transposed);
  const int64_t in_group = group_rows4<Single>(kTerms, g.m);
  const int64_t block_rows = (kGemmSumRows + in_group - 1) / in_group * in_group;
  const auto size =
      tile_scratch4<Single>(kTerms, in_group, part.row_end - part.row_begin, part.col_end - part.col_begin);
  float *const a = scratch, *const b = a + size.rows, *const sums = b + size.panel;
  uint32_t others[kGemmSumRows / kTile4];
  alignas(64) float earlier[kTile4 * kTile4];
  for (int64_t col = part.col_begin; col < part.col_end; col += kGemmNC) {
    const int64_t cols = least<Single>(kGemmNC, part.col_end - col), panels = (cols + kTile4 - 1) / kTile4;
    for (int64_t row = part.row_begin; row < part.row_end; row += block_rows) {
      const int64_t rows = least<Single>(block_rows, part.row_end - row);
      for (int64_t k = 0; k < g.k; k += kTileKC4) {
        const int64_t depth = least<Single>(kTileKC4, g.k - k);
        for (int64_t j = 0; j < cols; j += kTile4) {
          const int64_t here = least<Single>(kTile4, cols - j);
          pack_panel<kTerms>(operands, {0, 0, col + j, here, k, depth}, b);
          for (int64_t i = 0; i < rows; i += in_group) {
            const int64_t count = least<Single>(in_group, rows - i), in_tiles = least<Single>(kTile4, count),
                          group = i / in_group;
            const Rows<kTerms> lines(p.a, row + i, in_tiles, k, depth);
            float* const tiles = a + group * size.group;
            float* const vector = tiles + kPanelFloats * kTerms;
            if (j == 0) {
              others[group] = lines.pack(tiles);
              if (count > kTile4) pack_vector_rows(p.a, row + i + kTile4, count - kTile4, k, depth, vector);
            }
            float* const to = sums + (group * panels + j / kTile4) * in_group * kTile4;
            if (others[group] != 0) keep_sums(to, k > 0, earlier);
            const PackedGroup4 packed{tiles, vector, i + in_group < rows ? tiles + size.group : a};
            if (count > kTile4) {
              multiply_group<kTerms, (kTerms > 1)>(packed, b, depth, to, k > 0);
            } else {
              multiply_group<kTerms, false>(packed, b, depth, to, k > 0);
            }
            lines.add(others[group], b, earlier, to);
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
