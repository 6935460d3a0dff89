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

/// Returns the compiled expression, or null and the reason.
std::pair<pcre2::Code, std::string> compile(const std::string& expression) {
  constexpr size_t kMaxLength = 4096;
  constexpr uint32_t kOptions =
      PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  if (expression.size() > kMaxLength)
    return {nullptr, c10::str("it has ", expression.size(), " bytes; at most ", kMaxLength, " are allowed")};
  const pcre2::CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  const std::string for_pcre2 = with_lower_bounds(expression);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2::Code code(
      pcre2_compile(pcre2::units_of(for_pcre2), for_pcre2.size(), kOptions, &error, &at, context.get()));
  if (code) return {std::move(code), ""};
  return {nullptr, pcre2::message_of(error)};
}

/// Compiles each expression once, because it is matched against the names of all layers.
const pcre2_code* compiled(const std::string& expression) {
  constexpr size_t kMaxKept = 256;  // of some 70 KiB each at most
  thread_local std::map<std::string, pcre2::Code> kept;
  if (const auto found = kept.find(expression); found != kept.end()) return found->second.get();
  auto [code, problem] = compile(expression);
  TORCH_CHECK_VALUE(code, "'", fit_for_message(expression), "' is no regular expression (", problem,
                    "); list the ends of the modules' names instead");
  if (kept.size() == kMaxKept) kept.clear();
  return kept.emplace(expression, std::move(code)).first->second.get();
}

size_t bytes_of(const pcre2_code* code, uint32_t what) {
  size_t bytes = 0;
  pcre2_pattern_info(code, what, &bytes);
  return bytes;
}

/// A file's expression may need exponentially many steps. Between two of them PCRE2 may walk through all of the code, and each
/// copies a frame, so the number of steps is bounded by their cost. A match ends within about half a second.
pcre2::MatchContext limits(const pcre2_code* code) {
  constexpr size_t kMaxBytes = 100'000'000;
  constexpr uint32_t kMaxKibibytes = 65'536;
  const size_t bytes_per_step = bytes_of(code, PCRE2_INFO_SIZE) + bytes_of(code, PCRE2_INFO_FRAMESIZE);
  pcre2::MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(kMaxBytes / bytes_per_step));
  pcre2_set_heap_limit(context.get(), kMaxKibibytes);
  return context;
}

}  // namespace

std::string problem_of(const std::string& expression) { return compile(expression).second; }

bool matches_whole(const std::string& name, const std::string& expression) {
  const pcre2_code* const code = compiled(expression);
  const pcre2::MatchContext context = limits(code);
  const pcre2::MatchData data(pcre2_match_data_create_from_pattern(code, nullptr));
  const int found = pcre2_match(code, pcre2::units_of(name), name.size(), 0, 0, data.get(), context.get());
  if (found >= 0) return true;
  const bool is_not_utf8 = found <= PCRE2_ERROR_UTF8_ERR1 && found >= PCRE2_ERROR_UTF8_ERR21;
  if (found == PCRE2_ERROR_NOMATCH || is_not_utf8) return false;
  TORCH_CHECK_VALUE(false, "the regular expression '", fit_for_message(expression),
                    "' fails for the module '", fit_for_message(name), "' (", pcre2::message_of(found),
                    "); simplify it, or list the ends of the modules' names instead");
}

}  // namespace mantissa::lora
