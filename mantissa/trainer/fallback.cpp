#include "mantissa/trainer/fallback.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/loop/saved_parts_internal.h"

namespace mantissa {
namespace {

/// The newest checkpoint that a run can continue from.
struct Newest {
  int64_t step = 0;
  std::string precision;
};

std::optional<Newest> newest_in(const std::filesystem::path& dirpath) {
  std::error_code error;
  if (!std::filesystem::is_directory(dirpath, error)) return std::nullopt;
  const auto newest = load_newest(dirpath);
  if (!newest) return std::nullopt;
  const Checkpoint& checkpoint = newest->checkpoint;
  return Newest{checkpoint.step,
                SavedPrecision::name_in(StateReader(checkpoint.state, newest->path.string()))};
}

/// Returns the modes' canonical names.
std::vector<std::string> checked(const std::vector<std::string>& modes) {
  TORCH_CHECK_VALUE(!modes.empty(),
                    "fit_with_fallback: precision names no mode; name the first mode to train in, and those "
                    "to fall back to");
  std::vector<std::string> names;
  for (const std::string& mode : modes) {
    names.push_back(find_mode(mode).name);
    TORCH_CHECK_VALUE(std::count(names.begin(), names.end(), names.back()) == 1,
                      "fit_with_fallback: precision names ", names.back(),
                      " twice; a mode that has diverged would diverge again");
  }
  return names;
}

}  // namespace

FallbackResult fit_with_fallback(const FallbackOptions& options, const FallbackRun& run) {
  const std::vector<std::string> modes = checked(options.precision);
  std::optional<Newest> newest = newest_in(options.dirpath);
  TORCH_CHECK_VALUE(
      !newest || options.resume, "fit_with_fallback: '", options.dirpath.string(),
      "' has checkpoints of another training; set resume to continue it, or choose another dirpath");
  auto mode = newest ? std::find(modes.begin(), modes.end(), newest->precision) : modes.begin();
  TORCH_CHECK_VALUE(mode != modes.end(), "fit_with_fallback: the newest checkpoint in '",
                    options.dirpath.string(), "' was trained in ", newest ? newest->precision : "",
                    ", and precision names ", join_names(modes), "; add it, or choose another dirpath");
  FallbackResult result;
  while (true) {
    const auto monitor = std::make_shared<DivergenceMonitor>(options.monitor);
    result.precision = *mode;
    result.fit = run(*mode, monitor, newest ? options.dirpath : std::filesystem::path());
    TORCH_CHECK_VALUE(result.fit.steps == 0 || monitor->has_watched(), "fit_with_fallback: the run in ",
                      *mode, " did not call its monitor; add it to the Trainer's callbacks");
    if (!monitor->has_diverged() || mode + 1 == modes.end()) return result;
    newest = newest_in(options.dirpath);
    const Fallback fallback{*mode, *(mode + 1), result.fit.steps, newest ? newest->step : 0,
                            monitor->reason()};
    TORCH_WARN("the run in ", fallback.from, " has diverged at step ", fallback.step, ": ", fallback.reason,
               ". It continues in ", fallback.to, " from step ", fallback.continues);
    result.fallbacks.push_back(fallback);
    ++mode;
  }
}

}  // namespace mantissa
