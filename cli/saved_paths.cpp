#include "cli/saved_paths.h"

#include <string>
#include <system_error>

#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"
#include "cli/option.h"
#include "cli/run_data.h"
#include "mantissa/models/registry.h"

namespace mantissa::cli {

namespace fs = std::filesystem;

namespace {

/// `value` is that of the option, `path` the part of it that is a path, and `cure` what to do if it is not there.
void check_is_there(const fs::path& folder, const char* option, const std::string& value,
                    const std::string& path, const std::string& cure) {
  std::error_code ignored;
  TORCH_CHECK(fs::exists(path, ignored), "the run in '", folder.string(), "' has ", flag_of(option), " ",
              value, " in '", (folder / "config.yaml").string(), "', and '", path, "' is not there; ", cure);
}

void check_is_there(const fs::path& folder, const char* option, const std::string& value,
                    const std::string& path) {
  check_is_there(folder, option, value, path, "give its place now as " + flag_of(option));
}

}  // namespace

void check_saved_paths(const fs::path& folder, const OptionValues& flags, const FitOptions& o) {
  const DataKind* const kind = find_data_kind(o.data);
  if (kind && !kind->argument.empty() && !flags.has("data"))
    check_is_there(folder, "data", o.data, path_of_data(o.data));
  if (!o.tokenizer.empty() && !flags.has("tokenizer"))
    check_is_there(folder, "tokenizer", o.tokenizer, o.tokenizer);
}

void check_saved_model(const fs::path& folder, const OptionValues& saved) {
  const auto* const model = saved.get_if<std::string>("model");
  if (!model || !is_model_path(*model)) return;
  check_is_there(folder, "model", *model, path_of_model(*model),
                 "move it back, or write its place now under `model` in that file");
}

void check_same_kind(const fs::path& folder, const OptionValues& flags, const OptionValues& saved) {
  const auto *const now = flags.get_if<std::string>("data"), *const before =
                                                                 saved.get_if<std::string>("data");
  if (!now || !before) return;
  const DataKind *const kind = find_data_kind(*now), *const trained = find_data_kind(*before);
  TORCH_CHECK_VALUE(!kind || kind == trained, "--data ", *now, ": the run in '", folder.string(),
                    "' trains on data of another kind, ", *before,
                    "; give the place of the same data now, or begin another run: fit --weights");
}

}  // namespace mantissa::cli
