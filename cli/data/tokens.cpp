#include <algorithm>
#include <cmath>
#include <filesystem>

#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"
#include "mantissa/data/token_file.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;

ModelInput ids_input(const FitOptions& o) {
  return {.kind = InputKind::kTokens, .vocabulary = o.vocabulary, .context = o.context};
}

/// The tokens to train on, and those to validate on: a file, of which the end is held out, or a folder with both.
Data load_split_tokens(const std::string& name, const FitOptions& o) {
  const int64_t context = o.context;
  const fs::path path = name;
  const auto windows = [&](const std::shared_ptr<TokenFile>& file, int64_t stride, int64_t begin,
                           int64_t end) {
    return std::make_shared<TokenDataset>(file, context, o.vocabulary, stride, begin, end);
  };
  if (is_folder(path))
    return {"tokens", windows(std::make_shared<TokenFile>(path / "train.bin"), 1, 0, -1),
            windows(std::make_shared<TokenFile>(path / "val.bin"), context, 0, -1), ids_input(o),
            /*draws_windows=*/true};
  const auto file = std::make_shared<TokenFile>(path);
  const int64_t held = std::llround(static_cast<double>(file->size()) * o.val_fraction);
  const int64_t kept = file->size() - held;
  TORCH_CHECK_VALUE(std::min(held, kept) > context, "token file '", name, "': --val-fraction ",
                    o.val_fraction, " splits its ", file->size(), " tokens into ", kept, " to train on and ",
                    held, " to validate, but each needs ", context + 1,
                    "; give a longer file or another --val-fraction");
  return {"tokens", windows(file, 1, 0, kept), windows(file, context, kept, -1), ids_input(o),
          /*draws_windows=*/true};
}

Data load_whole_tokens(const std::string& name, const FitOptions& o) {
  const fs::path path = name;
  const auto file = std::make_shared<TokenFile>(is_folder(path) ? path / "val.bin" : path);
  return {"tokens", nullptr, std::make_shared<TokenDataset>(file, o.context, o.vocabulary, o.context),
          ids_input(o)};
}

}  // namespace

DataKind tokens_kind() {
  return {.name = "tokens",
          .argument = "FILE",
          .help = "ids",
          .input = InputKind::kTokens,
          .load = &load_split_tokens,
          .load_all = &load_whole_tokens,
          .token_input = &ids_input,
          .has_val_part = &is_folder,
          .options = {"context", "vocabulary"}};
}

}  // namespace mantissa::cli
