#include "mantissa/precision/registry.h"

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/precision/mixed.h"
#include "mantissa/precision/true_dtype.h"

namespace mantissa {
namespace {

template <at::ScalarType dtype>
std::unique_ptr<Precision> make_true(at::Device) {
  return std::make_unique<TrueDtype>(dtype);
}

template <at::ScalarType dtype>
std::unique_ptr<Precision> make_mixed(at::Device device) {
  return std::make_unique<MixedPrecision>(dtype, device);
}

std::unique_ptr<Precision> make_32_true(at::Device) { return std::make_unique<Precision>("32-true"); }

}  // namespace

const std::vector<Mode>& modes() {
  static const std::vector<Mode> table{
      {"32-true", {"32"}, "weights and arithmetic as built, usually float32", at::kFloat, &make_32_true},
      {"64-true", {"64"}, "float64 weights and arithmetic", at::kDouble, &make_true<at::kDouble>},
      {"16-mixed",
       {"16"},
       "float32 weights, fp16 products, scaled gradients",
       at::kHalf,
       &make_mixed<at::kHalf>},
      {"bf16-mixed", {"bf16"}, "float32 weights, bf16 products", at::kBFloat16, &make_mixed<at::kBFloat16>},
      {"16-true", {}, "fp16 weights, activations and gradients", at::kHalf, &make_true<at::kHalf>},
      {"bf16-true", {}, "bf16 weights, activations and gradients", at::kBFloat16, &make_true<at::kBFloat16>},
  };
  return table;
}

const Mode& find_mode(const std::string& name) {
  std::vector<std::string> allowed, canonical;
  for (const Mode& mode : modes()) {
    if (name == mode.name) return mode;
    for (const std::string& alias : mode.aliases) {
      if (name != alias) continue;
      // Lightning's rule: "32" and "64" can mean only one thing, "16" and "bf16" once meant another.
      if (!alias.starts_with("32") && !alias.starts_with("64")) {
        TORCH_WARN("precision '", alias, "' is a historical alias; write '", mode.name, "'");
      }
      return mode;
    }
    canonical.push_back(mode.name);
    allowed.insert(allowed.end(), mode.aliases.begin(), mode.aliases.end());
  }
  allowed.insert(allowed.begin(), canonical.begin(), canonical.end());
  TORCH_CHECK_VALUE(false, "precision '", name, "' is not a mode", did_you_mean(name, canonical),
                    "; allowed: ", join_names(allowed));
}

DtypeSupportInfo mode_support(const Mode& mode, at::Device device) {
  return dtype_support(device, mode.compute_dtype);
}

std::unique_ptr<Precision> make_precision(const std::string& name, at::Device device) {
  const Mode& mode = find_mode(name);
  const DtypeSupportInfo support = mode_support(mode, device);
  TORCH_CHECK_VALUE(support.support != DtypeSupport::kUnavailable, "precision '", mode.name,
                    "' cannot run on ", device.str(), ": ", support.reason,
                    "; `mantissa modes` lists what can");
  return mode.make(device);
}

}  // namespace mantissa
