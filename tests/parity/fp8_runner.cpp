// Quantizes as described by its arguments. test_fp8.py compares the results with those of torch and ml_dtypes.
//
//   fp8_runner IN OUT    "x": for each recipe its codes, scales and restored values. IN and OUT are safetensors files.
#include <cstdio>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/core/error_message.h"
#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/hadamard.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/io/safetensors.h"

namespace mantissa {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor bytes(const at::Tensor& codes) { return codes.view(at::kByte); }

void add_casts(const at::Tensor& x, Tensors& out) {
  out["e4m3"] = bytes(cast_to_fp8(x, at::kFloat8_e4m3fn));
  out["e5m2"] = bytes(cast_to_fp8(x, at::kFloat8_e5m2));
}

template <class Quantized>
void add(const std::string& name, const Quantized& quantized, const at::Tensor& scales, Tensors& out) {
  out[name] = bytes(quantized.codes);
  out[name + ".scales"] = scales;
  out[name + ".restored"] = dequantize_fp8(quantized);
}

void add_recipes(const at::Tensor& x, Tensors& out) {
  const QuantizedFp8 current = quantize_fp8_current(x, at::kFloat8_e4m3fn);
  add("current", current, current.scale_inv, out);
  for (const Fp8Block block : {Fp8Block::k1x128, Fp8Block::k128x128}) {
    const QuantizedFp8Blocks blocks = quantize_fp8_blocks(x, at::kFloat8_e4m3fn, block);
    add(block == Fp8Block::k1x128 ? "1x128" : "128x128", blocks, blocks.scale_inv, out);
  }
  const QuantizedMXFP8 mx = quantize_mxfp8(x);
  add("mxfp8", mx, bytes(mx.exponents), out);
  for (const bool two_dimensional : {false, true}) {
    const QuantizedNVFP4 nv = quantize_nvfp4(x, {.two_dimensional = two_dimensional});
    const std::string name = two_dimensional ? "nvfp4_2d" : "nvfp4";
    add(name, nv, bytes(nv.block_scale), out);
    out[name + ".scale"] = nv.scale;
  }
  out["hadamard"] = hadamard_transform(x);
}

}  // namespace
}  // namespace mantissa

int main(int count, char** arguments) {
  using namespace mantissa;
  if (count != 3) return std::fputs("usage: fp8_runner IN OUT\n", stderr), 2;
  try {
    const at::Tensor x = load_safetensors(arguments[1]).tensors.at("x");
    Tensors out;
    add_casts(x, out);
    if (x.dim() == 2) add_recipes(x, out);
    save_safetensors(arguments[2], out);
  } catch (const std::exception& error) {
    return std::fputs((message_of(error) + "\n").c_str(), stderr), 2;
  }
  return 0;
}
