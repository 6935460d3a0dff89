#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/formats.h"
#include "mantissa/quant/quantized_4bit.h"

namespace mantissa {

/// Returns the tensors under which bitsandbytes saves a 4-bit weight, so that it reads them. `name` is the
/// parameter's full name, such as "layer.weight". docs/quantization-files.md lists the names.
///
/// Shapes: NAME uint8 [(n + 1) / 2, 1], or as stored; NAME.absmax [blocks]; NAME.quant_map float32 [16];
///         NAME.quant_state.bitsandbytes__nf4 (or __fp4) uint8 [bytes of JSON]; after double quantization also
///         NAME.nested_absmax and NAME.nested_quant_map float32 [256].
/// Memory: shares the tensors of `quantized`. The map and the JSON are new, because some file formats refuse
///         tensors that share memory.
/// Sync:   waits for the device after double quantization, because the JSON contains the offset.
std::map<std::string, at::Tensor> pack_state(const Quantized4Bit& quantized, const std::string& name);

/// Whether `tensors` has any component of a 4-bit weight of this name.
bool has_state_4bit(const std::map<std::string, at::Tensor>& tensors, const std::string& name);

/// Returns the 4-bit weight that pack_state() or bitsandbytes has saved under `name`. Other names in `tensors`
/// are not looked at.
///
/// Memory: shares the tensors.
/// Errors: c10::ValueError that names the tensor at fault and the cure: if a component is missing, unknown,
///         there twice, or of another dtype, shape or size than the others imply; if the JSON is not what
///         bitsandbytes writes (in any order and spacing); for another block size, table or dtype than it has;
///         if a scale is not finite. c10::TypeError if codes are in a dtype that cannot hold them.
Quantized4Bit unpack_state_4bit(const std::map<std::string, at::Tensor>& tensors, const std::string& name);

/// What the JSON of a saved 4-bit weight says: for programs that need the shape before they read the codes.
struct QuantStateInfo {
  Format format = Format::kNF4;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;  ///< of the tensor that was quantized
  int64_t blocksize = 64;
  bool is_nested = false;
};

/// Reads the tensor NAME.quant_state.bitsandbytes__nf4 (or __fp4), whose full name is `name`.
/// Errors: c10::ValueError that names the tensor, as unpack_state_4bit() throws it for what the JSON says.
QuantStateInfo read_quant_state(const at::Tensor& json, const std::string& name);

/// Returns the weight's name for the name of one of its components beside the codes, such as "fc.weight" for
/// "fc.weight.absmax" and for "fc.weight.quant_state.bitsandbytes__nf4"; empty for other names.
std::string weight_of_component_4bit(const std::string& name);

}  // namespace mantissa
