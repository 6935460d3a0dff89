#pragma once

#include <string>
#include <vector>

namespace mantissa {

/// Returns a question for an error that lists those of the modes `names` which `name` can mean, such as "; did you mean 'nf4'
/// (...) or 'nf4-dq' (...)?" for "4bit", or the nearest one of them; "" if there is none.
/// What a name describes or begins with counts for more than how many letters are different.
std::string suggest_modes(const std::string& name, const std::vector<std::string>& names);

}  // namespace mantissa
