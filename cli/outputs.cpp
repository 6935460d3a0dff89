#include "cli/outputs.h"

#include <algorithm>
#include <iterator>
#include <system_error>

#include <c10/util/Exception.h>

#include "cli/errors.h"
#include "cli/run_folder.h"
#include "mantissa/io/atomic_file.h"

namespace mantissa::cli {
namespace fs = std::filesystem;
namespace {

bool is_to_a_file(const fs::path& output) { return !output.empty() && output != "-"; }

/// Returns the place of a file that need not exist.
fs::path place_of(const fs::path& file) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(resolve_links(file), ignored), ignored);
}

/// Returns the inputs with those that are read because they lie beside one.
std::vector<std::string> with_companions(std::vector<std::string> inputs) {
  for (size_t i = 0, size = inputs.size(); i < size; ++i) {
    const fs::path input = inputs[i];
    if (input.filename() == "vocab.json")  // see load_tokenizer()
      inputs.push_back((input.parent_path() / "merges.txt").string());
  }
  return inputs;
}

void check_is_no_input(const fs::path& output, const std::vector<std::string>& inputs) {
  std::error_code error;
  if (!fs::exists(output, error)) return;
  const fs::path target = place_of(output);
  for (const std::string& input : with_companions(inputs)) {
    if (input.empty()) continue;
    const fs::path read = place_of(input);
    const bool is_input = fs::equivalent(read, target, error);  // one of two hard links, too
    const auto end = std::mismatch(read.begin(), read.end(), target.begin(), target.end()).first;
    if (is_input || end == read.end())
      throw UsageError(c10::str("'", output.string(), "' is ",
                                is_input ? "the input itself" : "a file of the input '" + input + "'",
                                "; choose another place for the output"));
  }
}

/// `run` may not hold a run yet.
void check_is_no_runs_file(const fs::path& file, const fs::path& run) {
  std::error_code error;
  const fs::path whole = place_of(file), mine = fs::weakly_canonical(run, error);
  fs::path inside = whole.filename();  // relative to `folder`
  for (fs::path folder = whole.parent_path();; folder = folder.parent_path()) {
    const auto has = [&](const char* name) { return fs::exists(folder / name, error); };
    const bool holds_run =
        (has("config.yaml") && (has(kWeights) || has(kCheckpoints))) || (!run.empty() && folder == mine);
    if (holds_run && is_file_of_run(*inside.begin()))
      throw UsageError(c10::str(file.string(), " is a file of the run in ", folder.string(),
                                ", which would be lost; name another file"));
    if (folder == folder.parent_path()) return;
    inside = folder.filename() / inside;
  }
}

void check_can_be_made(const fs::path& file) {
  const fs::path target = resolve_links(file);
  const fs::path folder = target.has_parent_path() ? target.parent_path() : ".";
  std::error_code error;
  TORCH_CHECK(fs::is_directory(folder, error), file.string(), " cannot be written: there is no folder ",
              folder.string(), "; make it, or name another file");
  const fs::file_status status = fs::status(target, error);
  TORCH_CHECK(status.type() != fs::file_type::none, file.string(), " cannot be written: ", error.message(),
              "; name another file");
  TORCH_CHECK(!fs::is_directory(status), file.string(),
              " cannot be written: it is a folder; name a file in it");
  TORCH_CHECK(!fs::exists(status) || fs::is_regular_file(status), file.string(),
              " cannot be written: it is a device, pipe or socket; name a regular file, or - for standard "
              "output");
  const std::string reason = cannot_write_in(folder);
  TORCH_CHECK(reason.empty(), file.string(), " cannot be written: folder ", folder.string(), ": ", reason,
              "; name a file in a folder that you may write");
}

void check_are_different(const std::vector<Output>& outputs) {
  for (auto one = outputs.begin(); one != outputs.end(); ++one) {
    if (!is_to_a_file(one->path)) continue;
    const bool is_twice = std::any_of(std::next(one), outputs.end(), [&](const Output& other) {
      return is_to_a_file(other.path) && place_of(other.path) == place_of(one->path);
    });
    if (is_twice)
      throw UsageError(c10::str("'", one->path.string(),
                                "' is named for two outputs, of which one would be lost; name two files"));
  }
}

}  // namespace

void check_outputs(const std::vector<Output>& outputs, const std::vector<std::string>& inputs,
                   const fs::path& run) {
  check_are_different(outputs);
  for (const Output& output : outputs) {
    if (!is_to_a_file(output.path)) continue;
    check_is_no_input(output.path, inputs);
    check_is_no_runs_file(output.path, run);
    if (!output.makes_folder) check_can_be_made(output.path);
    std::error_code ignored;
    TORCH_CHECK(output.overwrite || !fs::exists(fs::symlink_status(output.path, ignored)), "'",
                output.path.string(), "' already exists; choose another place, or give --overwrite");
  }
}

}  // namespace mantissa::cli
