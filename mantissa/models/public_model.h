#pragma once

#include <string>

#include "mantissa/models/tensor_module.h"

namespace mantissa {

/// A model whose weights have public files, in which their names or their form may be other than in the model.
class PublicModel : public TensorModule {
 public:
  /// Returns the model's name for a tensor of its public files, or "" for one that it does not need. The model's own name
  /// stays as it is.
  virtual std::string own_name(const std::string& name) const { return name; }
  /// Returns the name in the files that are written, for the model's name.
  virtual std::string name_in_files(const std::string& name) const { return name; }
  /// Whether its public files have the weight of this name, which is the model's, transposed.
  virtual bool is_transposed_in_files(const std::string& /*name*/) const { return false; }
};

}  // namespace mantissa
