#include "cli/run_data.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/data/digits.h"
#include "mantissa/data/idx.h"
#include "mantissa/data/text.h"

namespace mantissa::cli {
namespace {

struct DataSpec {
  std::string kind, path;
};

DataSpec parse_data(const std::string& text) {
  const size_t colon = text.find(':');
  DataSpec spec{text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)};
  TORCH_CHECK_VALUE(
      (spec.kind == "digits" && colon == std::string::npos) ||
          ((spec.kind == "idx" || spec.kind == "text") && !spec.path.empty()),
      "--data '", text, "' names no data",
      spec.kind == "idx" || spec.kind == "text" ? "" : did_you_mean(spec.kind, {"digits", "idx", "text"}),
      "; write digits, idx:DIR or text:FILE");
  return spec;
}

/// `val` is null if the data has no separate part for it.
Data load_images(const DataSpec& spec, const FitOptions& o) {
  const IdxDataset loaded =
      spec.kind == "digits" ? IdxDataset{load_digits(), nullptr, 10} : load_idx_dataset(spec.path, o.classes);
  const at::Tensor image = loaded.train->data();
  return {spec.kind,
          loaded.train,
          loaded.val,
          {.kind = InputKind::kImages,
           .channels = image.size(1),
           .height = image.size(2),
           .width = image.size(3),
           .classes = loaded.classes}};
}

}  // namespace

void check_data(const std::string& data) { parse_data(data); }

InputKind input_kind_of(const std::string& data) {
  return parse_data(data).kind == "text" ? InputKind::kTokens : InputKind::kImages;
}

Data load_data(const FitOptions& o) {
  const DataSpec spec = parse_data(o.data);
  const uint64_t seed = o.seed;
  if (spec.kind == "text") {
    const int64_t context = ModelInput{}.context;
    const at::Tensor bytes = load_text(spec.path);
    const int64_t size = bytes.size(0), needed = context + 1;
    const int64_t held = std::llround(static_cast<double>(size) * o.val_fraction);
    TORCH_CHECK_VALUE(std::min(held, size - held) >= needed, "text file '", spec.path, "': --val-fraction ",
                      o.val_fraction, " splits its ", size, " bytes into ", size - held, " to train on and ",
                      held, " to validate, but each needs ", needed,
                      "; give a longer file or another --val-fraction");
    const auto [train, held_out] = split_text(bytes, o.val_fraction);
    return {"text",
            std::make_shared<TextDataset>(train, context),
            std::make_shared<TextDataset>(held_out, context, /*stride=*/context),
            {.kind = InputKind::kTokens}};
  }
  Data data = load_images(spec, o);
  if (!data.val) std::tie(data.train, data.val) = random_split(data.train, o.val_fraction, seed);
  return data;
}

Data load_all_data(const FitOptions& o) {
  const DataSpec spec = parse_data(o.data);
  if (spec.kind == "text") {
    const int64_t context = ModelInput{}.context;
    const at::Tensor bytes = load_text(spec.path);
    TORCH_CHECK_VALUE(bytes.size(0) > context, "text file '", spec.path, "' has ", bytes.size(0),
                      " bytes, but a window needs ", context + 1, "; give a longer file");
    return {"text",
            nullptr,
            std::make_shared<TextDataset>(bytes, context, /*stride=*/context),
            {.kind = InputKind::kTokens}};
  }
  Data data = load_images(spec, o);
  if (!data.val) data.val = data.train;
  return data;
}

std::unique_ptr<Loader> train_loader(const FitOptions& o, const Data& data) {
  DataLoaderOptions options = o.loader;
  options.shuffle = true;
  options.seed = o.seed;
  if (data.input.kind == InputKind::kTokens) {
    // Windows overlap. An epoch has as many windows as cover the text once, each drawn at a random position.
    options.replacement = true;
    options.num_samples = std::max<int64_t>(1, data.train->size() / ModelInput{}.context);
  }
  return std::make_unique<DataLoader>(data.train, options);
}

std::unique_ptr<Loader> val_loader(const FitOptions& o, const Data& data) {
  DataLoaderOptions options = o.loader;
  options.batch_size = data.input.kind == InputKind::kTokens
                           ? 32
                           : 256;  // without gradients: larger than in training, always the same
  return std::make_unique<DataLoader>(data.val, options);
}

}  // namespace mantissa::cli
