#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "mantissa/core/pcre2_internal.h"
#include "mantissa/io/json_internal.h"
#include "mantissa/lora/expression_internal.h"

namespace mantissa::lora {
namespace {

/// Returns the end of the set of characters that begins at `at`, or that of the expression.
size_t end_of_set(const std::string& expression, size_t at) {
  size_t end = expression.find_first_not_of('^', at + 1);
  if (end < expression.size() && expression[end] == ']') ++end;  // the first one belongs to the set
  while (end < expression.size() && expression[end] != ']') end += expression[end] == '\\' ? 2 : 1;
  return std::min(end, expression.size());
}

/// Writes Python's `{,3}` as `{0,3}`, because PCRE2 before 10.43 takes it for five characters.
std::string with_lower_bounds(const std::string& expression) {
  std::string result;
  for (size_t at = 0; at < expression.size();) {
    size_t end = at + 1;
    if (expression[at] == '\\') end = std::min(at + 2, expression.size());
    if (expression[at] == '[') end = end_of_set(expression, at);
    result.append(expression, at, end - at);
    const size_t digits_end = expression.find_first_not_of("0123456789", at + 2);
    if (expression.compare(at, 2, "{,") == 0 && digits_end < expression.size() &&
        expression[digits_end] == '}')
      result += '0';
    at = end;
  }
  return result;
}

pcre2::Compiled compile(const std::string& expression) {
  constexpr size_t kMaxLength = 4096;
  constexpr uint32_t kOptions =
      PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  if (expression.size() > kMaxLength)
    return {nullptr, c10::str("it has ", expression.size(), " bytes; at most ", kMaxLength, " are allowed"),
            kMaxLength};
  const pcre2::CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  return pcre2::compile(with_lower_bounds(expression), kOptions, context.get());
}

size_t bytes_of(const pcre2_code* code, uint32_t what) {
  size_t bytes = 0;
  pcre2_pattern_info(code, what, &bytes);
  return bytes;
}

/// A file's expression may need exponentially many steps. Between two of them PCRE2 may walk through all of the code, and each
/// copies a frame, so the number of steps is bounded by their cost. A match ends within about half a second.
pcre2::MatchContext limits_of(const pcre2_code* code) {
  constexpr size_t kMaxBytes = 100'000'000;
  constexpr uint32_t kMaxKibibytes = 65'536;
  const size_t bytes_per_step = bytes_of(code, PCRE2_INFO_SIZE) + bytes_of(code, PCRE2_INFO_FRAMESIZE);
  pcre2::MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(kMaxBytes / bytes_per_step));
  pcre2_set_heap_limit(context.get(), kMaxKibibytes);
  return context;
}

/// Everything that a match needs except for the name.
struct Matcher {
  pcre2::Code code;
  pcre2::MatchContext limits;
  pcre2::MatchData data;
};

/// Makes a matcher once for each expression, because it is matched against the names of all layers.
const Matcher& matcher_of(const std::string& expression) {
  constexpr size_t kMaxKept = 256;  // of some 70 KiB each at most
  thread_local std::map<std::string, Matcher> kept;
  if (const auto found = kept.find(expression); found != kept.end()) return found->second;
  auto [code, problem, position] = compile(expression);
  TORCH_CHECK_VALUE(code, "'", fit_for_message(expression), "' is no regular expression (", problem,
                    "); list the ends of the modules' names instead");
  if (kept.size() == kMaxKept) kept.clear();
  pcre2::MatchContext limits = limits_of(code.get());
  pcre2::MatchData data = pcre2::match_data_for(code.get());
  return kept.emplace(expression, Matcher{std::move(code), std::move(limits), std::move(data)}).first->second;
}

}  // namespace

std::string problem_of(const std::string& expression) { return compile(expression).problem; }

bool matches_whole(const std::string& name, const std::string& expression) {
  const Matcher& matcher = matcher_of(expression);
  const int found = pcre2_match(matcher.code.get(), pcre2::units_of(name), name.size(), 0, 0,
                                matcher.data.get(), matcher.limits.get());
  if (found >= 0) return true;
  const bool is_not_utf8 = found <= PCRE2_ERROR_UTF8_ERR1 && found >= PCRE2_ERROR_UTF8_ERR21;
  if (found == PCRE2_ERROR_NOMATCH || is_not_utf8) return false;
  TORCH_CHECK_VALUE(false, "the regular expression '", fit_for_message(expression),
                    "' fails for the module '", fit_for_message(name), "' (", pcre2::message_of(found),
                    "); simplify it, or list the ends of the modules' names instead");
}

}  // namespace mantissa::lora
