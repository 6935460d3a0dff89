#include <cctype>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/pcre2_internal.h"
#include "mantissa/data/tokenizers/pattern_internal.h"
#include "mantissa/data/tokenizers/utf8_internal.h"
#include "mantissa/io/json_internal.h"

namespace mantissa::tokenizers {
namespace {

/// Unicode's White_Space, to which PCRE2's \s adds U+180E.
constexpr std::string_view kSpaces =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
/// Letters of Unicode 15 and 16, which an older PCRE2 does not know.
constexpr std::string_view kNewLetters =
    "\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}"
    "\\x{10d4a}-\\x{10d65}\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}"
    "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}"
    "\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}"
    "\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-\\x{16d6c}"
    "\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}"
    "\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}"
    "\\x{31350}-\\x{323af}";
/// Numbers of Unicode 15 and 16.
constexpr std::string_view kNewNumbers =
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}"
    "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}"
    "\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}";
/// The decimal digits among them.
constexpr std::string_view kNewDigits =
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}"
    "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1e4f0}-\\x{1e4f9}"
    "\\x{1e5f1}-\\x{1e5fa}";

/// Reads an expression from left to right, and writes it for PCRE2.
class Translation {
 public:
  Translation(std::string_view expression, std::string where) : from_(expression), where_(std::move(where)) {}

  std::string run() {
    while (at_ < from_.size()) step();
    return std::move(to_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    TORCH_CHECK_VALUE(false, where_, ": ", what, " in the pattern '", fit_for_message(std::string(from_)),
                      "' is not supported; give the tokenizer.json of a GPT-2 or a Llama");
  }
  bool next_is(std::string_view text) const { return from_.substr(at_).starts_with(text); }
  void copy(size_t bytes) { to_ += from_.substr(at_, bytes), at_ += bytes; }

  void step() {
    const char c = from_[at_];
    if (c == '\\') return escape();
    if (in_class_) return step_in_class(c);
    if (c == '(' && next_is("(?")) return group();
    if (c == '[') return open_class();
    if (c == '}' && at_ + 1 < from_.size() && from_[at_ + 1] == '+') refuse("'}+'");
    copy(1);
  }
  void group() {
    for (const std::string_view known : {"(?:", "(?i:", "(?!", "(?=", "(?<!", "(?<="})
      if (next_is(known)) return copy(known.size());
    refuse("a group of this kind");
  }
  void open_class() {
    in_class_ = true;
    copy(next_is("[^") ? 2 : 1);
    if (next_is("]")) refuse("']' at the beginning of a class");
  }
  void step_in_class(char c) {
    if (c == '[' || next_is("&&")) refuse("a class within a class");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void escape() {
    if (at_ + 1 == from_.size()) refuse("a '\\' at the end");
    const char c = from_[at_ + 1];
    if (c == 'p' || c == 'P') return property(c == 'P');
    if (c == 's' || c == 'S') return write_set(kSpaces, c == 'S', 2);
    if (c == 'd' || c == 'D') return write_set("\\p{Nd}" + std::string(kNewDigits), c == 'D', 2);
    const bool is_letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_letter && std::string_view("rntfx").find(c) == std::string_view::npos)
      refuse(std::string("'\\") + c + "'");
    copy(2);
  }
  void property(bool is_negated) {
    const size_t end = from_.find('}', at_);
    if (from_.substr(at_ + 2, 1) != "{" || end == std::string_view::npos) refuse("'\\p' without braces");
    const std::string name(from_.substr(at_ + 3, end - at_ - 3));
    const size_t bytes = end + 1 - at_;
    if (name.starts_with('^')) refuse("'\\p{^'");
    const std::string_view newer = name == "L" ? kNewLetters : name == "N" ? kNewNumbers : std::string_view();
    if (newer.empty()) return copy(bytes);
    write_set("\\p{" + name + "}" + std::string(newer), is_negated, bytes);
  }
  /// Writes a set of characters instead of the next `bytes`.
  void write_set(std::string_view set, bool is_negated, size_t bytes) {
    if (in_class_ && is_negated) refuse("a negated set within a class");
    if (!in_class_) to_ += is_negated ? "[^" : "[";
    to_ += set;
    if (!in_class_) to_ += ']';
    at_ += bytes;
  }

  std::string_view from_;
  std::string where_, to_;
  size_t at_ = 0;
  bool in_class_ = false;
};

/// Returns the first match at or after `begin`, as {begin, end}; {npos, npos} if there is none.
std::pair<size_t, size_t> find(const pcre2_code* code, pcre2_match_data* data, std::string_view text,
                               size_t begin, uint32_t options = 0) {
  options |= PCRE2_NO_UTF_CHECK;
  int found = pcre2_match(code, pcre2::units_of(text), text.size(), begin, options, data, nullptr);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT)
    found =
        pcre2_match(code, pcre2::units_of(text), text.size(), begin, options | PCRE2_NO_JIT, data, nullptr);
  if (found == PCRE2_ERROR_NOMATCH) return {std::string_view::npos, std::string_view::npos};
  TORCH_CHECK(found >= 0, "the tokenizer's pattern fails at byte ", begin, " of the text (",
              pcre2::message_of(found), "); give the text in shorter parts");
  const size_t* const ends = pcre2_get_ovector_pointer(data);
  return {ends[0], ends[1]};
}

const pcre2_code* code_in(const std::shared_ptr<const void>& code) {
  return static_cast<const pcre2_code*>(code.get());
}

}  // namespace

std::string for_pcre2(const std::string& expression, const std::string& where) {
  return Translation(expression, where).run();
}

Pattern::Pattern(const std::string& expression, const std::string& where, Dialect dialect) {
  constexpr size_t kLongest = 10000;
  TORCH_CHECK_VALUE(expression.size() <= kLongest, where, ": a pattern has ", expression.size(),
                    " bytes, and at most ", kLongest, " are supported; give another tokenizer.json");
  const std::string translated = dialect == Dialect::kPcre2 ? expression : for_pcre2(expression, where);
  auto [code, problem, position] =
      pcre2::compile(translated, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE);
  TORCH_CHECK_VALUE(code, where, ": the pattern '", fit_for_message(expression),
                    "' is no regular expression (", problem,
                    "); give the tokenizer.json of a GPT-2 or a Llama");
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without it, the interpreter finds the same
  code_ = std::move(code);
}

void Pattern::cut(std::string_view text, const std::function<void(std::string_view piece)>& visit) const {
  const pcre2::MatchData data = pcre2::match_data_for(code_in(code_));
  size_t done = 0;
  for (size_t from = 0; from < text.size();) {
    const auto [begin, end] = find(code_in(code_), data.get(), text, from);
    if (begin == std::string_view::npos) break;
    if (begin > done) visit(text.substr(done, begin - done));
    if (end > begin) visit(text.substr(begin, end - begin));
    done = end;
    from = end > begin || end == text.size() ? end : end + utf8_step(text.substr(end)).bytes;
  }
  if (done < text.size()) visit(text.substr(done));
}

bool Pattern::begins(std::string_view text) const {
  const pcre2::MatchData data = pcre2::match_data_for(code_in(code_));
  return find(code_in(code_), data.get(), text, 0, PCRE2_ANCHORED).first == 0;
}

}  // namespace mantissa::tokenizers
