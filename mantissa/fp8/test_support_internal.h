#pragma once

// For the tests of this room: the recorded vectors, and tensors that reach into every corner of a format.

#include <bit>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::fp8 {

inline nlohmann::json recorded_json(const std::string& file) {
  std::ifstream stream(test_data(file));
  return nlohmann::json::parse(stream);
}

inline float float_of_hex(const std::string& hex) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
}

/// Reads what the vectors write as 8 hexadecimal digits each.
inline at::Tensor floats_of(const nlohmann::json& hex) {
  std::vector<float> values;
  for (const auto& each : hex) values.push_back(float_of_hex(each.get<std::string>()));
  return torch::tensor(values);
}

inline at::Tensor bytes_of(const nlohmann::json& numbers) {
  return torch::tensor(numbers.get<std::vector<int64_t>>()).to(at::kByte);
}

/// The codes of a tensor in 8 bits, as bytes.
inline at::Tensor bytes(const at::Tensor& codes) { return codes.view(at::kByte); }

/// Returns the bytes with each NaN of the format as 0x7f: the sign of NaN has no meaning.
inline at::Tensor with_one_nan(const at::Tensor& bytes, at::ScalarType dtype) {
  const int first = dtype == at::kFloat8_e5m2 ? 0x7d : 0x7f;
  return bytes.masked_fill(bytes.bitwise_and(0x7f) >= first, 0x7f);
}

/// Values of many magnitudes, also subnormal ones of float16, with a zero in each row.
inline at::Tensor wide(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  at::Tensor x = torch::randn(shape) * torch::randn(shape).mul(4).exp2();
  x.view({-1})[0] = 0;
  return x.to(dtype);
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr at::ScalarType kFp8Dtypes[] = {at::kFloat8_e4m3fn, at::kFloat8_e5m2};

}  // namespace mantissa::fp8
