#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "mantissa/core/pcre2_internal.h"
#include "mantissa/io/json_internal.h"
#include "mantissa/lora/expression_internal.h"

namespace mantissa::lora {
namespace {

/// Returns the compiled expression, or null and the reason.
std::pair<pcre2::Code, std::string> compile(const std::string& expression) {
  constexpr uint32_t kOptions =
      PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2::Code code(
      pcre2_compile(pcre2::units_of(expression), expression.size(), kOptions, &error, &at, nullptr));
  if (code) return {std::move(code), ""};
  return {nullptr, c10::str(pcre2::message_of(error), ", at byte ", at + 1)};
}

/// Compiles each expression once, because it is matched against the names of all layers.
const pcre2_code* compiled(const std::string& expression) {
  constexpr size_t kMaxKept = 256;  // of some 64 KiB each at most
  thread_local std::map<std::string, pcre2::Code> kept;
  if (const auto found = kept.find(expression); found != kept.end()) return found->second.get();
  auto [code, problem] = compile(expression);
  TORCH_CHECK_VALUE(code, "'", fit_for_message(expression), "' is no regular expression (", problem,
                    "); list the ends of the modules' names instead");
  if (kept.size() == kMaxKept) kept.clear();
  return kept.emplace(expression, std::move(code)).first->second.get();
}

/// A file's expression may need exponentially many steps. This bound is reached within a tenth of a second.
pcre2::MatchContext limits() {
  constexpr uint32_t kMaxSteps = 1'000'000, kMaxKibibytes = 65'536;
  pcre2::MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_heap_limit(context.get(), kMaxKibibytes);
  return context;
}

}  // namespace

std::string problem_of(const std::string& expression) { return compile(expression).second; }

bool matches_whole(const std::string& name, const std::string& expression) {
  const pcre2_code* const code = compiled(expression);
  const pcre2::MatchContext context = limits();
  const pcre2::MatchData data(pcre2_match_data_create_from_pattern(code, nullptr));
  const int found = pcre2_match(code, pcre2::units_of(name), name.size(), 0, 0, data.get(), context.get());
  if (found >= 0) return true;
  const bool is_not_utf8 = found <= PCRE2_ERROR_UTF8_ERR1 && found >= PCRE2_ERROR_UTF8_ERR21;
  if (found == PCRE2_ERROR_NOMATCH || is_not_utf8) return false;
  TORCH_CHECK_VALUE(
      false, "the regular expression '", fit_for_message(expression), "' fails for the module '",
      fit_for_message(name), "' (", pcre2::message_of(found),
      "); write it without a repetition inside a repetition, or list the ends of the modules' names instead");
}

}  // namespace mantissa::lora
