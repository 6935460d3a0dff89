#pragma once

#include <cstdint>

namespace mantissa {

/// Random numbers for one image: SplitMix64, which costs nothing to seed.
///
/// Equal seeds give equal numbers on every machine. Seeds that are close together give unrelated ones.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
class ImageRandom {
 public:
  explicit ImageRandom(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t bits = state_ += 0x9E3779B97F4A7C15;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
    return bits ^ bits >> 31;
  }
  /// Returns a number from `low`, inclusive, to `high`, exclusive.
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(next() >> 11) * 0x1p-53);
  }
  /// Returns a whole number from 0 to count - 1; `count` must be from 1 to 2^32.
  int64_t below(int64_t count) {
    return static_cast<int64_t>((next() >> 32) * static_cast<uint64_t>(count) >> 32);
  }
  /// Returns true with the given probability, from 0 to 1.
  bool chance(double probability) { return uniform(0, 1) < probability; }

 private:
  uint64_t state_;
};

}  // namespace mantissa
