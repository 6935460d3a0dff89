#include "mantissa/data/idx.h"

#include "cli/data/kinds.h"
#include "cli/fit_options.h"
#include "mantissa/data/digits.h"

namespace mantissa::cli {
namespace {

Data data_of(const std::string& name, const IdxDataset& loaded) {
  const at::Tensor image = loaded.train->data();
  return {name,
          loaded.train,
          loaded.val,
          {.kind = InputKind::kImages,
           .channels = image.size(1),
           .height = image.size(2),
           .width = image.size(3),
           .classes = loaded.classes}};
}

}  // namespace

DataKind digits_kind() {
  return {.name = "digits",
          .argument = "",
          .help = "",
          .input = InputKind::kImages,
          .load =
              [](const std::string& /*path*/, const FitOptions& /*o*/) {
                return data_of("digits", {load_digits(), nullptr, 10});
              },
          .options = {"shift", "mixup", "cutmix"}};
}

DataKind idx_kind() {
  return {.name = "idx",
          .argument = "DIR",
          .help = "MNIST's files, plain or gzip'd",
          .input = InputKind::kImages,
          .load =
              [](const std::string& path, const FitOptions& o) {
                const IdxLabels labels = o.reads_labels ? IdxLabels::kRead : IdxLabels::kIgnore;
                return data_of("idx", load_idx_dataset(path, o.classes, labels));
              },
          .has_val_part = [](const std::string& path) { return has_idx_val_part(path); },
          .options = {"shift", "mixup", "cutmix", "classes"}};
}

}  // namespace mantissa::cli
