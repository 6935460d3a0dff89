#pragma once

#include <string>
#include <vector>

namespace mantissa {

/// Returns a question that lists the modes which `name` can mean, or the nearest one of `names`; "" if there is none.
/// What a name describes or begins with counts for more than how many letters are different.
std::string suggest_modes(const std::string& name, const std::vector<std::string>& names);

}  // namespace mantissa
