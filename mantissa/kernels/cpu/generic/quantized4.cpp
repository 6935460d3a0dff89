#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/cpu/generic/gemm_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu::generic {
namespace {

uint8_t code4_of(Code4 code, float value) { return code == Code4::kNF4 ? nf4_code(value) : fp4_code(value); }

float value4_of(Code4 code, const uint8_t* codes, int64_t index) {
  const int nibble = index % 2 == 0 ? codes[index / 2] >> 4 : codes[index / 2] & 15;
  return code == Code4::kNF4 ? kNF4Values[nibble] : kFP4Values[nibble];
}

/// The largest magnitude, or NaN if there is one: as integers, magnitudes are ordered, and NaN is the largest.
float absmax4_of(const Quantize4& q, int64_t begin, int64_t end) {
  uint32_t largest = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t bits = to_bits(load(q.element, q.values, i)) & 0x7fffffffU;
    if (bits > largest) largest = bits;
  }
  return from_bits(largest);
}

}  // namespace

void quantize4(const Quantize4& q, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * q.block, last = least(first + q.block, q.count);
    const float absmax = absmax4_of(q, first, last), inverse = absmax == 0 ? 0 : 1 / absmax;
    const auto code = [&](int64_t i) -> unsigned {
      const float value = i < last ? load(q.element, q.values, i) : 0;
      return code4_of(q.code, std::isinf(inverse) ? value / absmax : value * inverse);
    };
    for (int64_t i = first; i < last; i += 2)
      q.codes[i / 2] = static_cast<uint8_t>(code(i) << 4 | code(i + 1));
    q.absmax[block] = absmax;
  }
}

void dequantize4(const Dequantize4& d, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    store(d.element, d.values, i, value4_of(d.code, d.codes, i) * d.absmax[i / d.block]);
}

void dequantize_rows4(const DequantizeRows4& d, int64_t begin, int64_t end) {
  const Weight4& w = d.weight;
  const NestedScales4& nested = d.nested;
  const auto scale = [&](int64_t block) {
    return nested.codes == nullptr
               ? w.absmax[block]
               : nested.map[nested.codes[block]] * nested.absmax[block / kNestedBlock4] + *nested.offset;
  };
  for (int64_t i = begin; i < end; ++i)
    for (int64_t column = 0; column < w.cols; ++column) {
      const int64_t index = d.rows[i] * w.cols + column;
      store(d.element, d.values, i * w.cols + column,
            value4_of(w.code, w.codes, index) * scale(index / w.block));
    }
}

void product4(const Product4& p, const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  const Weight4& w = p.weight;
  const Element round_to = is_few_rows4(p) ? Element::kFloat32 : g.a.element;
  gemm_with(g, part, scratch, [&](int64_t, int64_t k, int64_t column) {
    const int64_t index = p.transposed ? column * w.cols + k : k * w.cols + column;
    return rounded(value4_of(w.code, w.codes, index) * w.absmax[index / w.block], round_to);
  });
}

}  // namespace mantissa::kernels::cpu::generic
