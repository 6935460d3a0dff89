#include "mantissa/data/images/shift.h"

#include <algorithm>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "mantissa/data/images/image_random.h"

namespace mantissa {
namespace {

/// The rows, or columns, that an image of this size keeps when it moves by `by`.
struct Kept {
  int64_t from, to, count;
};

Kept kept(int64_t size, int64_t by) {
  return {std::max<int64_t>(-by, 0), std::max<int64_t>(by, 0), size - std::abs(by)};
}

void check(const at::Tensor& images, int64_t pixels) {
  TORCH_CHECK_VALUE(images.defined() && images.dim() == 4 && images.is_cpu(),
                    "shift_images: a batch has data ", images.defined() ? c10::str(images.sizes()) : "(none)",
                    "; give images [n, channels, height, width] on the CPU");
  TORCH_CHECK_VALUE(pixels < std::min(images.size(2), images.size(3)), "shift_images: images of ",
                    images.size(2), " x ", images.size(3), " pixels would disappear if they moved by ",
                    pixels, "; give fewer pixels than their sides have");
}

Batch shifted(Batch batch, int64_t pixels, const at::Generator& generator) {
  check(batch.data, pixels);
  const at::Tensor moved = at::zeros_like(batch.data, at::MemoryFormat::Contiguous);
  ImageRandom random(at::check_generator<at::CPUGeneratorImpl>(generator)->random64());
  for (int64_t i = 0; i < moved.size(0); ++i) {
    const Kept rows = kept(moved.size(2), random.below(2 * pixels + 1) - pixels),
               columns = kept(moved.size(3), random.below(2 * pixels + 1) - pixels);
    moved[i]
        .narrow(1, rows.to, rows.count)
        .narrow(2, columns.to, columns.count)
        .copy_(batch.data[i].narrow(1, rows.from, rows.count).narrow(2, columns.from, columns.count));
  }
  batch.data = moved;
  return batch;
}

}  // namespace

Transform shift_images(int64_t pixels) {
  TORCH_CHECK_VALUE(pixels >= 1, "shift_images: ", pixels, " pixels; give 1 or more");
  return [pixels](Batch batch, const at::Generator& generator) {
    return shifted(std::move(batch), pixels, generator);
  };
}

}  // namespace mantissa
