#pragma once

#include <functional>
#include <string>

namespace mantissa {

/// Replaces each name in braces in `pattern` by its value from `value_of`, which gets a format such as
/// "{:.3f}".
/// Errors: c10::ValueError for a format that does not fit.
std::string fill_in_checkpoint_name(
    const std::string& pattern,
    const std::function<std::string(const std::string& name, const std::string& format)>& value_of);

}  // namespace mantissa
