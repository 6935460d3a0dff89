#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sstream>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <ATen/Context.h>
#include <torch/headeronly/version.h>

#include "mantissa/core/clock_internal.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/core/fnv1a_internal.h"
#include "mantissa/kernels/aten/choice_cache_internal.h"

namespace mantissa {
namespace {

/// Raise this when a kernel becomes faster or a family's typical call changes: it invalidates earlier
/// measurements.
constexpr int kRevision = 13;
constexpr int kLayersRevision = 2;  // the same for FP8 layers
/// At how many moments a family is measured, and how far apart these are. Other programs on the host use its caches, its
/// memory or its AMX units for minutes at a time.
constexpr int kMoments = 3;
constexpr int64_t kSecondsApart = 3600;
constexpr size_t kMaxBytes = size_t{1} << 16;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns "" if nothing should be cached.
std::string cache_folder() {
  if (std::getenv("MANTISSA_CACHE_DIR") != nullptr) return environment("MANTISSA_CACHE_DIR");
  const std::string cache = environment("XDG_CACHE_HOME"), home = environment("HOME");
  if (!cache.empty() && cache.front() == '/') return cache + "/mantissa";
  return home.empty() ? "" : home + "/.cache/mantissa";
}

std::string without_line_ends(std::string line) {
  for (char& letter : line)
    if (letter == '\n') letter = ' ';
  return line;
}

/// Everything that the times of FP8 layers depend on, in one line.
std::string title_of_device(const std::string& name) {
  std::ostringstream text;
  text << "Mantissa " MANTISSA_VERSION " fp8 layers " << kLayersRevision << ", libtorch " TORCH_VERSION ", "
       << name;
  return without_line_ends(text.str());
}

/// The same for the CPU's kernels.
std::string title() {
  std::ostringstream text;
  text << "Mantissa " MANTISSA_VERSION " kernels " << kRevision << ", libtorch " TORCH_VERSION ", "
       << cpu_model() << ", up to " << tier_name(cpu_tier());
  for (const char* const name : {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
                                 "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_ENABLE_INSTRUCTIONS"})
    if (const std::string value = environment(name); !value.empty()) text << ", " << name << '=' << value;
  if (!at::globalContext().userEnabledMkldnn()) text << ", without oneDNN";
  return without_line_ends(text.str());
}

/// Returns the hash of `text` in hexadecimal. It only names a file; the file contains the title as well.
std::string hash_of(std::string_view text) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(fnv1a(text)));
  return digits;
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

/// Returns the content of a regular file that this user owns, and "" for anything else.
std::string read_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != geteuid() || static_cast<size_t>(status.st_size) > kMaxBytes)
    return "";
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t more = ::read(file.get(), text.data() + size, text.size() - size);
    if (more <= 0) break;
    size += static_cast<size_t>(more);
  }
  text.resize(size);
  return text;
}

void make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    mkdir(path.substr(0, end).c_str(), 0700);
    if (end == std::string::npos) return;
  }
}

void write_file(const std::string& path, std::string_view text) {
  std::string temporary = path + ".XXXXXX";
  const Descriptor file(mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0) return;
  const bool written = ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!written || rename(temporary.c_str(), path.c_str()) != 0) unlink(temporary.c_str());
}

bool are_of_same_kernels(const std::vector<KernelTiming>& some, const std::vector<KernelTiming>& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const KernelTiming& a, const KernelTiming& b) { return a.kernel == b.kernel; });
}

std::vector<KernelTiming> least_of(std::vector<KernelTiming> some, const std::vector<KernelTiming>& others) {
  for (size_t i = 0; i < some.size(); ++i) some[i].seconds = std::min(some[i].seconds, others[i].seconds);
  return some;
}

}  // namespace

ChoiceCache ChoiceCache::read() { return read("cpu-kernels-", title()); }

ChoiceCache ChoiceCache::read_of_device(const std::string& name) {
  return name.empty() ? ChoiceCache() : read("fp8-layers-", title_of_device(name));
}

ChoiceCache ChoiceCache::read(const std::string& file, const std::string& title) {
  ChoiceCache cache;
  const std::string folder = cache_folder();
  if (folder.empty()) return cache;
  cache.title_ = title;
  cache.path_ = folder + "/" + file + hash_of(cache.title_);
  cache.rows_ = parse(read_file(cache.path_), cache.title_);
  return cache;
}

std::vector<KernelTiming> ChoiceCache::timings(const std::string& key) const {
  const auto row = rows_.find(key);
  return row == rows_.end() ? std::vector<KernelTiming>{} : row->second.timings;
}

bool ChoiceCache::is_due(const std::string& key) const {
  const auto row = rows_.find(key);
  if (row == rows_.end()) return true;
  const int64_t age = time_of(CLOCK_REALTIME) / std::chrono::seconds(1) - row->second.last;
  return row->second.moments < kMoments && age >= kSecondsApart;
}

void ChoiceCache::keep(const std::map<std::string, std::vector<KernelTiming>>& rows) {
  const int64_t now = time_of(CLOCK_REALTIME) / std::chrono::seconds(1);
  for (const auto& [key, timings] : rows) {
    CachedTimings& row = rows_[key];
    row = are_of_same_kernels(row.timings, timings)
              ? CachedTimings{least_of(row.timings, timings), row.moments + 1, now}
              : CachedTimings{timings, 1, now};
  }
  if (path_.empty()) return;
  // Keeps rows that other processes have measured meanwhile.
  for (auto& [other, row] : parse(read_file(path_), title_)) rows_.emplace(other, std::move(row));
  make_folders(path_.substr(0, path_.rfind('/')));
  write_file(path_, text());
}

/// The format is the title, then one line per family: its key, the number of moments, the latest of them, and each kernel
/// with its seconds.
std::string ChoiceCache::text() const {
  std::ostringstream text;
  text.precision(17);  // so that every process decides the same
  text << title_ << '\n';
  for (const auto& [key, row] : rows_) {
    text << key << ' ' << row.moments << ' ' << row.last;
    for (const KernelTiming& timing : row.timings) text << ' ' << timing.kernel << ' ' << timing.seconds;
    text << '\n';
  }
  return text.str();
}

std::map<std::string, CachedTimings> ChoiceCache::parse(const std::string& text, const std::string& title) {
  std::map<std::string, CachedTimings> rows;
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != title) return {};
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string key, kernel, seconds;
    CachedTimings row;
    if (!(words >> key >> row.moments >> row.last) || row.moments <= 0 || row.last < 0) return {};
    while (words >> kernel >> seconds) {
      char* end = nullptr;
      row.timings.push_back({kernel, std::strtod(seconds.c_str(), &end)});  // reads inf, too
      if (*end != '\0' || std::isnan(row.timings.back().seconds) || row.timings.back().seconds <= 0)
        return {};
    }
    if (row.timings.empty()) return {};
    rows[key] = std::move(row);
  }
  return rows;
}

}  // namespace mantissa
