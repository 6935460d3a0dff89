#include "cli/fit_options.h"

#include <utility>

#include <c10/util/Exception.h>

#include "cli/option.h"

namespace mantissa::cli {

FitOptions fit_options(const OptionValues& values) {
  FitOptions o;
  o.values = values;
  for (const Option& option : options()) {
    const OptionValue* const value = values.find(option.name);
    TORCH_INTERNAL_ASSERT(value, "option ", option.name, " has no value");
    check_value(option, *value);
  }
  for (const Option& option : options()) option.to.set(o, option, *values.find(option.name));
  return o;
}

FitOptions FitOptions::with(std::string_view option, OptionValue value) const {
  OptionValues changed = values;
  changed.set(option, std::move(value));
  return fit_options(changed);
}

}  // namespace mantissa::cli
