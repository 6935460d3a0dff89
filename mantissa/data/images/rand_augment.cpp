#include "mantissa/data/images/rand_augment.h"

#include <array>
#include <cmath>

#include <c10/util/Exception.h>

#include "mantissa/data/images/color_ops.h"

namespace mantissa {
namespace {

/// An operation and its strengths: `strongest` at the last bin, in proportion below.
struct Operation {
  const char* name;
  double strongest;
  bool has_direction;
  void (*apply)(Image& image, double strength);
};

constexpr double kFarthest = 150.0 / 331.0;  // a translation, as a share of the image's side

int64_t whole(double x) { return static_cast<int64_t>(x); }

void translate(Image& image, int64_t x, int64_t y) {
  transform_affine(image, {1, 0, -static_cast<double>(x), 0, 1, -static_cast<double>(y)});
}

const std::array kOperations{
    Operation{"Identity", 0, false, [](Image&, double) {}},
    Operation{"ShearX", 0.3, true,
              [](Image& i, double s) {
                transform_affine(i, {1, s, 0, 0, 1, 0});
              }},
    Operation{"ShearY", 0.3, true,
              [](Image& i, double s) {
                transform_affine(i, {1, 0, 0, s, 1, 0});
              }},
    Operation{"TranslateX", kFarthest, true,
              [](Image& i, double s) { translate(i, whole(s * static_cast<double>(i.width())), 0); }},
    Operation{"TranslateY", kFarthest, true,
              [](Image& i, double s) { translate(i, 0, whole(s * static_cast<double>(i.height()))); }},
    Operation{"Rotate", 30, true, rotate},
    Operation{"Brightness", 0.9, true, [](Image& i, double s) { adjust_brightness(i, 1 + s); }},
    Operation{"Color", 0.9, true, [](Image& i, double s) { adjust_saturation(i, 1 + s); }},
    Operation{"Contrast", 0.9, true, [](Image& i, double s) { adjust_contrast(i, 1 + s); }},
    Operation{"Sharpness", 0.9, true, [](Image& i, double s) { adjust_sharpness(i, 1 + s); }},
    Operation{"Posterize", 4, false, [](Image& i, double s) { posterize(i, 8 - std::llrint(s)); }},
    Operation{"Solarize", 255, false, [](Image& i, double s) { solarize(i, 255 - s); }},
    Operation{"AutoContrast", 0, false, [](Image& i, double) { autocontrast(i); }},
    Operation{"Equalize", 0, false, [](Image& i, double) { equalize(i); }},
};

/// torch.linspace() in float32, which goes from both ends to the middle.
double strength_of(const Operation& operation, const RandAugmentOptions& options) {
  const auto last = static_cast<float>(options.num_magnitude_bins - 1),
             bin = static_cast<float>(options.magnitude);
  const auto strongest = static_cast<float>(operation.strongest);
  const float step = strongest / last;
  return options.magnitude < options.num_magnitude_bins / 2 ? step * bin : strongest - step * (last - bin);
}

}  // namespace

RandAugment::RandAugment(const RandAugmentOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.num_ops >= 0, "RandAugment: num_ops ", options.num_ops,
                    " is negative; give 0 or more");
  TORCH_CHECK_VALUE(options.num_magnitude_bins >= 2, "RandAugment: ", options.num_magnitude_bins,
                    " magnitude bins have no range; give 2 or more");
  TORCH_CHECK_VALUE(options.magnitude >= 0 && options.magnitude < options.num_magnitude_bins,
                    "RandAugment: magnitude ", options.magnitude, " is outside the ",
                    options.num_magnitude_bins, " bins; give 0 to ", options.num_magnitude_bins - 1);
}

const std::vector<std::string>& RandAugment::operations() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> made;
    for (const Operation& operation : kOperations) made.emplace_back(operation.name);
    return made;
  }();
  return names;
}

void RandAugment::apply(size_t operation, bool negative, Image& image) const {
  const Operation& chosen = kOperations.at(operation);
  const double strength = strength_of(chosen, options_);
  chosen.apply(image, negative && chosen.has_direction ? -strength : strength);
}

void RandAugment::apply(Image& image, ImageRandom& random) const {
  for (int64_t i = 0; i < options_.num_ops; ++i) {
    const auto operation = static_cast<size_t>(random.below(std::ssize(kOperations)));
    apply(operation, random.chance(0.5), image);
  }
}

}  // namespace mantissa
