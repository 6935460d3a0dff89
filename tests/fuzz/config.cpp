#include <bit>
#include <type_traits>

#include "cli/fit_options.h"
#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {
namespace {

template <typename T>
bool same(const std::optional<T>& a, const std::optional<T>& b) {
  if constexpr (std::is_same_v<T, double>) {
    if (a && b && *a != *a) return *b != *b;
  }
  return a == b;
}

}  // namespace

void config(std::string_view bytes) {
  const auto options = accepted([&] { return cli::parse_yaml(std::string(bytes), "f"); });
  if (!options) return;
  const cli::FitOptions again = cli::parse_yaml(cli::to_yaml(*options), "f");
  std::vector<const void*> members;
  cli::for_each_option(again,
                       [&](const char*, const auto& member, const char*) { members.push_back(&member); });
  size_t next = 0;
  cli::for_each_option(*options, [&](const char* name, const auto& member, const char*) {
    require(same(member, *static_cast<const std::decay_t<decltype(member)>*>(members[next++])),
            std::string("another value of ") + name);
  });
}

}  // namespace mantissa::fuzz
