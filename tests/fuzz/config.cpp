#include <cmath>

#include "cli/config_file.h"
#include "cli/option.h"
#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {
namespace {

bool same(const cli::OptionValue* a, const cli::OptionValue* b) {
  if (!a || !b) return a == b;
  const auto *const x = std::get_if<double>(a), *const y = std::get_if<double>(b);
  return *a == *b || (x && y && std::isnan(*x) && std::isnan(*y));
}

}  // namespace

void config(std::string_view bytes) {
  const auto values = accepted([&] { return cli::parse_yaml(std::string(bytes), "f"); });
  if (!values) return;
  const cli::OptionValues again = cli::parse_yaml(cli::to_yaml(*values), "f");
  for (const cli::Option& option : cli::options())
    require(same(values->find(option.name), again.find(option.name)), "another value of " + option.name);
}

}  // namespace mantissa::fuzz
