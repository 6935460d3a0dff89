#include "mantissa/lora/module_names.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/json_internal.h"
#include "mantissa/lora/expression_internal.h"

namespace mantissa {

bool ends_with_name(const std::string& name, const std::string& end) {
  if (!name.ends_with(end)) return false;
  return name.size() == end.size() || name[name.size() - end.size() - 1] == '.';
}

ModuleNames::ModuleNames(std::string expression) : expression_(std::move(expression)) {
  TORCH_CHECK_VALUE(!expression_.empty(),
                    "ModuleNames: the expression is empty; give \"all-linear\" or names of modules");
  if (is_all_linear()) return;
  const std::string problem = lora::problem_of(expression_);
  TORCH_CHECK_VALUE(problem.empty(), "ModuleNames: '", fit_for_message(expression_),
                    "' is no regular expression (", problem,
                    "); list the ends of the modules' names instead");
}

bool ModuleNames::matches(const std::string& name) const {
  if (is_all_linear()) return true;
  if (!expression_.empty()) return lora::matches_whole(name, expression_);
  return std::any_of(ends_.begin(), ends_.end(),
                     [&](const std::string& end) { return ends_with_name(name, end); });
}

std::string ModuleNames::text() const { return expression_.empty() ? join_names(ends_) : expression_; }

}  // namespace mantissa
