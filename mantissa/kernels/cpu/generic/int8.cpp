#include <limits>

#include "mantissa/kernels/cpu/generic/gemm_internal.h"
#include "mantissa/kernels/cpu/int8_kernel.h"

namespace mantissa::kernels::cpu::generic {

namespace {

struct Here;  // makes this build's own copies of the templates

}  // namespace

void quantize_int8(const QuantizeInt8& q, int64_t begin, int64_t end, uint8_t* outliers) {
  for (int64_t row = begin; row < end; ++row) {
    const auto value = [&](int64_t j) { return load(q.element, q.values, row * q.row_stride + j); };
    float scale = 0;
    for (int64_t j = 0; j < q.cols; ++j) {
      const float magnitude = std::fabs(value(j));
      if (q.threshold > 0 && magnitude >= q.threshold) {
        if (outliers != nullptr) outliers[j] = 1;
      } else if (!(magnitude <= scale)) {  // a NaN stays
        scale = std::isnan(scale) ? scale : magnitude;
      }
    }
    if (std::isnan(scale)) scale = std::numeric_limits<float>::quiet_NaN();
    q.scales[row] = scale;
    const float factor = int8_factor<Here>(scale);
    for (int64_t j = 0; j < q.cols; ++j) {
      float code = value(j) * factor;
      code = code > -127 ? code : -127;
      code = code < 127 ? code : 127;
      q.codes[row * q.cols + j] = static_cast<int8_t>(std::nearbyintf(code));
    }
  }
}

void dequantize_int8(const DequantizeInt8& d, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = d.rows == nullptr ? i : d.rows[i];
    for (int64_t j = 0; j < d.cols; ++j)
      store(d.element, d.values, i * d.cols + j,
            static_cast<float>(d.codes[row * d.cols + j]) * d.scales[row] / 127);
  }
}

void product_int8(const ProductInt8& p, const Gemm& g, const GemmPart& part, const GemmScratch&) {
  for (int64_t i = part.row_begin; i < part.row_end; ++i) {
    const float row_scale = p.sums != nullptr ? 0 : p.scale * p.a_scales[i];
    for (int64_t col = part.col_begin; col < part.col_end; col += kStrip) {
      float values[kStrip];
      const int64_t cols = least(kStrip, part.col_end - col);
      for (int64_t j = 0; j < cols; ++j) {
        const int8_t *const a = p.a + i * p.a_stride, *const b = p.b + (col + j) * p.b_stride;
        int32_t sum = 0;
        for (int64_t k = 0; k < p.k; ++k) sum += a[k] * b[k];
        if (p.sums != nullptr) {
          p.sums[i * p.n + col + j] = sum;
        } else {
          values[j] = static_cast<float>(sum) * row_scale * p.b_scales[col + j];
        }
      }
      if (p.sums == nullptr) finish_strip(g, part, i, col, cols, values);
    }
  }
}

}  // namespace mantissa::kernels::cpu::generic
