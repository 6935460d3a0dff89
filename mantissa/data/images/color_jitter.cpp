#include "mantissa/data/images/color_jitter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/data/images/color_ops.h"

namespace mantissa {

ColorJitter::ColorJitter(const ColorJitterOptions& options) : options_(options) {
  const auto check = [](const char* name, double value, double highest) {
    TORCH_CHECK_VALUE(value >= 0 && value <= highest && std::isfinite(value), "ColorJitter: ", name, " ",
                      value, " is out of range; give a number from 0 to ", highest);
  };
  constexpr double kAny = 1e6;  // far above what changes a byte, and a factor that float32 holds
  check("brightness", options.brightness, kAny);
  check("contrast", options.contrast, kAny);
  check("saturation", options.saturation, kAny);
  check("hue", options.hue, 0.5);
}

void ColorJitter::apply(Image& image, ImageRandom& random) const {
  struct Change {
    double strength;
    void (*change)(Image&, double);
    bool is_factor;
  };
  std::array<Change, 4> changes{{{options_.brightness, adjust_brightness, true},
                                 {options_.contrast, adjust_contrast, true},
                                 {options_.saturation, adjust_saturation, true},
                                 {options_.hue, adjust_hue, false}}};
  for (size_t left = changes.size(); left > 0; --left) {
    std::swap(changes[left - 1], changes[static_cast<size_t>(random.below(static_cast<int64_t>(left)))]);
    const Change& next = changes[left - 1];
    if (next.strength == 0) continue;
    next.change(image, next.is_factor ? random.uniform(std::max(1 - next.strength, 0.0), 1 + next.strength)
                                      : random.uniform(-next.strength, next.strength));
  }
}

}  // namespace mantissa
