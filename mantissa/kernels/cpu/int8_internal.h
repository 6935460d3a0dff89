#pragma once

// Products of 8-bit integers, written once for all vector tiers. The blocked product of gemm_blocked_internal.h
// multiplies them: each lane of a micro-panel holds V::kSteps codes, and each sum is an int32 in a lane of a
// float vector. This header follows the rules of elements_internal.h. V also has these members:
//
//   Plain                  the tier's V for floats
//   LeftCodes, RightCodes  read kLanes * kSteps adjacent codes of a and of b as lanes of a micro-panel, with
//                          load() and load_some() of Elements
//   add                    adds int32
//   to_floats(x)           converts int32 to float32
//   store_rounded(to, x)   rounds 32 values, of magnitudes up to 127, and stores them as int8
//   load_codes(from)       kLanes int8 as floats
//   kOffset                LeftCodes adds this to each code: 0 or 128
//   add_columns(sums, x)   if kOffset is not 0: adds the codes of each lane to its sum

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mantissa/kernels/cpu/gemm_blocked_internal.h"
#include "mantissa/kernels/cpu/int8_kernel.h"

namespace mantissa::kernels::cpu {

/// The values that are rounded and stored together.
constexpr int64_t kInt8Group = 32;

/// Loads the vector at `i` of `count` values; lanes behind the end are 0.
template <class V, class Source>
typename V::Float load_row(const typename Source::Storage* from, int64_t i, int64_t count) {
  if (count - i >= V::kLanes) return Source::load(from + i);
  return i < count ? Source::gather(from + i, 1, count - i) : V::zero();
}

/// Returns the largest magnitude below `threshold`, or NaN if there is a NaN. Sets `reaches` if any magnitude
/// is not below it.
template <class V, class Source>
float row_scale(const typename Source::Storage* from, int64_t count, float threshold, bool& reaches) {
  auto largest = V::zero(), largest_of_all = V::zero(), nan = V::zero();
  const auto limit = V::set(threshold);
  for (int64_t i = 0; i < count; i += V::kLanes) {
    const auto magnitude = V::abs(load_row<V, Source>(from, i, count));
    largest_of_all = V::max(magnitude, largest_of_all);  // not a NaN
    // limit - magnitude is positive for the values that count.
    largest = V::max(largest, V::where_positive(V::sub(limit, magnitude), magnitude, V::zero()));
    nan = V::add(nan, V::sub(magnitude, V::min(magnitude, V::set(3.4028234663852886e38F))));
  }
  alignas(64) float lanes[V::kLanes], all[V::kLanes];
  V::store(lanes, largest);
  V::store(all, largest_of_all);
  float result = 0, result_of_all = 0;
  for (int64_t i = 0; i < V::kLanes; ++i) {
    result = lanes[i] > result ? lanes[i] : result;
    result_of_all = all[i] > result_of_all ? all[i] : result_of_all;
  }
  reaches = !(result_of_all < threshold);
  for (int64_t i = 0; V::is_nan(nan) && i < count; i += V::kLanes)
    if (V::is_nan(load_row<V, Source>(from, i, count))) return __builtin_nanf("");
  return result;
}

template <class V, class Source>
void mark_outliers(const typename Source::Storage* from, int64_t count, float threshold, uint8_t* outliers) {
  for (int64_t i = 0; i < count; i += V::kLanes) {
    alignas(64) float values[V::kLanes];
    V::store(values, V::abs(load_row<V, Source>(from, i, count)));
    for (int64_t j = i; j < count && j < i + V::kLanes; ++j)
      if (values[j - i] >= threshold) outliers[j] = 1;
  }
}

template <class V, class Source>
void quantize_row(const typename Source::Storage* from, int64_t count, float scale, int8_t* to) {
  const auto factor = V::set(int8_factor<V>(scale)), low = V::set(-127), high = V::set(127);
  for (int64_t i = 0; i < count; i += kInt8Group) {
    typename V::Float values[kInt8Group / V::kLanes];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kInt8Group / V::kLanes; ++v) {
      const auto scaled = V::mul(load_row<V, Source>(from, i + v * V::kLanes, count), factor);
      values[v] = V::min(V::max(scaled, low), high);  // NaN becomes -127
    }
    if (count - i >= kInt8Group) {
      V::store_rounded(to + i, values);
      continue;
    }
    int8_t rest[kInt8Group];
    V::store_rounded(rest, values);
    for (int64_t j = i; j < count; ++j) to[j] = rest[j - i];
  }
}

template <class V>
void quantize_int8_with(const QuantizeInt8& q, int64_t begin, int64_t end, uint8_t* outliers) {
  with_elements<V>(q.element, q.element, [&](auto source) {
    using Source = decltype(source);
    const float threshold = q.threshold > 0 ? q.threshold : __builtin_inff();
    for (int64_t row = begin; row < end; ++row) {
      const auto* const from = static_cast<const typename Source::Storage*>(q.values) + row * q.row_stride;
      bool reaches = false;
      const float below = row_scale<V, Source>(from, q.cols, threshold, reaches);
      // Without a threshold, only inf is not below it; then the scale is inf.
      q.scales[row] = reaches && q.threshold <= 0 && below == below ? threshold : below;
      if (reaches && q.threshold > 0 && outliers != nullptr)
        mark_outliers<V, Source>(from, q.cols, threshold, outliers);
      quantize_row<V, Source>(from, q.cols, q.scales[row], q.codes + row * q.cols);
    }
  });
}

template <class V>
void dequantize_int8_with(const DequantizeInt8& d, int64_t begin, int64_t end) {
  with_elements<V>(d.element, d.element, [&](auto out) {
    using Out = decltype(out);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = d.rows == nullptr ? i : d.rows[i];
      const int8_t* const from = d.codes + row * d.cols;
      auto* const to = static_cast<typename Out::Storage*>(d.values) + i * d.cols;
      const auto scale = V::set(d.scales[row]), largest = V::set(127);
      const auto restored = [&](const int8_t* codes) {
        return V::div(V::mul(V::load_codes(codes), scale), largest);
      };
      int64_t j = 0;
      for (; j + V::kLanes <= d.cols; j += V::kLanes) Out::store(to + j, restored(from + j));
      if (j == d.cols) continue;
      alignas(16) int8_t rest[V::kLanes] = {};
      __builtin_memcpy(rest, from + j, static_cast<size_t>(d.cols - j));
      Out::scatter(to + j, 1, d.cols - j, restored(rest));
    }
  });
}

/// The operands of a product of codes, and what follows the sums.
template <class V>
class OperandsInt8 {
 public:
  static constexpr int kNR = V::kVectors * V::kLanes;

  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): pack_b() writes the columns that are read
  OperandsInt8(const ProductInt8& product, const Gemm& gemm, int64_t col_begin)
      : p_(product), g_(gemm), col_begin_(col_begin) {}

  void pack_a(const PackedBlock& block, float* to) const {
    pack_along_k<V, V::kMR, typename V::LeftCodes>(p_.a + block.begin * p_.a_stride + block.k, p_.a_stride,
                                                   p_.m - block.begin, block.depth, to,
                                                   std::integral_constant<int64_t, V::kMR>{});
  }

  void pack_b(const PackedBlock& block, float* to) const {
    pack_along_k<V, kNR, typename V::RightCodes>(p_.b + block.begin * p_.b_stride + block.k, p_.b_stride,
                                                 block.count, block.depth, to,
                                                 std::integral_constant<int64_t, kNR>{});
    if constexpr (V::kOffset != 0) add_columns(block, to);
  }

  void finish(const Tile& tile, float* sums, int64_t stride) const {
    if constexpr (V::kOffset != 0) take_offset(tile, sums, stride);
    if (p_.sums != nullptr) return copy(tile, sums, stride);
    for (int64_t i = 0; i < tile.rows; ++i) {
      const auto row_scale = V::set(p_.scale * p_.a_scales[tile.row + i]);
      for (int64_t j = 0; j < tile.cols; j += V::kLanes) {
        const float* const scales = p_.b_scales + tile.col + j;
        const auto column_scales =
            tile.cols - j >= V::kLanes ? V::load(scales) : V::load_some(scales, tile.cols - j);
        float* const at = sums + i * stride + j;
        V::store(at, V::mul(V::mul(V::to_floats(V::load(at)), row_scale), column_scales));
      }
    }
    finish_tile<typename V::Plain>(g_, tile, sums, stride);
  }

 private:
  /// The sums of the columns of b, which the offset of a multiplies.
  void add_columns(const PackedBlock& block, const float* packed) const {
    const int64_t at = (block.begin - col_begin_) % kGemmNC;
    for (int64_t v = 0; v < block.count; v += V::kLanes) {
      auto sums = block.k == 0 ? V::zero() : V::load(columns_ + at + v);
      for (int64_t step = 0; step < packed_depth<V>(block.depth); ++step)
        sums = V::add_columns(sums, V::load(packed + step * kNR + v));
      V::store(columns_ + at + v, sums);
    }
  }

  void take_offset(const Tile& tile, float* sums, int64_t stride) const {
    const float* const columns = columns_ + (tile.col - col_begin_) % kGemmNC;
    for (int64_t i = 0; i < tile.rows; ++i)
      for (int64_t j = 0; j < tile.cols; j += V::kLanes) {
        float* const at = sums + i * stride + j;
        V::store(at, V::without_offset(V::load(at), V::load(columns + j)));
      }
  }

  void copy(const Tile& tile, const float* sums, int64_t stride) const {
    for (int64_t i = 0; i < tile.rows; ++i)
      __builtin_memcpy(p_.sums + (tile.row + i) * p_.n + tile.col, sums + i * stride,
                       static_cast<size_t>(tile.cols) * sizeof(int32_t));
  }

  const ProductInt8& p_;
  const Gemm& g_;
  const int64_t col_begin_;
  alignas(64) mutable float columns_[V::kOffset == 0 ? 1 : kGemmNC];
};

template <class V>
void product_int8_with(const ProductInt8& p, const Gemm& g, const GemmPart& part,
                       const GemmScratch& scratch) {
  gemm_blocked<V>(g, part, scratch, OperandsInt8<V>(p, g, part.col_begin));
}

}  // namespace mantissa::kernels::cpu
