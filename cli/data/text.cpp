#include "mantissa/data/text.h"

#include <algorithm>
#include <cmath>

#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"

namespace mantissa::cli {
namespace {

ModelInput text_input(const FitOptions& o) { return {.kind = InputKind::kTokens, .context = o.context}; }

Data load_split_text(const std::string& path, const FitOptions& o) {
  const int64_t context = o.context;
  const at::Tensor bytes = load_text(path);
  const int64_t size = bytes.size(0), needed = context + 1;
  const int64_t held = std::llround(static_cast<double>(size) * o.val_fraction);
  TORCH_CHECK_VALUE(std::min(held, size - held) >= needed, "text file '", path, "': --val-fraction ",
                    o.val_fraction, " splits its ", size, " bytes into ", size - held, " to train on and ",
                    held, " to validate, but each needs ", needed,
                    "; give a longer file or another --val-fraction");
  const auto [train, held_out] = split_text(bytes, o.val_fraction);
  return {"text", std::make_shared<TextDataset>(train, context),
          std::make_shared<TextDataset>(held_out, context, /*stride=*/context), text_input(o),
          /*draws_windows=*/true};
}

Data load_whole_text(const std::string& path, const FitOptions& o) {
  const at::Tensor bytes = load_text(path);
  TORCH_CHECK_VALUE(bytes.size(0) > o.context, "text file '", path, "' has ", bytes.size(0),
                    " bytes, but a window needs ", o.context + 1, "; give a longer file");
  return {"text", nullptr, std::make_shared<TextDataset>(bytes, o.context, /*stride=*/o.context),
          text_input(o)};
}

}  // namespace

DataKind text_kind() {
  return {.name = "text",
          .argument = "FILE",
          .help = "bytes",
          .input = InputKind::kTokens,
          .load = &load_split_text,
          .load_all = &load_whole_text,
          .token_input = &text_input};
}

}  // namespace mantissa::cli
