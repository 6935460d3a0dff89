#include "cli/run_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/io/atomic_file.h"
#include "mantissa/io/make_folders.h"

namespace mantissa::cli {
namespace fs = std::filesystem;
namespace {

/// The files that show that a folder holds a run.
constexpr std::array kFiles{"config.yaml", "metrics.csv", "metrics.jsonl", kModelConfig, kWeights,
                            kResult,       kFallbacks,    kCheckpoints,    kDataRecord,  kAdapter};
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

std::string cannot_write_in(const fs::path& folder) {
  std::string name = (folder / ".mantissa-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) return std::generic_category().message(errno);
  close(file);
  unlink(name.c_str());
  return {};
}

bool is_file_of_run(const std::string& name) {
  const auto is_one = [&](const char* own) { return name == own; };
  return std::any_of(kFiles.begin(), kFiles.end(), is_one) || name == kHparams || name == ".lock" ||
         is_log(name);
}

}  // namespace mantissa::cli
