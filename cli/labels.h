#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "cli/data/kinds.h"

namespace mantissa::cli {

/// The data whose labels a model predicts, and the names of both for messages.
struct Labelled {
  const Data& data;
  std::string data_name;       ///< "--data digits"
  std::string model;           ///< "--model jit:net.pt"
  bool trains = false;         ///< false: only the part for validation matters
  bool is_mixed = false;       ///< batches to train on have shares of the data's classes as targets
  bool takes_classes = false;  ///< --classes says how many classes the data has
};

/// Checks that a model has as many classes as the labels need. Images need not be decoded for that if the classes have names.
/// Errors: c10::ValueError that names the largest label and the model's classes.
void check_labels(const Labelled& labelled, int64_t model_classes);

/// Returns a function that checks the scores of a batch, [batch, classes], in the same way: the first ones only, because a model
/// always gives as many. Mixed batches also need as many scores as the data has classes. A plug-in or a TorchScript file tells its number of classes by nothing else. The data must live as
/// long as the function. Other data than images is not checked.
std::function<void(const at::Tensor& scores)> checks_first_scores(Labelled labelled);

}  // namespace mantissa::cli
