#include "cli/dtype_names.h"

#include <algorithm>
#include <array>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

struct DtypeName {
  at::ScalarType dtype;
  std::array<const char*, 3> names;  ///< errors and help use the first name

  bool has(const std::string& name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
};
constexpr std::array kDtypes{
    DtypeName{at::kDouble, {"fp64", "float64", "F64"}},
    DtypeName{at::kFloat, {"fp32", "float32", "F32"}},
    DtypeName{at::kHalf, {"fp16", "float16", "F16"}},
    DtypeName{at::kBFloat16, {"bf16", "bfloat16", "BF16"}},
    DtypeName{at::kFloat8_e4m3fn, {"fp8-e4m3", "float8_e4m3fn", "F8_E4M3"}},
    DtypeName{at::kFloat8_e5m2, {"fp8-e5m2", "float8_e5m2", "F8_E5M2"}},
};

}  // namespace

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DtypeName& row : kDtypes) names.emplace_back(row.names[0]);
  return names;
}

at::ScalarType parse_dtype(const std::string& text, const std::vector<std::string>& choices) {
  for (const DtypeName& row : kDtypes)
    if (row.has(text)) return row.dtype;
  TORCH_CHECK_VALUE(false, "--dtype '", text, "' is not a valid value", did_you_mean(text, choices),
                    "; choose from ", join_names(choices));
  return at::kFloat;
}

std::string other_dtype_name(const std::string& text, const std::vector<std::string>& choices) {
  for (const DtypeName& row : kDtypes) {
    if (!row.has(text)) continue;
    for (const std::string& choice : choices)
      if (row.has(choice)) return choice;
  }
  return "";
}

bool is_castable(at::ScalarType dtype) {
  return std::any_of(kDtypes.begin(), kDtypes.end(),
                     [&](const DtypeName& row) { return row.dtype == dtype; });
}

}  // namespace mantissa::cli
