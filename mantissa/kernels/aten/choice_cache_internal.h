#pragma once

#include <map>
#include <string>
#include <vector>

#include "mantissa/kernels/aten/choice.h"

namespace mantissa {

/// The times measured on this CPU, in a file of the user's: in MANTISSA_CACHE_DIR, else in $XDG_CACHE_HOME/mantissa
/// or ~/.cache/mantissa. There is a file for each CPU, release and set of variables that cap instructions, and none if
/// MANTISSA_CACHE_DIR is empty. A file that cannot be read or written is no error: then each process measures.
class ChoiceCache {
 public:
  static ChoiceCache read();

  /// Empty if there are none.
  std::vector<KernelTiming> timings(const std::string& key) const;
  /// Writes the file anew, beside it first, so that no reader sees half of it.
  void keep(const std::map<std::string, std::vector<KernelTiming>>& rows);

  /// The file's text, and what of such a text can be used: all of it, or nothing.
  std::string text() const;
  static std::map<std::string, std::vector<KernelTiming>> parse(const std::string& text,
                                                                const std::string& title);

 private:
  std::string path_, title_;
  std::map<std::string, std::vector<KernelTiming>> rows_;
};

}  // namespace mantissa
