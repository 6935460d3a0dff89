#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/// These are the helpers of all users of PCRE2. A room that includes this file links the library.
namespace mantissa::pcre2 {

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using Code = std::unique_ptr<pcre2_code, Free>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Free>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free>;
using MatchData = std::unique_ptr<pcre2_match_data, Free>;

inline PCRE2_SPTR units_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

/// Returns PCRE2's text for an error that one of its functions returned.
inline std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct Compiled {
  Code code;  // null if the expression has a problem
  std::string problem;
  size_t position;  // of the problem, in bytes
};

inline Compiled compile(std::string_view expression, uint32_t options,
                        pcre2_compile_context* context = nullptr) {
  int error = 0;
  PCRE2_SIZE position = 0;
  Code code(pcre2_compile(units_of(expression), expression.size(), options, &error, &position, context));
  const std::string problem = code ? "" : message_of(error);
  return {std::move(code), problem, position};
}

inline MatchData match_data_for(const pcre2_code* code) {
  return MatchData(pcre2_match_data_create_from_pattern(code, nullptr));
}

}  // namespace mantissa::pcre2
