#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/io/sharded.h"
#include "mantissa/quant/quantized_4bit.h"
#include "mantissa/quant/stored_weights.h"

namespace mantissa::cli {

/// A format that convert's --to can give to weights.
struct WeightFormat {
  std::string name;
  std::optional<Quantize4BitOptions> four_bit;  ///< unset: int8
};

/// Returns the names of all formats: nf4, nf4-dq, fp4, fp4-dq, int8.
std::vector<std::string> weight_format_names();

/// Errors: c10::ValueError for another name, for another block size than the format has, and for one with
///         int8. Unset: 64.
WeightFormat parse_weight_format(const std::string& name, std::optional<int64_t> blocksize);

/// Whether --to quantizes a tensor if no pattern says otherwise: the matrix `...weight` of a Linear layer.
/// Embeddings, heads and norms are recognized by their names.
bool is_linear_weight(const std::string& name, const SafetensorsEntry& entry);

/// A weight of the new model that is made from one of the old model as a whole: it is quantized, or restored.
struct MadeWeight {
  std::string source;                               ///< its name in the old model
  std::map<std::string, SafetensorsEntry> entries;  ///< the tensors that it becomes, by their new names
  std::function<std::map<std::string, at::Tensor>()> make;
  uint64_t bytes = 0;  ///< of the tensors that it is made from
};

/// Quantizes the tensor `source` of `model`, which has to outlive the result. With a `dtype` it is cast first.
///
/// Numerics: those of quantize_4bit() and quantize_int8(). A float64 tensor is cast to float32 first.
/// Memory:   make() holds the tensor, its codes and at most one cast of it.
/// Errors:   make() throws those of the two functions, which call the weight by its name.
MadeWeight quantized_weight(const SafetensorsModel& model, const std::string& source, const std::string& name,
                            const WeightFormat& format, std::optional<at::ScalarType> dtype);

/// Restores the quantized weight `source` as one tensor of `dtype`. Unset: the dtype that it was quantized
/// from, float16 for int8.
///
/// Memory: make() holds the codes and the restored tensor.
/// Errors: c10::ValueError for a state that is incomplete or does not fit together, here for what names,
///         shapes and the JSON show, in make() for the rest.
MadeWeight restored_weight(const SafetensorsModel& model, const std::string& source,
                           const StoredWeight& weight, const std::string& name,
                           std::optional<at::ScalarType> dtype);

/// The made weights of a conversion, for write_safetensors_files(). Each is made when one of its tensors is
/// asked for, and only the last one is kept.
class MadeWeights {
 public:
  /// Errors: c10::ValueError if one of its tensors has the name of another one.
  void add(MadeWeight weight);
  const std::vector<MadeWeight>& all() const { return weights_; }
  bool contains(const std::string& tensor) const { return owners_.contains(tensor); }
  /// Returns a tensor of one of the weights. `before` is called before a weight is made, with its bytes.
  at::Tensor tensor(const std::string& name, const std::function<void(uint64_t bytes)>& before);

 private:
  std::vector<MadeWeight> weights_;
  std::map<std::string, size_t> owners_;
  std::optional<size_t> made_;
  std::map<std::string, at::Tensor> tensors_;  ///< of the weight `made_`
};

}  // namespace mantissa::cli
