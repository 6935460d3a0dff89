#include "mantissa/precision/mode_suggestion.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "mantissa/core/formats.h"
#include "mantissa/core/suggest.h"
#include "mantissa/precision/registry.h"

namespace mantissa {
namespace {

/// A name that other libraries use for a format.
struct FormatWord {
  std::string_view word;
  Format format;
};
constexpr auto kFormatWords = std::to_array<FormatWord>({
    {"16", Format::kFloat16},        {"fp16", Format::kFloat16},
    {"f16", Format::kFloat16},       {"float16", Format::kFloat16},
    {"half", Format::kFloat16},      {"bf16", Format::kBFloat16},
    {"b16", Format::kBFloat16},      {"bfloat16", Format::kBFloat16},
    {"brain", Format::kBFloat16},    {"fp32", Format::kFloat32},
    {"f32", Format::kFloat32},       {"float32", Format::kFloat32},
    {"float", Format::kFloat32},     {"single", Format::kFloat32},
    {"full", Format::kFloat32},      {"tf32", Format::kTF32},
    {"32", Format::kFloat32},        {"fp64", Format::kFloat64},
    {"f64", Format::kFloat64},       {"float64", Format::kFloat64},
    {"double", Format::kFloat64},    {"64", Format::kFloat64},
    {"int4", Format::kNF4},          {"4", Format::kNF4},
    {"4bit", Format::kNF4},          {"8", Format::kInt8},
    {"8bit", Format::kInt8},         {"llmint8", Format::kInt8},
    {"fp8", Format::kFloat8E4M3},    {"f8", Format::kFloat8E4M3},
    {"float8", Format::kFloat8E4M3}, {"e4m3", Format::kFloat8E4M3},
    {"te", Format::kFloat8E4M3},
});

/// Removes the first of `words` that occurs in `text`.
bool remove_first(std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    const size_t at = text.find(word);
    if (at == std::string::npos) continue;
    text.erase(at, word.size());
    return true;
  }
  return false;
}

/// Returns the format that a mode is named after: that of its weights, if they are codes, else of its products.
Format main_format(const Mode& mode) {
  if (mode.traits.frozen_weights) return *mode.traits.weights;
  return mode.traits.layer_products.value_or(mode.traits.compute);
}

/// Returns the letters and digits of a name, in lower case: "bf16mixed" for "BF16_mixed".
std::string letters_of(const std::string& name) {
  std::string text;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c))) text += static_cast<char>(std::tolower(c));
  return text;
}

/// Returns "int8" for "INT8_train".
std::string first_word(const std::string& name) {
  const auto end = std::find_if(name.begin(), name.end(),
                                [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return letters_of({name.begin(), end});
}

/// Returns the numbers in a name: 8 and 4 for "fp8-e4".
std::set<std::string> numbers_in(const std::string& name) {
  std::set<std::string> numbers;
  std::string number;
  for (const char c : name + " ") {
    if (std::isdigit(static_cast<unsigned char>(c))) {
      number += c;
    } else if (!number.empty()) {
      numbers.insert(std::exchange(number, ""));
    }
  }
  return numbers;
}

std::optional<Format> format_called(const std::string& word) {
  const auto* const found = std::find_if(kFormatWords.begin(), kFormatWords.end(),
                                         [&](const FormatWord& row) { return row.word == word; });
  return found == kFormatWords.end() ? std::nullopt : std::optional(found->format);
}

using ModeList = std::vector<const Mode*>;

/// Returns the modes, without Apex's, for which `is_meant` is true.
template <typename IsMeant>
ModeList modes_that(const IsMeant& is_meant) {
  ModeList found;
  for (const Mode& mode : modes())
    if (!mode.historical && is_meant(mode)) found.push_back(&mode);
  return found;
}

/// Returns the modes that a name such as "fp16", "torch.float16", "pure bf16" or "mixed" describes.
ModeList described_modes(const std::string& name) {
  std::string text = letters_of(name);
  remove_first(text, {"torch"});
  remove_first(text, {"precision"});
  const bool is_mixed = remove_first(text, {"mixed", "amp"}),
             is_true = !is_mixed && remove_first(text, {"true", "pure"});
  const std::optional<Format> format = format_called(text);
  if (!format && !(text.empty() && (is_mixed || is_true))) return {};
  return modes_that([&](const Mode& mode) {
    return (!format || main_format(mode) == *format) && (!is_mixed || mode.name.ends_with("mixed")) &&
           (!is_true || mode.name.ends_with("true"));
  });
}

/// Returns the modes whose names begin with the letters and digits of `name`, or the one that has no others:
/// int8-training for "int8_tr" and for "Int8Training".
ModeList modes_beginning_with(const std::string& name) {
  const std::string text = letters_of(name);
  if (text.size() < 2) return {};
  const ModeList same = modes_that([&](const Mode& mode) { return letters_of(mode.name) == text; });
  return !same.empty()
             ? same
             : modes_that([&](const Mode& mode) { return letters_of(mode.name).starts_with(text); });
}

/// Returns the modes that the first word of a name describes or that have the same first word: nf4 and nf4-dq for
/// "nf4-double".
ModeList modes_of_first_word(const std::string& name) {
  const std::string word = first_word(name);
  const std::optional<Format> format = format_called(word);
  return modes_that([&](const Mode& mode) {
    return first_word(mode.name) == word || (format && main_format(mode) == *format);
  });
}

/// Leaves out the modes of another width: "fp8" is no typing error for fp4. "bf17" has a number that no mode has, and
/// may be one for bf16.
std::vector<std::string> modes_of_same_width(const std::string& name, std::vector<std::string> names) {
  std::set<std::string> known;
  for (const Mode& mode : modes()) known.merge(numbers_in(mode.name));
  for (const std::string& number : numbers_in(name))
    if (known.contains(number))
      std::erase_if(names, [&](const std::string& each) { return !numbers_in(each).contains(number); });
  return names;
}

/// Returns "; did you mean '16-mixed' (...) or '16-true' (...)?", or "" for no modes.
std::string question_of(const ModeList& meant) {
  std::string text;
  for (const Mode* const mode : meant)
    text += (text.empty() ? "; did you mean '" : " or '") + mode->name + "' (" + mode->summary + ")";
  return text.empty() ? "" : text + "?";
}

}  // namespace

std::string suggest_modes(const std::string& name, const std::vector<std::string>& names) {
  const auto allowed = [&](ModeList list) {
    std::erase_if(list,
                  [&](const Mode* mode) { return std::ranges::find(names, mode->name) == names.end(); });
    return list;
  };
  for (const ModeList& meant : {allowed(described_modes(name)), allowed(modes_beginning_with(name))})
    if (!meant.empty()) return question_of(meant);
  const ModeList alike = allowed(modes_of_first_word(name));
  std::vector<std::string> names_alike;
  for (const Mode* const mode : alike) names_alike.push_back(mode->name);
  if (const std::string nearest = did_you_mean(name, names_alike); !nearest.empty()) return nearest;
  return alike.empty() ? did_you_mean(name, modes_of_same_width(name, names)) : question_of(alike);
}

}  // namespace mantissa
