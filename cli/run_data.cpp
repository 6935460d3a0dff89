#include "cli/run_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <tuple>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/data/digits.h"
#include "mantissa/data/idx.h"
#include "mantissa/data/text.h"
#include "mantissa/data/token_file.h"

namespace mantissa::cli {
namespace {

struct DataSpec {
  std::string kind, path;
};

DataSpec parse_data(const std::string& text) {
  const size_t colon = text.find(':');
  DataSpec spec{text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)};
  const bool takes_path = spec.kind == "idx" || spec.kind == "text" || spec.kind == "tokens";
  TORCH_CHECK_VALUE(
      (spec.kind == "digits" && colon == std::string::npos) || (takes_path && !spec.path.empty()), "--data '",
      text, "' names no data", takes_path ? "" : did_you_mean(spec.kind, {"digits", "idx", "text", "tokens"}),
      "; write digits, idx:DIR, text:FILE or tokens:FILE");
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

/// The tokens to train on, and those to validate on: a file, of which the end is held out, or a folder with both.
Data load_tokens(const DataSpec& spec, const FitOptions& o) {
  const ModelInput input = token_input(o);
  const int64_t context = input.context, vocabulary = input.vocabulary;
  const auto windows = [&](const std::shared_ptr<TokenFile>& file, int64_t stride, int64_t begin,
                           int64_t end) {
    return std::make_shared<TokenDataset>(file, context, vocabulary, stride, begin, end);
  };
  const std::filesystem::path path = spec.path;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return {spec.kind, windows(std::make_shared<TokenFile>(path / "train.bin"), 1, 0, -1),
            windows(std::make_shared<TokenFile>(path / "val.bin"), context, 0, -1), input};
  const auto file = std::make_shared<TokenFile>(path);
  const int64_t held = std::llround(static_cast<double>(file->size()) * o.val_fraction);
  const int64_t kept = file->size() - held;
  TORCH_CHECK_VALUE(std::min(held, kept) > context, "token file '", spec.path, "': --val-fraction ",
                    o.val_fraction, " splits its ", file->size(), " tokens into ", kept, " to train on and ",
                    held, " to validate, but each needs ", context + 1,
                    "; give a longer file or another --val-fraction");
  return {spec.kind, windows(file, 1, 0, kept), windows(file, context, kept, -1), input};
}

Data load_all_tokens(const DataSpec& spec, const FitOptions& o) {
  const ModelInput input = token_input(o);
  std::error_code ignored;
  const std::filesystem::path path = spec.path;
  const auto file =
      std::make_shared<TokenFile>(std::filesystem::is_directory(path, ignored) ? path / "val.bin" : path);
  const int64_t context = input.context;
  return {spec.kind, nullptr, std::make_shared<TokenDataset>(file, context, input.vocabulary, context),
          input};
}

}  // namespace

ModelInput token_input(const FitOptions& o) {
  ModelInput input{.kind = InputKind::kTokens, .context = o.context};
  if (parse_data(o.data).kind != "tokens") return input;
  input.vocabulary = o.vocabulary;
  return input;
}

void check_data(const std::string& data) { parse_data(data); }

InputKind input_kind_of(const std::string& data) {
  const std::string kind = parse_data(data).kind;
  return kind == "text" || kind == "tokens" ? InputKind::kTokens : InputKind::kImages;
}

Data load_data(const FitOptions& o) {
  const DataSpec spec = parse_data(o.data);
  const uint64_t seed = o.seed;
  if (spec.kind == "tokens") return load_tokens(spec, o);
  if (spec.kind == "text") {
    const ModelInput input = token_input(o);
    const int64_t context = input.context;
    const at::Tensor bytes = load_text(spec.path);
    const int64_t size = bytes.size(0), needed = context + 1;
    const int64_t held = std::llround(static_cast<double>(size) * o.val_fraction);
    TORCH_CHECK_VALUE(std::min(held, size - held) >= needed, "text file '", spec.path, "': --val-fraction ",
                      o.val_fraction, " splits its ", size, " bytes into ", size - held, " to train on and ",
                      held, " to validate, but each needs ", needed,
                      "; give a longer file or another --val-fraction");
    const auto [train, held_out] = split_text(bytes, o.val_fraction);
    return {"text", std::make_shared<TextDataset>(train, context),
            std::make_shared<TextDataset>(held_out, context, /*stride=*/context), input};
  }
  Data data = load_images(spec, o);
  if (!data.val) std::tie(data.train, data.val) = random_split(data.train, o.val_fraction, seed);
  return data;
}

Data load_all_data(const FitOptions& o) {
  const DataSpec spec = parse_data(o.data);
  if (spec.kind == "tokens") return load_all_tokens(spec, o);
  if (spec.kind == "text") {
    const ModelInput input = token_input(o);
    const int64_t context = input.context;
    const at::Tensor bytes = load_text(spec.path);
    TORCH_CHECK_VALUE(bytes.size(0) > context, "text file '", spec.path, "' has ", bytes.size(0),
                      " bytes, but a window needs ", context + 1, "; give a longer file");
    return {"text", nullptr, std::make_shared<TextDataset>(bytes, context, /*stride=*/context), input};
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
    options.num_samples = std::max<int64_t>(1, data.train->size() / data.input.context);
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
