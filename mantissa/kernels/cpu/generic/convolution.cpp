#include "mantissa/kernels/cpu/convolution_kernel.h"
#include "mantissa/kernels/cpu/generic/element_internal.h"

namespace mantissa::kernels::cpu::generic {
namespace {

/// Calls f(n, at) for each result of block `index`; the last axis varies fastest.
template <typename Problem, typename F>
void for_each_result(const Problem& c, int64_t index, const F& f) {
  int64_t begin[4] = {}, end[4] = {};
  for (int a = 3; a >= 0; --a) {
    const int64_t size = a == 0 ? c.batch : c.axes[a - 1].out;
    const int64_t blocks = (size + c.block[a] - 1) / c.block[a];
    begin[a] = index % blocks * c.block[a];
    end[a] = least(begin[a] + c.block[a], size);
    index /= blocks;
  }
  int64_t at[3] = {};
  for (int64_t n = begin[0]; n < end[0]; ++n)
    for (at[0] = begin[1]; at[0] < end[1]; ++at[0])
      for (at[1] = begin[2]; at[1] < end[2]; ++at[1])
        for (at[2] = begin[3]; at[2] < end[3]; ++at[2]) f(n, at);
}

int64_t offset(const int64_t* strides, const int64_t* at) {
  return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2];
}

/// Returns the offset that tap `tap` of result `at` reads in channel 0, or -1 for a zero outside of the
/// source.
int64_t position(const Axis* axes, const int64_t* strides, const int64_t* at, const int64_t* tap) {
  int64_t positions[3] = {};
  for (int a = 0; a < 3; ++a) {
    positions[a] = axes[a].origin + at[a] * axes[a].step + tap[a] * axes[a].dilation;
    if (positions[a] < 0 || positions[a] >= axes[a].size) return -1;
  }
  return offset(strides, positions);
}

/// Computes one result: image n, channel o of the group, position `at`, over c.channels from `channel` on.
float result(const BlockedConvolution& c, int64_t group, int64_t n, int64_t channel, int64_t o,
             const int64_t* at) {
  const int64_t source =
      group * c.source.group_stride + n * c.source.image_stride + channel * c.source.channel_stride;
  const int64_t weight = group * c.weight.group_stride + o * c.weight.image_stride;
  float sum = 0;
  for (int64_t first = 0; first < c.channels; first += c.block_channels) {
    const int64_t channels = least(c.block_channels, c.channels - first);
    float chain = 0;
    for (int64_t d = 0; d < c.axes[0].taps; ++d)
      for (int64_t h = 0; h < c.axes[1].taps; ++h)
        for (int64_t w = 0; w < c.axes[2].taps; ++w) {
          const int64_t tap[] = {d, h, w};
          const int64_t from = position(c.axes, c.source.strides, at, tap);
          const int64_t by = weight + offset(c.weight.strides, tap);
          // Not std::fma: see gemm().
          for (int64_t i = first; i < first + channels; ++i)
            chain += (from < 0 ? 0
                               : load(c.source.element, c.source.data,
                                      source + from + i * c.source.channel_stride)) *
                     load(c.weight.element, c.weight.data, by + i * c.weight.channel_stride);
        }
    sum = first == 0 ? chain : sum + chain;
  }
  if (c.bias) sum += load(c.bias_element, c.bias, (group * c.outputs + o) * c.bias_stride);
  return sum;
}

/// Computes one result of a depthwise convolution's adjoint.
float turned_result(const BlockedConvolution& c, int64_t n, int64_t o, const int64_t* at) {
  const int64_t source = n * c.source.image_stride + o * c.source.channel_stride;
  float chain = 0;
  for (int64_t d = c.forward[0].taps - 1; d >= 0; --d)
    for (int64_t h = c.forward[1].taps - 1; h >= 0; --h)
      for (int64_t w = c.forward[2].taps - 1; w >= 0; --w) {
        const int64_t tap[] = {d, h, w};
        int64_t positions[3] = {};
        bool is_read = true, is_inside = true;
        for (int a = 0; a < 3; ++a) {
          const Axis& axis = c.forward[a];
          const int64_t distance = at[a] - axis.origin - tap[a] * axis.dilation;
          is_read = is_read && distance % axis.step == 0;
          positions[a] = distance / axis.step;
          is_inside = is_inside && distance >= 0 && positions[a] < c.axes[a].size;
        }
        if (!is_read) continue;
        chain +=
            (is_inside ? load(c.source.element, c.source.data, source + offset(c.source.strides, positions))
                       : 0) *
            load(c.weight.element, c.weight.data, o * c.weight.image_stride + offset(c.weight.strides, tap));
      }
  if (c.bias) chain += load(c.bias_element, c.bias, o * c.bias_stride);
  return chain;
}

/// Computes one weight: from channel i of the group's source to channel o of its results.
float weight_gradient(const BlockedConvolutionWeight& c, int64_t group, int64_t i, int64_t o,
                      const int64_t* tap) {
  const int64_t source = group * c.source.group_stride + i * c.source.channel_stride;
  const int64_t gradient = group * c.gradient.group_stride + o * c.gradient.channel_stride;
  int64_t blocks = 1;
  for (int a = 0; a < 4; ++a)
    blocks *= ((a == 0 ? c.batch : c.axes[a - 1].out) + c.block[a] - 1) / c.block[a];
  float sum = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    float chain = 0;
    for_each_result(c, block, [&](int64_t n, const int64_t* at) {
      const int64_t from = position(c.axes, c.source.strides, at, tap);
      chain +=
          (from < 0 ? 0 : load(c.source.element, c.source.data, source + n * c.source.image_stride + from)) *
          load(c.gradient.element, c.gradient.data,
               gradient + n * c.gradient.image_stride + offset(c.gradient.strides, at));
    });
    sum = block == 0 ? chain : sum + chain;
  }
  return sum;
}

void convolve_blocks(const BlockedConvolution& c, const ConvolutionPart& part, bool depthwise) {
  for (int64_t block = part.block_begin; block < part.block_end; ++block)
    for_each_result(c, block, [&](int64_t n, const int64_t* at) {
      for (int64_t o = part.output_begin; o < part.output_end; ++o)
        store(c.out.element, c.out.data,
              part.group * c.out.group_stride + n * c.out.image_stride + o * c.out.channel_stride +
                  offset(c.out.strides, at),
              c.is_turned ? turned_result(c, n, o, at) : result(c, part.group, n, depthwise ? o : 0, o, at));
    });
}

/// Computes all taps from channel i of the group's source to channel o of its results.
void weight_gradients(const BlockedConvolutionWeight& c, int64_t group, int64_t i, int64_t o) {
  // A depthwise weight has only channel 0.
  const int64_t out =
      group * c.out.group_stride + o * c.out.image_stride + (c.channels == 1 ? 0 : i) * c.out.channel_stride;
  for (int64_t d = 0; d < c.axes[0].taps; ++d)
    for (int64_t h = 0; h < c.axes[1].taps; ++h)
      for (int64_t w = 0; w < c.axes[2].taps; ++w) {
        const int64_t tap[] = {d, h, w};
        store(c.out.element, c.out.data, out + offset(c.out.strides, tap),
              weight_gradient(c, group, i, o, tap));
      }
}

}  // namespace

void convolve(const BlockedConvolution& c, const ConvolutionPart& part,
              const ConvolutionScratch& /*scratch*/) {
  convolve_blocks(c, part, /*depthwise=*/false);
}

void convolve_depthwise(const BlockedConvolution& c, const ConvolutionPart& part,
                        const ConvolutionScratch& /*scratch*/) {
  convolve_blocks(c, part, /*depthwise=*/true);
}

void convolve_weight(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part,
                     const ConvolutionWeightScratch& /*scratch*/) {
  for (int64_t o = part.output_begin; o < part.output_end; ++o)
    for (int64_t i = part.channel_begin; i < part.channel_end; ++i) weight_gradients(c, part.group, i, o);
}

void convolve_depthwise_weight(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part,
                               const ConvolutionWeightScratch& /*scratch*/) {
  for (int64_t o = part.output_begin; o < part.output_end; ++o) weight_gradients(c, 0, o, o);
}

}  // namespace mantissa::kernels::cpu::generic
