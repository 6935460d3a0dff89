// Quantizes, restores and multiplies as described by its arguments. test_quant.py compares the results with
// those of bitsandbytes.
//
//   quant_runner quantize4 IN OUT FORMAT BLOCKSIZE NESTED   "x": its state as "layer.weight", and "restored"
//   quant_runner read4 IN OUT                               the state of "layer.weight": the same again, and
//   "restored" quant_runner linear4 IN OUT FORMAT BLOCKSIZE NESTED     "x", "w", "bias", "gy": "y", "gx",
//   "gbias" quant_runner int8 IN OUT THRESHOLD                      "x", "w", "bias": the state of "w" as
//   "layer.weight", and
//                                                           "CA", "SCA", "columns", "sums", "y"
//   quant_runner read8 IN OUT                               the state of "layer.weight": the same again
//
// IN and OUT are safetensors files. A refused input ends the program with status 2 and its message.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/error_message.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/linear_4bit.h"
#include "mantissa/quant/linear_int8.h"
#include "mantissa/quant/quant_state.h"

namespace mantissa {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

const std::string kName = "layer.weight";

Quantize4BitOptions options_of(const std::vector<std::string>& arguments) {
  return {.format = arguments.at(0) == "nf4" ? Format::kNF4 : Format::kFP4,
          .blocksize = std::stoll(arguments.at(1)),
          .compress_statistics = arguments.at(2) == "1"};
}

Tensors restored(const Quantized4Bit& weight) {
  Tensors out = pack_state(weight, kName);
  out["restored"] = dequantize_4bit(weight);
  return out;
}

Tensors linear4(const Tensors& in, const Quantize4BitOptions& options) {
  const Quantized4Bit weight = quantize_4bit(in.at("w"), options);
  at::Tensor x = in.at("x").set_requires_grad(true), bias = in.at("bias").set_requires_grad(true);
  const at::Tensor y = linear_4bit(x, weight, bias);
  y.backward(in.at("gy"));
  return {{"y", y.detach()}, {"gx", x.grad()}, {"gbias", bias.grad()}};
}

Tensors int8(const Tensors& in, double threshold) {
  const QuantizedInt8 weight = quantize_int8(in.at("w")), x = int8_vectorwise_quant(in.at("x"), threshold);
  Tensors out = pack_state(weight, kName);
  out["CA"] = x.codes;
  out["SCA"] = x.scales;
  if (x.outlier_cols.defined()) out["columns"] = x.outlier_cols;
  out["sums"] = int8_matmul(x.codes, weight.codes);
  out["y"] = linear_int8(in.at("x"), weight, in.at("bias"), threshold);
  return out;
}

Tensors run(const std::string& kind, const Tensors& in, const std::vector<std::string>& arguments) {
  if (kind == "quantize4") return restored(quantize_4bit(in.at("x"), options_of(arguments)));
  if (kind == "read4") return restored(unpack_state_4bit(in, kName));
  if (kind == "linear4") return linear4(in, options_of(arguments));
  if (kind == "int8") return int8(in, std::stod(arguments.at(0)));
  return pack_state(unpack_state_int8(in, kName), kName);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    const mantissa::Tensors in = mantissa::load_safetensors(arguments.at(1)).tensors;
    mantissa::save_safetensors(arguments.at(2),
                               mantissa::run(arguments.at(0), in, {arguments.begin() + 3, arguments.end()}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", mantissa::message_of(error).c_str());
    return 2;
  }
  return 0;
}
