#include "cli/recipe_option.h"

#include <map>
#include <vector>

#include <c10/util/Exception.h>

#include "cli/option_parsers.h"
#include "mantissa/fp8/recipe_settings.h"

namespace mantissa::cli {
namespace {

/// Returns a message of the library that begins with the flag.
std::string with_flag(const std::string& flag, const std::string& message) {
  constexpr std::string_view kRecipe = "recipe ";
  return message.starts_with(kRecipe) ? flag + " " + message.substr(kRecipe.size()) : flag + ": " + message;
}

Fp8Recipe make(const std::string& flag, const std::string& text) {
  std::string name;
  std::map<std::string, std::string> settings;
  std::vector<std::string> switches;
  bool is_first = true;
  for (const std::string& part : parse_settings(flag, text)) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals),
                      value = equals == std::string::npos ? "" : part.substr(equals + 1);
    const bool is_bare = equals == std::string::npos;
    if ((is_bare && is_first) || key == "name") {
      TORCH_CHECK_VALUE(name.empty(), flag, " names two recipes, '", name, "' and '", is_bare ? key : value,
                        "'; keep one");
      name = is_bare ? key : value;
    } else {
      TORCH_CHECK_VALUE(settings.emplace(key, is_bare ? "true" : value).second, flag, " has '", key,
                        "' twice; keep one");
      if (is_bare) switches.push_back(key);
    }
    is_first = false;
  }
  for (const std::string& key : switches)
    TORCH_CHECK_VALUE(!needs_value(name, key), flag, ": ", key, " needs a value, as in ", key, "=VALUE");
  return make_fp8_recipe(name, settings);
}

}  // namespace

Fp8Recipe parse_recipe(const std::string& flag, const std::string& text) {
  try {
    return make(flag, text);
  } catch (const c10::ValueError& error) {
    const std::string message = error.what_without_backtrace();
    C10_THROW_ERROR(ValueError, message.starts_with(flag) ? message : with_flag(flag, message));
  }
}

}  // namespace mantissa::cli
