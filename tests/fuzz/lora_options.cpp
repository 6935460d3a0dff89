#include <algorithm>
#include <string>
#include <string_view>

#include "cli/lora_option.h"
#include "mantissa/lora/lora_config.h"
#include "mantissa/lora/module_names.h"
#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {
namespace {

constexpr const char* kNames[] = {"blocks.0.attention.query_projection", "head",
                                  "a.a.a.a.a.a.a.a.a.a.a.a.a.b", ""};

void parse_options(const std::string& text) {
  const auto read = accepted([&] { return cli::parse_lora("--lora", text); });
  if (!read || !*read) return;
  const LoraConfig& config = **read;
  check_lora_config(config);
  for (const char* const name : kNames) {
    require(config.rank_of(name) == config.r && config.alpha_of(name) == config.lora_alpha,
            "another rank or alpha");
    static_cast<void>(config.target_modules.matches(name));
    static_cast<void>(config.exclude_modules.matches(name));
  }
  // What a run saves can be loaded again.
  const auto again = accepted([&] { return parse_adapter_config(to_adapter_config(config), "f"); });
  require(again.has_value(), "a saved adapter is refused");
  // JSON must be UTF-8, so that other bytes are replaced in it.
  const bool is_ascii = std::all_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x80; });
  require(!is_ascii || *again == config, "other settings after saving");
}

void match_expression(const std::string& expression) {
  const auto names = accepted([&] { return ModuleNames(expression); });
  if (!names) return;
  // Neither takes for ever nor overflows the stack.
  for (const char* const name : kNames) {
    const auto matches = [&] { return accepted([&] { return names->matches(name); }); };
    require(matches() == matches(), "two answers");
  }
  require(names->expression() == expression, "another expression");
}

}  // namespace

void lora_options(std::string_view bytes) {
  const size_t end = bytes.find('\n');
  parse_options(std::string(bytes.substr(0, end)));
  if (end != std::string_view::npos) match_expression(std::string(bytes.substr(end + 1)));
}

}  // namespace mantissa::fuzz
