#include "cli/labels.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/max.h>
#include <c10/util/Exception.h>

#include "mantissa/data/idx.h"

namespace mantissa::cli {
namespace {

int64_t largest_label(const Dataset& data) {
  constexpr int64_t kPiece = 4096;
  int64_t largest = -1;
  for (int64_t begin = 0; begin < data.size(); begin += kPiece) {
    const at::Tensor indices = at::arange(begin, std::min(begin + kPiece, data.size()));
    largest = std::max(largest, at::max(data.get_batch(indices).target).item<int64_t>());
  }
  return largest;
}

/// The number of classes with names, less one, or else the largest label in the data.
int64_t largest_label(const Labelled& labelled) {
  const Data& data = labelled.data;
  if (!data.names.classes.empty()) return std::ssize(data.names.classes) - 1;
  const int64_t largest = largest_label(*data.val);
  return labelled.trains ? std::max(largest, largest_label(*data.train)) : largest;
}

/// Mixed targets have a share for each class that the data may have, which can be more than its labels need.
/// Errors: c10::ValueError for a model with another number of classes.
void check_mixed_classes(const Labelled& labelled, int64_t model_classes) {
  const int64_t classes = labelled.data.input.classes;
  TORCH_CHECK_VALUE(model_classes == classes, "--mixup and --cutmix make targets of the ", classes,
                    " classes of ", labelled.data_name, ", but ", labelled.model, " has ", model_classes,
                    "; ",
                    labelled.takes_classes && model_classes <= kMaxIdxClasses
                        ? c10::str("give --classes ", model_classes)
                        : c10::str("leave them out, or give a model with ", classes));
}

}  // namespace

void check_labels(const Labelled& labelled, int64_t model_classes) {
  const int64_t largest = largest_label(labelled);
  TORCH_CHECK_VALUE(largest < model_classes, labelled.data_name, " has the label ", largest, ", but ",
                    labelled.model, " has ", model_classes, " classes, 0 to ", model_classes - 1,
                    "; give data of those classes, or a model with at least ", largest + 1);
}

std::function<void(const at::Tensor& scores)> checks_first_scores(Labelled labelled) {
  return [labelled = std::move(labelled), is_checked = false](const at::Tensor& scores) mutable {
    const ModelInput& input = labelled.data.input;
    if (std::exchange(is_checked, true) || input.kind != InputKind::kImages || scores.dim() != 2) return;
    // idx: data has at least 10 classes, so fewer scores may still be enough.
    if (scores.size(1) < input.classes) check_labels(labelled, scores.size(1));
    if (labelled.is_mixed) check_mixed_classes(labelled, scores.size(1));
  };
}

}  // namespace mantissa::cli
