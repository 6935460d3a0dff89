#include "mantissa/kernels/cpu/convolution_depthwise_internal.h"
#include "mantissa/kernels/cpu/convolution_depthwise_weight_internal.h"
#include "mantissa/kernels/cpu/convolution_few_internal.h"
#include "mantissa/kernels/cpu/convolution_internal.h"
#include "mantissa/kernels/cpu/convolution_kernel.h"
#include "mantissa/kernels/cpu/convolution_weight_internal.h"
#include "mantissa/kernels/cpu/shared/vectors_internal.h"

namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER {

void convolve(const BlockedConvolution& c, const ConvolutionPart& part, const ConvolutionScratch& scratch) {
  convolve_with<Vectors>(c, part, scratch);
}

void convolve_weight(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part,
                     const ConvolutionWeightScratch& scratch) {
  convolve_weight_with<Vectors>(c, part, scratch);
}

void convolve_depthwise(const BlockedConvolution& c, const ConvolutionPart& part,
                        const ConvolutionScratch& scratch) {
  convolve_depthwise_with<Vectors>(c, part, scratch);
}

void convolve_groups(const BlockedConvolution& c, const ConvolutionPart& part,
                     const ConvolutionScratch& scratch) {
  convolve_groups_with<Vectors>(c, part, scratch);
}

void convolve_few(const BlockedConvolution& c, const ConvolutionPart& part,
                  const ConvolutionScratch& scratch) {
  convolve_few_with<Vectors>(c, part, scratch);
}

void convolve_depthwise_weight(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part,
                               const ConvolutionWeightScratch& scratch) {
  convolve_depthwise_weight_with<Vectors>(c, part, scratch);
}

void convolve_groups_weight(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part,
                            const ConvolutionWeightScratch& scratch) {
  convolve_groups_weight_with<Vectors>(c, part, scratch);
}

void add_block_sums(const float* from, int64_t stride, int64_t blocks, int64_t count, bool accumulate,
                    float* to) {
  add_block_sums_with<Vectors>(from, stride, blocks, count, accumulate, to);
}

}  // namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER
