#include "mantissa/core/suggest.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

namespace mantissa {
namespace {

/// Returns the number of edits from `a` to `b`, ignoring case. An edit inserts, removes or replaces a letter
/// or swaps two neighbours (Damerau's distance as optimal string alignment). The exact number matters only
/// below `limit`: the search stops once the result cannot be smaller.
size_t edit_distance(const std::string& a, const std::string& b, size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= limit) return limit;
  const auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  };
  std::vector<size_t> before_last, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    // A swap starts from the row before the last one and skips this one.
    const auto is_out = [&](size_t distance) { return distance >= limit; };
    if (std::all_of(row.begin(), row.end(), is_out) && std::all_of(last.begin(), last.end(), is_out))
      return limit;
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  // A name of a million letters comes from a file, not from a typing error, and would take hours to compare.
  constexpr size_t kMaxNameLength = 1000;
  if (name.size() > kMaxNameLength) return "";
  // "adam8" is the beginning of "adam8bit", although fewer edits lead to "adamw".
  const auto begins = [&](const std::string& candidate) {
    return name.size() > 2 && candidate.starts_with(name);
  };
  if (std::count_if(candidates.begin(), candidates.end(), begins) == 1)
    return *std::find_if(candidates.begin(), candidates.end(), begins);
  std::string best;
  size_t best_distance = std::max<size_t>(name.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate, best_distance);
    // With half of the letters wrong, any short name is near any other: "O4" was not meant to be "O0".
    if (distance < best_distance && 2 * distance < std::max(name.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty()) return best;
  const auto contains = [&](const std::string& candidate) {
    return name.size() > 2 && candidate.find(name) != std::string::npos;
  };
  const auto first = std::find_if(candidates.begin(), candidates.end(), contains);
  const bool only = first != candidates.end() && std::none_of(first + 1, candidates.end(), contains);
  if (only) return *first;
  // "epochs" probably means the first candidate that ends in that word.
  const auto last_word =
      std::find_if(candidates.begin(), candidates.end(), [&](const std::string& candidate) {
        return contains(candidate) && candidate.ends_with(name) &&
               !std::isalnum(static_cast<unsigned char>(candidate[candidate.size() - name.size() - 1]));
      });
  return last_word == candidates.end() ? "" : *last_word;
}

std::string join_names(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ", ") + name;
  return joined;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

}  // namespace mantissa
