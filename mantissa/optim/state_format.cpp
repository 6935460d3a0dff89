#include "mantissa/optim/state_format.h"

#include <algorithm>

#include <c10/util/StringUtil.h>

namespace mantissa {

std::string StateFormat::misfit(const at::Tensor& tensor) const {
  if (tensor.sizes() != at::IntArrayRef(sizes))
    return c10::str("has shape ", tensor.sizes(), "; ", at::IntArrayRef(sizes), " was expected");
  const at::ScalarType found = tensor.scalar_type();
  if (dtype && found != *dtype) return c10::str("is ", found, "; ", *dtype, " was expected");
  if (!dtype && !tensor.is_floating_point() && !tensor.is_complex())
    return c10::str("is ", found, "; a floating-point dtype was expected");
  return "";
}

const StateFormat* find_format(const std::vector<StateFormat>& formats, const std::string& name) {
  const auto found = std::find_if(formats.begin(), formats.end(),
                                  [&](const StateFormat& format) { return format.name == name; });
  return found == formats.end() ? nullptr : &*found;
}

}  // namespace mantissa
