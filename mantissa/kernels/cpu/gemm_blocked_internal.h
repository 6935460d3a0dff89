#pragma once

// The blocked product, written once for all vector tiers. This header follows the rules of
// elements_internal.h.

#include <cstdint>
#include <type_traits>
#include <utility>

#include "mantissa/kernels/cpu/activation_internal.h"
#include "mantissa/kernels/cpu/elements_internal.h"
#include "mantissa/kernels/cpu/gemm_kernel.h"

namespace mantissa::kernels::cpu {

/// Returns the number of steps of a micro-panel for a depth of `depth` elements of k.
template <class V>
int64_t packed_depth(int64_t depth) {
  return (depth + V::kSteps - 1) / V::kSteps;
}

/// pack_micro_panel() of a matrix whose elements of k are adjacent. A vector that Source reads holds kLanes *
/// V::kSteps of them; a step of the micro-panel holds V::kSteps.
template <class V, int kWidth, class Source, class Step>
void pack_along_k(const typename Source::Storage* from, int64_t lane_stride, int64_t lanes, int64_t depth,
                  float* to, Step step) {
  constexpr int64_t kMaxLanes = kWidth < V::kLanes ? kWidth : V::kLanes,
                    kDeep = int64_t{V::kLanes} * V::kSteps;
  for (int64_t begin = 0; begin < kWidth && begin < lanes; begin += V::kLanes) {
    const int64_t here = lanes - begin < kMaxLanes ? lanes - begin : kMaxLanes;
    const typename Source::Storage* const first = from + begin * lane_stride;
    for (int64_t next = 0; next < depth; next += kDeep) {
      // The last vector ends with the micro-panel: writing some steps twice costs less than reading a part of
      // a vector.
      const bool ends = depth - next < kDeep && depth >= kDeep && depth % V::kSteps == 0;
      const int64_t k = ends ? depth - kDeep : next;
      typename V::Float rows[V::kLanes];
      const int64_t left = depth - k < kDeep ? depth - k : kDeep;
      if (here == kMaxLanes && left == kDeep) {
#pragma GCC unroll 16
        for (int64_t lane = 0; lane < V::kLanes; ++lane)
          rows[lane] = lane < kMaxLanes ? Source::load(first + lane * lane_stride + k) : V::zero();
      } else {
        for (int64_t lane = 0; lane < V::kLanes; ++lane)
          rows[lane] = lane >= here    ? V::zero()
                       : left == kDeep ? Source::load(first + lane * lane_stride + k)
                                       : Source::load_some(first + lane * lane_stride + k, left);
      }
      V::transpose(rows);
      float* const out = to + k / V::kSteps * step + begin;
      if (left == kDeep) {
#pragma GCC unroll 16
        for (int64_t row = 0; row < V::kLanes; ++row) V::store(out + row * step, rows[row]);
      } else {
        for (int64_t row = 0; row < packed_depth<V>(left); ++row) V::store(out + row * step, rows[row]);
      }
    }
  }
}

/// Writes one micro-panel of `depth` steps of k, each with kWidth lanes (rows of a, columns of b): to[k *
/// kWidth + lane]. `lanes` of them exist; further lanes are 0 or undefined. The last step's vector may reach
/// past the micro-panel's end, where the next one will be. Steps may be further apart: to[k * step + lane].
template <class V, int kWidth, class Source, class Step = std::integral_constant<int64_t, kWidth>>
void pack_micro_panel(const typename Source::Storage* from, int64_t lane_stride, int64_t k_stride,
                      int64_t lanes, int64_t depth, float* to, Step step = {}) {
  constexpr int kVectors = (kWidth + V::kLanes - 1) / V::kLanes;
  if (lane_stride == 1 && lanes >= kVectors * V::kLanes) {
    for (int64_t k = 0; k < depth; ++k)
      for (int v = 0; v < kVectors; ++v)
        V::store(to + k * step + v * V::kLanes, Source::load(from + k * k_stride + v * V::kLanes));
    return;
  }
  if (lane_stride == 1) {
    const int64_t whole = lanes / V::kLanes * V::kLanes;
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t lane = 0; lane < whole; lane += V::kLanes)
        V::store(to + k * step + lane, Source::load(from + k * k_stride + lane));
      if (whole < lanes)
        V::store(to + k * step + whole, Source::load_some(from + k * k_stride + whole, lanes - whole));
    }
    return;
  }
  if (k_stride == 1) return pack_along_k<V, kWidth, Source>(from, lane_stride, lanes, depth, to, step);
  for (int64_t k = 0; k < depth; ++k)
    for (int v = 0; v < kVectors; ++v) {
      const int64_t here = lanes - v * V::kLanes < V::kLanes ? lanes - v * V::kLanes : V::kLanes;
      V::store(to + k * step + v * V::kLanes,
               Source::gather(from + k * k_stride + v * V::kLanes * lane_stride, lane_stride, here));
    }
}

/// The source of an operand's micro-panels: element (lane, k) is data[lane * lane_stride + k * k_stride].
struct MicroPanels {
  const void* data;
  int64_t lane_stride, k_stride;
  int64_t lanes;  // from here to the matrix's end
};

/// Packs the lanes [0, width) of `panels`, `depth` deep, into consecutive micro-panels of kWidth.
template <class V, int kWidth>
void pack(Element element, Element other, const MicroPanels& panels, int64_t width, int64_t depth,
          float* to) {
  if constexpr (V::kSteps == 2) {
    V::template pack_pairs<kWidth>(element, panels, width, depth, to);
  } else {
    with_elements<V>(element, other, [&](auto source) {
      using Source = decltype(source);
      // In ascending order, because pack_micro_panel() may write past a micro-panel's end.
      for (int64_t lane = 0; lane < width; lane += kWidth)
        pack_micro_panel<V, kWidth, Source>(
            static_cast<const typename Source::Storage*>(panels.data) + lane * panels.lane_stride,
            panels.lane_stride, panels.k_stride, panels.lanes - lane, depth, to + lane * depth);
    });
  }
}

/// A micro-kernel's left operand in the layout of pack(): element (row, k) is at [k * kMR + row].
template <class V>
struct PackedRows {
  static constexpr int64_t kRowStep = 1, kStep = V::kMR;
  PackedRows(const float* packed) : at(packed) {}
  int64_t run(int64_t depth) const { return depth; }  ///< steps until next_run() is due
  void next_run() {}
  const float* at;
};

/// The micro-kernel prefetches b into the L1 cache this many steps of k ahead. With AVX-512 a micro-panel of b
/// fills that cache, so each use reads it from L2. Without prefetching, the waits cost 1.5 % of a product's time on
/// a quiet machine and 6 % beside other programs.
constexpr int64_t kPrefetchedSteps = 16;

/// The micro-kernel, the innermost loop. It computes kTileRows rows and kTileVectors vectors of a micro-tile:
/// to[row * stride + column] becomes the sum over `depth` steps k of a(row, k) * b[k * kNR + column]. With
/// `accumulate`, the sum is added to it. The operands must be packed (pack()), because converting them in here
/// was measured to cost 15 %.
template <class V, class A, int kTileRows, int kTileVectors>
void micro_kernel(int64_t depth, A a, const float* b, float* to, int64_t stride, bool accumulate) {
  using Float = typename V::Float;
  // The sums are indexed by constants only (packs, no loop). Otherwise GCC 12 keeps them in memory, which is
  // 2.4 times slower.
  const auto run = [&]<int... kSum, int... kVector>(std::integer_sequence<int, kSum...>,
                                                    std::integer_sequence<int, kVector...>)
      __attribute__((always_inline)) {
    Float sums[] = {((void)kSum, V::zero())...};
    for (int64_t left = depth; left > 0;) {
      const int64_t steps = a.run(left);
#pragma GCC unroll 4
      for (int64_t k = 0; k < steps; ++k) {
        (__builtin_prefetch(b + (kPrefetchedSteps * V::kVectors + kVector) * V::kLanes), ...);
        const Float columns[] = {V::load(b + kVector * V::kLanes)...};
        ((sums[kSum] = V::multiply_packed(V::broadcast(a.at + kSum / kTileVectors * A::kRowStep),
                                          columns[kSum % kTileVectors], sums[kSum])),
         ...);
        a.at += A::kStep;
        b += V::kVectors * V::kLanes;
      }
      left -= steps;
      a.next_run();
    }
    if (accumulate)
      ((sums[kSum] =
            V::add(V::load(to + kSum / kTileVectors * stride + kSum % kTileVectors * V::kLanes), sums[kSum])),
       ...);
    (V::store(to + kSum / kTileVectors * stride + kSum % kTileVectors * V::kLanes, sums[kSum]), ...);
  };
  run(std::make_integer_sequence<int, kTileRows * kTileVectors>{},
      std::make_integer_sequence<int, kTileVectors>{});
}

/// micro_kernel() for each number of rows and vectors that an edge leaves, at [(rows - 1) * kVectors +
/// vectors - 1].
template <class V, class A = PackedRows<V>, typename = std::make_integer_sequence<int, V::kMR * V::kVectors>>
struct MicroKernels;
template <class V, class A, int... kIndex>
struct MicroKernels<V, A, std::integer_sequence<int, kIndex...>> {
  using Multiply = void(int64_t depth, A a, const float* b, float* to, int64_t stride, bool accumulate);
  static constexpr Multiply* kOf[] = {
      &micro_kernel<V, A, kIndex / V::kVectors + 1, kIndex % V::kVectors + 1>...};
};

template <class V>
typename V::Float load_from(const ConstMatrix& matrix, Element round_to, int64_t offset, int64_t stride,
                            int64_t count) {
  return with_elements<V>(
      matrix.element, round_to, [&](auto source) __attribute__((always_inline)) {
        using Source = decltype(source);
        const auto* const from = static_cast<const typename Source::Storage*>(matrix.data) + offset;
        if (stride != 1) return Source::gather(from, stride, count < V::kLanes ? count : V::kLanes);
        return count < V::kLanes ? Source::load_some(from, count) : Source::load(from);
      });
}

/// A rectangle of the result.
struct Tile {
  int64_t batch, row, col, rows, cols;
};

/// True if no sum has a NaN that store_pair() cannot store. NaNs from 16-bit values qualify, because their
/// last bits are 0; alpha may be a NaN that does not.
template <class V>
bool has_plain_sums(const Gemm& g) {
  return g.alpha == 1 && (g.a.element != Element::kFloat32 || g.b.element != Element::kFloat32);
}

/// Writes the finished sums, at sums[row * stride + column], to the result, and overwrites them. Their rows
/// are padded to whole vectors.
template <class V, class Out>
void finish_tile_as(const Gemm& g, const Tile& tile, float* sums, int64_t stride) {
  const auto alpha = V::broadcast(&g.alpha), beta = V::broadcast(&g.beta);
  // These are copies, because the compiler must assume that storing a vector may change `g` and `tile`.
  const bool adds = g.addend.data != nullptr, activates = g.activation != Activation::kNone;
  const int64_t rows = tile.rows, cols = tile.cols, out_step = g.out.col_stride;
  const int64_t whole = out_step == 1 ? cols / V::kLanes * V::kLanes : 0;
  if (!adds && !activates && whole == cols &&
      cols == V::kVectors * V::kLanes) {  // most micro-tiles: no case to distinguish
    auto* out = static_cast<typename Out::Storage*>(g.out.data) + tile.batch * g.out.batch_stride +
                tile.row * g.out.row_stride + tile.col;
    const int64_t out_stride = g.out.row_stride;
    if constexpr (V::kVectors == 2) {
      if (has_plain_sums<V>(g)) {
        for (int64_t i = 0; i < rows; ++i, sums += stride, out += out_stride)
          Out::store_pair(out, V::load(sums), V::load(sums + V::kLanes));
        return;
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < V::kVectors; ++v)
        Out::store(out + v * V::kLanes, V::mul(alpha, V::load(sums + v * V::kLanes)));
      sums += stride;
      out += out_stride;
    }
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    float* const row = sums + i * stride;
    const int64_t addend = tile.batch * g.addend.batch_stride + (tile.row + i) * g.addend.row_stride +
                           tile.col * g.addend.col_stride;
    auto* const out = static_cast<typename Out::Storage*>(g.out.data) + tile.batch * g.out.batch_stride +
                      (tile.row + i) * g.out.row_stride + tile.col * out_step;
    const auto finish = [&](int64_t j) __attribute__((always_inline)) {
      const auto value = V::mul(alpha, V::load(row + j));
      if (!adds) return value;
      return V::fma(
          beta,
          load_from<V>(g.addend, g.round_to, addend + j * g.addend.col_stride, g.addend.col_stride, cols - j),
          value);
    };
    if (activates) {
      for (int64_t j = 0; j < cols; j += V::kLanes) V::store(row + j, finish(j));
      activate_with<V>(g.activation, Element::kFloat32, row, row, cols);
    }
    for (int64_t j = 0; j < whole; j += V::kLanes)
      Out::store(out + j, activates ? V::load(row + j) : finish(j));
    for (int64_t j = whole; j < cols; j += V::kLanes)
      Out::scatter(out + j * out_step, out_step, cols - j < V::kLanes ? cols - j : V::kLanes,
                   activates ? V::load(row + j) : finish(j));
  }
}

template <class V>
void finish_tile(const Gemm& g, const Tile& tile, float* sums, int64_t stride) {
  with_elements<V>(g.out.element, g.round_to,
                   [&](auto out) { finish_tile_as<V, decltype(out)>(g, tile, sums, stride); });
}

/// The macro-kernel's loop over the micro-tiles of `block`, which is up to NR columns wide: multiplies a
/// packed block of a by a micro-panel of b, `depth` steps deep. `sums` keeps the sums between blocks of k; if
/// there is only one block, they stay in a micro-tile's own memory. pack_a(i, rows) is called before rows [i,
/// i + rows) of the block are read, and finish(tile, sums, stride) when the sums of a micro-tile are complete.
template <class V, class PackA, class Finish>
void multiply_micro_panel(const Tile& block, int64_t depth, bool first, bool last, const float* a,
                          const PackA& pack_a, const float* b, float* sums, int64_t stride,
                          const Finish& finish) {
  constexpr int kNR = V::kVectors * V::kLanes;
  alignas(64) float tile_sums[V::kMR * kNR];
  const int64_t vectors = (block.cols + V::kLanes - 1) / V::kLanes;
  for (int64_t i = 0; i < block.rows; i += V::kMR) {
    const int64_t rows = block.rows - i < V::kMR ? block.rows - i : V::kMR;
    pack_a(i, rows);
    const bool only = first && last;
    float* const to = only ? tile_sums : sums + i * stride;
    const int64_t to_stride = only ? kNR : stride;
    MicroKernels<V>::kOf[(rows - 1) * V::kVectors + vectors - 1](depth, a + i * depth, b, to, to_stride,
                                                                 !first);
    if (last) finish(Tile{block.batch, block.row + i, block.col, rows, block.cols}, to, to_stride);
  }
}

/// Returns the address of element `index` of an operand.
template <class V>
const void* element_at(const ConstMatrix& matrix, int64_t index) {
  return static_cast<const char*>(matrix.data) + index * element_size<V>(matrix.element);
}

template <class V>
constexpr int64_t least(int64_t x, int64_t y) {
  return x < y ? x : y;
}

/// A block of an operand that is about to be packed: lanes [begin, begin + count) of term `term`, from element
/// `k` on, `depth` elements deep. The lanes are rows of a or columns of b.
struct PackedBlock {
  int64_t batch, term, begin, count, k, depth;
};

/// The operands of a product of floats, and what follows the sums. gemm_blocked() takes other operands that
/// have these functions: the codes of weights, for example.
template <class V>
struct GemmOperands {
  const Gemm& g;

  void pack_a(const PackedBlock& block, float* to) const {
    const int64_t at = block.batch * g.a.batch_stride + block.term * g.a.term_stride +
                       block.begin * g.a.row_stride + block.k * g.a.col_stride;
    pack<V, V::kMR>(g.a.element, g.b.element,
                    {element_at<V>(g.a, at), g.a.row_stride, g.a.col_stride, g.m - block.begin}, block.count,
                    block.depth, to);
  }
  void pack_b(const PackedBlock& block, float* to) const {
    const int64_t at = block.batch * g.b.batch_stride + block.term * g.b.term_stride +
                       block.k * g.b.row_stride + block.begin * g.b.col_stride;
    pack<V, V::kVectors * V::kLanes>(
        g.b.element, g.a.element, {element_at<V>(g.b, at), g.b.col_stride, g.b.row_stride, g.n - block.begin},
        block.count, block.depth, to);
  }
  void finish(const Tile& tile, float* sums, int64_t stride) const { finish_tile<V>(g, tile, sums, stride); }
};

/// Computes a part of a product. Of `g`, only the sizes are read here.
template <class V, class Operands>
void gemm_blocked(const Gemm& g, const GemmPart& part, const GemmScratch& scratch, const Operands& operands) {
  constexpr int kNR = V::kVectors * V::kLanes;
  constexpr int64_t kDepth = kGemmKC * V::kSteps;
  const auto finish = [&](const Tile& tile, float* sums, int64_t stride) {
    operands.finish(tile, sums, stride);
  };
  for (int64_t col = part.col_begin; col < part.col_end; col += kGemmNC) {
    const int64_t cols = least<V>(kGemmNC, part.col_end - col);
    const int64_t stride = (cols + kNR - 1) / kNR * kNR;
    for (int64_t rows_begin = part.row_begin; rows_begin < part.row_end; rows_begin += kGemmSumRows) {
      const int64_t rows_end = least<V>(rows_begin + kGemmSumRows, part.row_end);
      const int64_t blocks = (g.k + kDepth - 1) / kDepth, all_blocks = blocks * g.terms;
      for (int64_t block = 0; block < all_blocks; ++block) {
        const int64_t term = block / blocks, k = block % blocks * kDepth;
        const int64_t depth = least<V>(kDepth, g.k - k), steps = packed_depth<V>(depth);
        // A micro-panel of b is packed right before its first use. If that is its only use, it is always
        // packed into the same memory, which stays in the L1 cache.
        const int64_t b_step = rows_end - rows_begin > kGemmMC ? steps : 0;
        for (int64_t row = rows_begin; row < rows_end; row += kGemmMC) {
          const int64_t rows = least<V>(kGemmMC, rows_end - row);
          for (int64_t j = 0; j < cols; j += kNR) {
            const int64_t here = least<V>(kNR, cols - j);
            float* const panel = scratch.b + j * b_step;
            if (row == rows_begin) operands.pack_b({part.batch, term, col + j, here, k, depth}, panel);
            // The rows of a are also packed right before their first use: packing overlaps with waiting for a
            // micro-tile's sums.
            const auto pack_a = [&](int64_t i, int64_t count) {
              if (j == 0)
                operands.pack_a({part.batch, term, row + i, count, k, depth}, scratch.a + i * steps);
            };
            multiply_micro_panel<V>({part.batch, row, col + j, rows, here}, steps, block == 0,
                                    block + 1 == all_blocks, scratch.a, pack_a, panel,
                                    scratch.sums + (row - rows_begin) * stride + j, stride, finish);
          }
        }
      }
    }
  }
}

template <class V>
void gemm_blocked(const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  gemm_blocked<V>(g, part, scratch, GemmOperands<V>{g});
}

}  // namespace mantissa::kernels::cpu
