#include "mantissa/data/images/mix.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/one_hot.h>
#include <c10/util/Exception.h>

#include "mantissa/data/images/image_random.h"

namespace mantissa {
namespace {

double normal(ImageRandom& random) {  // Box and Muller
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform(0, 1)));
  return radius * std::cos(random.uniform(0, 2 * std::numbers::pi));
}

/// Marsaglia and Tsang 2000. Unlike std::gamma_distribution, it gives the same numbers with every standard library.
double gamma(double alpha, ImageRandom& random) {
  if (alpha < 1) {
    const double power = std::pow(1 - random.uniform(0, 1), 1 / alpha);
    return gamma(alpha + 1, random) * power;
  }
  const double d = alpha - 1.0 / 3.0, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - random.uniform(0, 1)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

double beta(double alpha, ImageRandom& random) {
  const double a = gamma(alpha, random), b = gamma(alpha, random);
  return a + b > 0 ? a / (a + b) : (random.chance(0.5) ? 1.0 : 0.0);  // both are 0 for a tiny alpha
}

/// Returns the share of the batch's own images that remains.
double cut(at::Tensor& images, const at::Tensor& others, double share, ImageRandom& random) {
  const int64_t height = images.size(2), width = images.size(3);
  const double half = 0.5 * std::sqrt(1 - share);
  const auto clip = [](double x, int64_t most) {
    return std::min(std::max(static_cast<int64_t>(x), int64_t{0}), most);
  };
  const auto y = static_cast<double>(random.below(height)), x = static_cast<double>(random.below(width));
  const double h = half * static_cast<double>(height), w = half * static_cast<double>(width);
  const int64_t top = clip(y - std::floor(h), height), bottom = clip(y + std::floor(h), height);
  const int64_t left = clip(x - std::floor(w), width), right = clip(x + std::floor(w), width);
  images.slice(2, top, bottom)
      .slice(3, left, right)
      .copy_(others.slice(2, top, bottom).slice(3, left, right));
  return 1 - static_cast<double>((bottom - top) * (right - left)) / static_cast<double>(height * width);
}

Batch mixed(Batch batch, const MixOptions& options, const at::Generator& generator) {
  TORCH_CHECK_VALUE(batch.data.defined() && batch.data.dim() == 4 && batch.data.is_floating_point() &&
                        batch.target.defined() && batch.target.dim() == 1 &&
                        batch.target.scalar_type() == at::kLong && batch.target.size(0) == batch.data.size(0),
                    "mix_images: a batch has data ",
                    batch.data.defined() ? c10::str(batch.data.sizes()) : "(none)", " and targets ",
                    batch.target.defined() ? c10::str(batch.target.sizes()) : "(none)",
                    "; give images [n, channels, height, width] and int64 labels [n]");
  ImageRandom random(at::check_generator<at::CPUGeneratorImpl>(generator)->random64());
  const bool cuts = options.cutmix_alpha > 0 && (options.mixup_alpha == 0 || random.chance(0.5));
  double share = beta(cuts ? options.cutmix_alpha : options.mixup_alpha, random);
  const at::Tensor others = batch.data.roll(1, 0),
                   labels = at::one_hot(batch.target, options.num_classes).to(at::kFloat);
  if (cuts) {
    batch.data = batch.data.clone();
    share = cut(batch.data, others, share, random);
  } else {
    batch.data = batch.data * share + others * (1 - share);
  }
  batch.target = labels * share + labels.roll(1, 0) * (1 - share);
  return batch;
}

}  // namespace

Transform mix_images(const MixOptions& options) {
  TORCH_CHECK_VALUE(options.num_classes >= 1, "mix_images: ", options.num_classes,
                    " classes; give the number that the model tells apart");
  for (const double alpha : {options.mixup_alpha, options.cutmix_alpha})
    TORCH_CHECK_VALUE(alpha >= 0 && std::isfinite(alpha), "mix_images: alpha ", alpha,
                      " is negative or not finite; give 0 to switch it off, or such as 0.2");
  TORCH_CHECK_VALUE(options.mixup_alpha > 0 || options.cutmix_alpha > 0,
                    "mix_images: neither mixup_alpha nor cutmix_alpha is above 0; give one of them");
  return [options](Batch batch, const at::Generator& generator) {
    return mixed(std::move(batch), options, generator);
  };
}

}  // namespace mantissa
