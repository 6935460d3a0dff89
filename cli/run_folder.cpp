#include "cli/run_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <c10/util/Exception.h>

#include "cli/errors.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/make_folders.h"

namespace mantissa::cli {
namespace fs = std::filesystem;
namespace {

/// The files that show that a folder holds a run.
constexpr std::array kFiles{"config.yaml", "metrics.csv", "metrics.jsonl", kModelConfig, kWeights,
                            kResult,       kFallbacks,    kCheckpoints,    kDataRecord};
/// A file that a run writes as well, but that is no sign of a run: TensorBoard's folders have it, too.
constexpr const char* kHparams = "hparams.yaml";

void check_holds_no_run(const fs::path& folder) {
  std::error_code error;
  for (const char* name : kFiles) {
    TORCH_CHECK(!fs::exists(fs::symlink_status(folder / name, error)), "output folder ", folder.string(),
                " already holds a run's ", name, "; give --output another folder, or remove it");
  }
}

bool is_log(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.starts_with("events.out.tfevents.") || name == "metrics.csv" || name == "metrics.jsonl";
}

/// Removes files that a killed run has left under temporary names.
void sweep(const fs::path& folder) {
  std::set<std::string> names{kHparams};
  for (const char* name : kFiles) names.insert(name);
  remove_leftovers(folder, names);
}

/// Returns the reason why no file can be made in `folder`, or "" if one can. Permissions alone do not show
/// this: a file system may be full or read-only.
std::string cannot_write_in(const fs::path& folder) {
  std::string name = (folder / ".mantissa-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) return std::generic_category().message(errno);
  close(file);
  unlink(name.c_str());
  return {};
}

bool is_own_file(const fs::path& name) {
  const auto is_one = [&](const char* own) { return name == own; };
  return std::any_of(kFiles.begin(), kFiles.end(), is_one) || name == kHparams || name == ".lock" ||
         is_log(name);
}

/// Another output must not overwrite what a run has written. `run` may not hold a run yet.
void check_is_no_runs_file(const fs::path& file, const fs::path& target, const fs::path& run) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(target, error), mine = fs::weakly_canonical(run, error);
  fs::path inside = whole.filename();  // relative to `folder`
  for (fs::path folder = whole.parent_path();; folder = folder.parent_path()) {
    const auto has = [&](const char* name) { return fs::exists(folder / name, error); };
    const bool holds_run =
        (has("config.yaml") && (has(kWeights) || has(kCheckpoints))) || (!run.empty() && folder == mine);
    if (holds_run && is_own_file(*inside.begin()))
      throw UsageError(file.string() + " is a file of the run in " + folder.string() +
                       ", which would be lost; name another file");
    if (folder == folder.parent_path()) return;
    inside = folder.filename() / inside;
  }
}

}  // namespace

RunFolder::RunFolder(const std::string& wanted, const std::string& label) {
  check_run_folder(wanted);
  std::error_code error;
  try {
    if (!wanted.empty()) {
      make(path_ = wanted);
    } else {
      make("runs");
      for (int number = 1;; ++number) {
        path_ = fs::path("runs") / (label + "-" + std::to_string(number));
        // create_directory is atomic: of two runs that start together, each gets its own folder.
        if (fs::create_directory(path_, error)) break;
        TORCH_CHECK(!error, "output folder ", path_.string(), " cannot be made: ", error.message(),
                    "; give --output another folder");
      }
      made_.push_back(path_);
    }
    lock_ = std::make_unique<FolderLock>(path_);
    held_ = std::make_unique<HeldFolder>(path_);
    sweep(path_);
    check_holds_no_run(path_);  // another run may have begun and ended meanwhile
    for (const auto& entry : fs::directory_iterator(path_)) existing_entries_.insert(entry.path());
  } catch (...) {
    lock_.reset();  // the lock's file would keep the folder from being removed
    for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) fs::remove(*folder, error);
    throw;
  }
}

RunFolder::RunFolder(const fs::path& existing)
    : path_(existing),
      lock_(std::make_unique<FolderLock>(existing)),
      held_(std::make_unique<HeldFolder>(existing)),
      is_fresh_(false) {
  sweep(existing);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) existing_entries_.insert(entry.path());
}

void RunFolder::replace(const fs::path& other) {
  auto held = std::make_unique<HeldFolder>(other.empty() ? held_->replace() : other);
  lock_ = std::make_unique<FolderLock>(held->path());
  path_ = held->path();
  held_ = std::move(held);
  keep_ = true;
}

std::vector<CheckpointEntry> RunFolder::checkpoints() const {
  const fs::path folder = file(kCheckpoints);
  return fs::is_directory(folder) ? list_checkpoints(folder) : std::vector<CheckpointEntry>();
}

RunFolder::~RunFolder() {
  if (keep_ || held_->is_lost()) return;  // its path now belongs to somebody else
  std::error_code ignored;                // files that cannot be removed stay
  std::vector<fs::path> written;
  for (const auto& entry : fs::directory_iterator(path_, ignored))
    if (!existing_entries_.contains(entry.path()) && (is_fresh_ || is_log(entry.path())))
      written.push_back(entry.path());
  for (const fs::path& file : written) fs::remove_all(file, ignored);
  lock_.reset();  // last, because another run may own the folder's files from here on
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) fs::remove(*folder, ignored);
}

void RunFolder::make(const fs::path& folder) {
  const std::error_code error = make_folders(folder, made_);
  TORCH_CHECK(!error, "output folder ", folder.string(), " cannot be made: ", error.message(),
              "; give --output another folder");
}

void check_run_folder(const std::string& wanted) {
  const fs::path folder = wanted.empty() ? "runs" : wanted;
  std::error_code error;
  // If a run is training there now, the user must not be told to remove it.
  if (!wanted.empty() && fs::exists(folder / ".lock", error)) FolderLock{folder};
  if (!wanted.empty()) check_holds_no_run(folder);
  fs::path above = folder;
  // The nearest existing parent folder must allow making what is missing.
  while (!above.empty() && !fs::exists(above, error)) above = above.parent_path();
  if (above.empty()) above = ".";
  const std::string reason =
      fs::is_directory(above, error) ? cannot_write_in(above) : above.string() + " is not a folder";
  TORCH_CHECK(reason.empty(), "output folder ", folder.string(), " cannot be made or written: ", reason,
              "; give --output another folder");
}

void check_writable(const fs::path& file, const fs::path& run) {
  const fs::path target = resolve_links(file);
  check_is_no_runs_file(file, target, run);
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

void check_is_no_input(const fs::path& output, const std::vector<std::string>& inputs) {
  std::error_code error;
  if (output.empty() || output == "-" || !fs::exists(output, error)) return;
  const fs::path target = fs::weakly_canonical(output, error);
  for (const std::string& input : inputs) {
    if (input.empty()) continue;
    const fs::path read = fs::weakly_canonical(input, error);
    const auto end = std::mismatch(read.begin(), read.end(), target.begin(), target.end()).first;
    if (end == read.end())
      throw UsageError("'" + output.string() + "' is " +
                       (read == target ? "the input itself" : "a file of the input '" + input + "'") +
                       "; choose another place for the output");
  }
}

void check_is_new(const fs::path& output, bool overwrite) {
  std::error_code error;
  TORCH_CHECK(overwrite || !fs::exists(fs::symlink_status(output, error)), "'", output.string(),
              "' already exists; choose another place, or give --overwrite");
}

}  // namespace mantissa::cli
