#include "mantissa/data/images/color_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace mantissa {
namespace {

using Table = std::array<uint8_t, 256>;

/// Weights of ITU-R 601-2 in 16 bits.
uint8_t grey_of(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

/// Goes from `from` towards `to`, and past it for a factor above 1.
uint8_t blend(uint8_t from, uint8_t to, float factor) {
  const float mixed = static_cast<float>(from) + factor * static_cast<float>(int{to} - int{from});
  return static_cast<uint8_t>(std::clamp(mixed, 0.0F, 255.0F));
}

template <typename Function>
void for_each_pixel(Image& image, const Function& function) {
  uint8_t* const end = image.data() + image.bytes();
  for (uint8_t* rgb = image.data(); rgb != end; rgb += 3) function(rgb);
}

void look_up(Image& image, const Table& table) {
  std::transform(image.data(), image.data() + image.bytes(), image.data(),
                 [&](uint8_t x) { return table[x]; });
}

template <typename Function>
Table table_of(const Function& function) {
  Table table{};
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = static_cast<uint8_t>(function(i));
  return table;
}

void blend_all(Image& image, uint8_t from, double factor) {
  const auto f = static_cast<float>(factor);
  look_up(image, table_of([&](int x) { return blend(from, static_cast<uint8_t>(x), f); }));
}

/// Applies to each channel the table that `make` makes of its histogram.
template <typename Make>
void look_up_by_channel(Image& image, const Make& make) {
  for (int channel = 0; channel < 3; ++channel) {
    std::array<int64_t, 256> histogram{};
    for_each_pixel(image, [&](const uint8_t* rgb) { ++histogram[rgb[channel]]; });
    const Table table = make(histogram);
    for_each_pixel(image, [&](uint8_t* rgb) { rgb[channel] = table[rgb[channel]]; });
  }
}

Table identity() {
  return table_of([](int x) { return x; });
}

struct Hsv {
  uint8_t hue, saturation, value;
};

/// The mix of float and double is Pillow's.
Hsv hsv_of(const uint8_t* rgb) {
  const uint8_t low = std::min({rgb[0], rgb[1], rgb[2]}), high = std::max({rgb[0], rgb[1], rgb[2]});
  if (low == high) return {0, 0, high};
  const auto range = static_cast<float>(high - low);
  const float saturation = range / static_cast<float>(high);
  const auto away = [&](int channel) { return static_cast<float>(high - rgb[channel]) / range; };
  const float red = away(0), green = away(1), blue = away(2);
  float hue = 0;
  if (rgb[0] == high)
    hue = blue - green;
  else if (rgb[1] == high)
    hue = static_cast<float>(2.0 + red - blue);
  else
    hue = static_cast<float>(4.0 + green - red);
  hue = static_cast<float>(std::fmod(hue / 6.0 + 1.0, 1.0));
  return {static_cast<uint8_t>(hue * 255.0), static_cast<uint8_t>(saturation * 255.0), high};
}

void write_rgb(const Hsv& hsv, uint8_t* rgb) {
  if (hsv.saturation == 0) {
    std::fill(rgb, rgb + 3, hsv.value);
    return;
  }
  const double turns = static_cast<float>(hsv.hue) * 6.0 / 255.0;
  const int sector = static_cast<int>(std::floor(turns));
  const auto rest = static_cast<float>(turns - sector);
  const auto saturation = static_cast<float>(static_cast<float>(hsv.saturation) / 255.0);
  const auto value = static_cast<float>(hsv.value);
  const auto scaled = [&](double by) {
    return static_cast<uint8_t>(std::clamp(std::round(value * by), 0.0, 255.0));
  };
  const uint8_t v = hsv.value, p = scaled(1.0 - saturation), q = scaled(1.0 - saturation * rest),
                t = scaled(1.0 - saturation * (1.0 - rest));
  const std::array<std::array<uint8_t, 3>, 6> sectors{
      {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
  std::copy_n(sectors[static_cast<size_t>(sector % 6)].begin(), 3, rgb);
}

/// The weights of a pixel and its neighbours are 5 and 1; pixels at the edge stay.
void smooth(const Image& image, Image& out) {
  std::copy_n(image.data(), image.bytes(), out.data());
  const int64_t row = image.row_bytes();
  for (int64_t y = 1; y + 1 < image.height(); ++y)
    for (int64_t i = 3; i + 3 < row; ++i) {
      const uint8_t* middle = image.row(y) + i;
      int sum = 4 * middle[0];
      for (const int64_t dy : {-row, int64_t{0}, row}) sum += middle[dy - 3] + middle[dy] + middle[dy + 3];
      out.row(y)[i] = static_cast<uint8_t>((2 * sum + 13) / 26);
    }
}

double rounded_to_15_digits(double x) { return std::round(x * 1e15) / 1e15; }

}  // namespace

void adjust_brightness(Image& image, double factor) { blend_all(image, 0, factor); }

void adjust_contrast(Image& image, double factor) {
  int64_t sum = 0;
  for_each_pixel(image, [&](const uint8_t* rgb) { sum += grey_of(rgb); });
  const double mean = static_cast<double>(sum) / static_cast<double>(image.height() * image.width());
  blend_all(image, static_cast<uint8_t>(std::floor(mean + 0.5)), factor);
}

void adjust_saturation(Image& image, double factor) {
  const auto f = static_cast<float>(factor);
  for_each_pixel(image, [&](uint8_t* rgb) {
    const uint8_t grey = grey_of(rgb);
    for (int channel = 0; channel < 3; ++channel) rgb[channel] = blend(grey, rgb[channel], f);
  });
}

void adjust_hue(Image& image, double factor) {
  const auto turn = static_cast<uint8_t>(static_cast<int>(factor * 255));
  for_each_pixel(image, [&](uint8_t* rgb) {
    Hsv hsv = hsv_of(rgb);
    hsv.hue = static_cast<uint8_t>(hsv.hue + turn);
    write_rgb(hsv, rgb);
  });
}

void adjust_sharpness(Image& image, double factor) {
  Image smoothed(image.height(), image.width());
  smooth(image, smoothed);
  const auto f = static_cast<float>(factor);
  for (int64_t i = 0; i < image.bytes(); ++i) image.data()[i] = blend(smoothed.data()[i], image.data()[i], f);
}

void posterize(Image& image, int64_t bits) {
  const int mask = ~((1 << (8 - bits)) - 1);
  look_up(image, table_of([&](int x) { return x & mask; }));
}

void solarize(Image& image, double threshold) {
  look_up(image, table_of([&](int x) { return x < threshold ? x : 255 - x; }));
}

void autocontrast(Image& image) {
  look_up_by_channel(image, [](const std::array<int64_t, 256>& histogram) {
    const auto some = [](int64_t count) { return count > 0; };
    const auto low = std::find_if(histogram.begin(), histogram.end(), some) - histogram.begin();
    const auto high = 255 - (std::find_if(histogram.rbegin(), histogram.rend(), some) - histogram.rbegin());
    if (high <= low) return identity();
    const double scale = 255.0 / static_cast<double>(high - low), offset = -static_cast<double>(low) * scale;
    return table_of([&](int x) { return std::clamp(static_cast<int>(x * scale + offset), 0, 255); });
  });
}

void equalize(Image& image) {
  look_up_by_channel(image, [&](const std::array<int64_t, 256>& histogram) {
    const int64_t pixels = image.height() * image.width();
    const int64_t last = *std::find_if(histogram.rbegin(), histogram.rend(), [](int64_t n) { return n > 0; });
    const int64_t step = (pixels - last) / 255;
    if (step == 0) return identity();
    int64_t below = step / 2;
    return table_of([&](int x) {
      const int64_t level = below / step;
      below += histogram[static_cast<size_t>(x)];
      return std::min<int64_t>(level, 255);
    });
  });
}

void transform_affine(Image& image, const AffineMap& map) {
  // Places have 16 fractional bits.
  const auto fixed = [](double x) { return static_cast<int64_t>(std::floor(x * 65536.0 + 0.5)); };
  Image out(image.height(), image.width());
  const int64_t a = fixed(map.a), b = fixed(map.b), d = fixed(map.d), e = fixed(map.e);
  int64_t row_x = fixed(map.c + map.a * 0.5 + map.b * 0.5), row_y = fixed(map.f + map.d * 0.5 + map.e * 0.5);
  for (int64_t y = 0; y < out.height(); ++y, row_x += b, row_y += e) {
    int64_t from_x = row_x, from_y = row_y;
    uint8_t* to = out.row(y);
    for (int64_t x = 0; x < out.width(); ++x, to += 3, from_x += a, from_y += d) {
      const int64_t column = from_x >> 16, row = from_y >> 16;
      if (column >= 0 && column < image.width() && row >= 0 && row < image.height())
        std::copy_n(image.row(row) + column * 3, 3, to);
      else
        std::fill_n(to, 3, 0);
    }
  }
  std::swap(image, out);
}

void rotate(Image& image, double degrees) {
  const double angle = -degrees * std::numbers::pi / 180.0;
  const double cosine = rounded_to_15_digits(std::cos(angle)), sine = rounded_to_15_digits(std::sin(angle));
  const double x = static_cast<double>(image.width()) / 2.0, y = static_cast<double>(image.height()) / 2.0;
  transform_affine(image,
                   {cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y});
}

}  // namespace mantissa
