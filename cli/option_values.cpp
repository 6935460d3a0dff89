#include "cli/option_values.h"

#include <functional>
#include <utility>

#include <c10/util/Exception.h>

#include "cli/option.h"

namespace mantissa::cli {
namespace {

/// A misspelt name in the program must not look like an option that the user left unset.
const Option& row_of(std::string_view option) {
  const Option* const row = find_option(option);
  TORCH_INTERNAL_ASSERT(row, "no option is called ", option);
  return *row;
}

bool lists_modes(const std::string& precision) { return precision.find(',') != std::string::npos; }

/// Whether `now` is one mode, and that of `before`, or the first of those that `before` lists. Either may be null.
bool is_same_mode(const std::string* now, const std::string* before) {
  return now && before && !lists_modes(*now) &&
         canonical_mode(*now) == canonical_mode(before->substr(0, before->find(',')));
}

}  // namespace

const OptionValue* OptionValues::find(std::string_view option) const {
  const auto found = values_.find(row_of(option).name);
  return found == values_.end() ? nullptr : &found->second;
}

void OptionValues::set(std::string_view option, OptionValue value) {
  const Option& row = row_of(option);
  TORCH_INTERNAL_ASSERT(row.to.kind == value.index(), "a value of option ", option, " is of another kind");
  values_.insert_or_assign(row.name, std::move(value));
}

void OptionValues::erase(std::string_view option) { values_.erase(row_of(option).name); }

OptionValues merge(OptionValues over, const OptionValues& under) {
  const auto text_is = [&](const char* option, std::string_view wanted) {
    const auto* const text = over.get_if<std::string>(option);
    return text && *text == wanted;
  };
  const bool epochs = over.has("max_epochs"), steps = over.has("max_steps"),
             falls_back = over.has("fallback");
  const bool by_name = over.has("precision"),
             native = text_is("amp_backend", "native") || text_is("amp_backend", ""),
             by_level =
                 (over.has("amp_backend") && !native) || (over.has("amp_level") && !text_is("amp_level", ""));
  const auto* const before = under.get_if<std::string>("precision");
  const bool keeps_mode = !by_level && is_same_mode(over.get_if<std::string>("precision"), before);
  if (keeps_mode && !falls_back && lists_modes(*before))
    over.erase("precision");  // it lists those to fall back to
  for (const Option& option : options()) {
    const OptionValue* const below = under.find(option.name);
    if (below && !over.has(option.name)) over.set(option.name, *below);
  }
  // A limit that was given replaces both limits: the other one, from the layer below, would end the run
  // elsewhere.
  if (steps && !epochs) over.erase("max_epochs");
  if (epochs && !steps) over.erase("max_steps");
  if (by_level && !by_name) over.erase("precision");
  if (by_name && !by_level) over.erase("amp_backend"), over.erase("amp_level");
  if (native && !by_level) over.erase("amp_level");  // the level belonged to the backend below
  // It belonged to the mode below.
  if ((by_name || by_level) && !keeps_mode && !falls_back) over.erase("fallback");
  return over;
}

}  // namespace mantissa::cli
