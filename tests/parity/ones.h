// Batches for runners that compare a Trainer's actions, whatever the numbers.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "mantissa/data/loader.h"

/// Returns `size` batches that hold a 1.
class Ones final : public mantissa::Loader {
 public:
  explicit Ones(int64_t size) : size_(size) {}
  void set_epoch(int64_t) override { next_ = 0; }
  std::optional<mantissa::Batch> next() override {
    if (next_++ >= size_) return std::nullopt;
    return mantissa::Batch{at::ones({1, 1}), at::zeros({1}, at::kLong), {}};
  }
  int64_t size() const override { return size_; }

 private:
  int64_t size_, next_ = 0;
};
