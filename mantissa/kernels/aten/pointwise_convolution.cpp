#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <c10/util/irange.h>

#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/matmul_internal.h"
#include "mantissa/kernels/aten/pointwise_convolution_internal.h"
#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa::kernels::aten::pointwise_convolution {
namespace {

using at::Tensor;

/// The layout of a tensor's pixels, which are evenly spaced in each image.
struct Pixels {
  int64_t images, pixels, image_stride, pixel_stride;

  /// Whether the pixels of all images together are evenly spaced.
  bool are_one_row() const { return images == 1 || image_stride == pixels * pixel_stride; }
};

std::optional<Pixels> pixels_of(const Tensor& x) {
  Pixels layout{x.size(0), 1, x.stride(0), 0};
  for (int64_t dim = x.dim() - 1; dim >= 2; --dim) {
    if (x.size(dim) == 1) continue;
    if (layout.pixels == 1)
      layout.pixel_stride = x.stride(dim);
    else if (x.stride(dim) != layout.pixels * layout.pixel_stride)
      return std::nullopt;
    layout.pixels *= x.size(dim);
  }
  if (layout.pixels == 1) layout.pixel_stride = layout.image_stride;  // each image is a single pixel
  return layout;
}

/// The pixels of two tensors with the same number of pixels.
struct Pair {
  Pixels first, second;

  bool are_one_row() const { return first.are_one_row() && second.are_one_row(); }
};

/// Returns nothing if the pixels are not evenly spaced, or if our kernel would be slower. The product of each
/// image packs the weight again, unless there are few channels. An image therefore needs enough pixels.
std::optional<Pair> pixels_of(const Tensor& x, const Tensor& y) {
  constexpr int64_t kMinPixels = 64, kMaxFewChannels = 3;
  const auto first = pixels_of(x), second = pixels_of(y);
  if (!first || !second) return std::nullopt;
  const Pair pair{*first, *second};
  const bool few = std::min(x.size(1), y.size(1)) <= kMaxFewChannels;
  if (!few && !pair.are_one_row() && first->pixels < kMinPixels) return std::nullopt;
  return pair;
}

template <typename Pointer>
MatrixOf<Pointer> channels_by_pixels(Pointer data, const Tensor& x, const Pixels& layout) {
  return {data, element_of(x.scalar_type()), x.stride(1), layout.pixel_stride, layout.image_stride};
}

/// Returns the number of parts into which the images are divided. Each part computes its own sums of all
/// `results`, so that threads can share the work where results are few. The sums of all parts take at most 1
/// MiB, and each part has enough pixels to pay off. The number depends on the shape alone, not on the
/// threads.
int64_t parts_of_images(const Pixels& layout, int64_t results) {
  constexpr int64_t kMaxSums = int64_t{1} << 18, kMinPixels = 4 * cpu::kGemmKC;
  const int64_t most = std::min(kMaxSums / results, layout.images * layout.pixels / kMinPixels);
  int64_t parts = std::clamp<int64_t>(most, 1, layout.images);
  while (layout.images % parts != 0) --parts;
  return parts;
}

/// Computes `g` with the build that was chosen for such products. Returns false if libtorch's kernel was
/// chosen.
bool run(const Gemm& g) {
  const cpu::GemmBuild* const build = chosen_build(cpu::gemm_builds(), family_of(g), g.a.element);
  if (build == nullptr) return false;
  cpu::gemm(g, *build);
  return true;
}

}  // namespace

bool multiply(const Tensor& weight, bool turned, const Tensor& from, const std::optional<Tensor>& bias,
              const Tensor& to) {
  const auto pixels = pixels_of(from, to);
  if (!pixels) return false;
  const auto& [source, results] = *pixels;
  const bool one_row = pixels->are_one_row();
  Gemm g;
  g.m = to.size(1);
  g.n = source.pixels * (one_row ? source.images : 1);
  g.k = from.size(1);
  g.batch = one_row ? 1 : source.images;
  g.a = {weight.const_data_ptr(), element_of(weight.scalar_type()), weight.stride(turned ? 1 : 0),
         weight.stride(turned ? 0 : 1)};
  g.b = channels_by_pixels(from.const_data_ptr(), from, source);
  g.out = channels_by_pixels(to.mutable_data_ptr(), to, results);
  if (bias) g.addend = {bias->const_data_ptr(), element_of(bias->scalar_type()), bias->stride(0), 0};
  return run(g);
}

bool multiply_pixels(const Tensor& results, const Tensor& source, const Tensor& weight) {
  const auto pixels = pixels_of(results, source);
  if (!pixels) return false;
  Gemm g;
  g.m = results.size(1);
  g.n = source.size(1);
  g.batch = parts_of_images(pixels->first, g.m * g.n);
  const int64_t images_per_part = pixels->first.images / g.batch;
  const bool one_row = pixels->are_one_row();
  g.terms = one_row ? 1 : images_per_part;
  g.k = pixels->first.pixels * (one_row ? images_per_part : 1);
  g.a = channels_by_pixels(results.const_data_ptr(), results, pixels->first);
  g.b = channels_by_pixels(source.const_data_ptr(), source, pixels->second);
  std::swap(g.b.row_stride, g.b.col_stride);
  for (ConstMatrix* const matrix : {&g.a, &g.b}) {
    matrix->term_stride = matrix->batch_stride;
    matrix->batch_stride *= images_per_part;
  }
  if (g.batch == 1) {
    g.out = {weight.mutable_data_ptr(), element_of(weight.scalar_type()), weight.stride(0), weight.stride(1)};
    return run(g);
  }
  const Tensor sums = at::cpu::empty({g.batch, g.m, g.n}, weight.options().dtype(at::kFloat));
  g.out = matrix(sums.mutable_data_ptr(), sums);
  if (!run(g)) return false;
  add_images(sums.view({g.batch, -1}), weight.view(-1));
  return true;
}

void add_images(const Tensor& sums, const Tensor& out) {
  const float one = 1;
  Gemm g;
  g.m = 1;
  g.n = sums.size(1);
  g.k = sums.size(0);
  g.a = {&one, Element::kFloat32, 0, 0};
  g.b = matrix(sums.const_data_ptr(), sums);
  g.out = {out.mutable_data_ptr(), element_of(out.scalar_type()), 0, out.stride(0)};
  matmul::gemm(g);
}

}  // namespace mantissa::kernels::aten::pointwise_convolution
