#include "cli/terminal_text.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fnmatch.h>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"

namespace mantissa::cli {

std::string human_bytes(uint64_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double amount = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // From 1023.95 on, the amount would be rounded to "1024.0".
  for (; amount >= 1023.95 && unit + 1 < kUnits.size(); ++unit) amount /= 1024;
  return fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

bool matches_any(const std::vector<std::string>& globs, const std::string& name) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

void check_globs(const char* flag, const std::vector<std::string>& globs,
                 const std::vector<std::string>& names) {
  for (const std::string& glob : globs) {
    const bool found = std::any_of(names.begin(), names.end(),
                                   [&](const std::string& name) { return matches_any({glob}, name); });
    TORCH_CHECK_VALUE(found, flag, " '", glob, "' matches none of the ", names.size(), " tensors",
                      did_you_mean(glob, names), "; `mantissa inspect --no-values` lists them");
  }
}

}  // namespace mantissa::cli
