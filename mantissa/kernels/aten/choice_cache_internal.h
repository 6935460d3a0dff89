#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mantissa/kernels/aten/choice.h"

namespace mantissa {

/// The least time of each kernel over all moments at which a family was measured.
struct CachedTimings {
  std::vector<KernelTiming> timings;
  int moments = 1;
  int64_t last = 0;  ///< the latest moment, in seconds since 1970
};

/// The times measured on this CPU, kept in a file of the user: in MANTISSA_CACHE_DIR, else in
/// $XDG_CACHE_HOME/mantissa or ~/.cache/mantissa. There is one file for each CPU, release and setting of the
/// variables that limit instructions. There is none if MANTISSA_CACHE_DIR is empty. A file that cannot be
/// read or written is not an error: each process then measures for itself.
class ChoiceCache {
 public:
  static ChoiceCache read();
  /// Reads the times of FP8 layers on a device, for which there is a file for each name, release and libtorch. There is
  /// none for the name "".
  static ChoiceCache read_of_device(const std::string& name);

  const std::map<std::string, CachedTimings>& rows() const { return rows_; }
  /// Returns an empty list if there are none.
  std::vector<KernelTiming> timings(const std::string& key) const;
  /// True if the family should be measured: it has no times, or those of one or two moments that are more than an hour ago.
  /// What else ran on the host at a single moment may have slowed down one kernel more than another.
  bool is_due(const std::string& key) const;
  /// Keeps the lesser one of each time and of that from earlier moments. Writes a new file and renames it into place, so that
  /// no reader sees half of it.
  void keep(const std::map<std::string, std::vector<KernelTiming>>& rows);

  /// text() is the content of the file. parse() reads such content; it returns nothing if any part of it is
  /// unusable.
  std::string text() const;
  static std::map<std::string, CachedTimings> parse(const std::string& text, const std::string& title);

 private:
  static ChoiceCache read(const std::string& file, const std::string& title);

  std::string path_, title_;
  std::map<std::string, CachedTimings> rows_;
};

}  // namespace mantissa
