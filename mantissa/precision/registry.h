#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "mantissa/core/device.h"
#include "mantissa/precision/precision.h"

namespace mantissa {

/// A row of the table of modes: all that the command line, the tests and make_precision() know of a mode.
struct Mode {
  std::string name;                  ///< canonical, for example "bf16-mixed"
  std::vector<std::string> aliases;  ///< accepted as well; those not starting with 32 or 64 warn
  std::string summary;               ///< one line for --help and `mantissa modes`
  at::ScalarType compute_dtype;      ///< of its matrix products
  std::unique_ptr<Precision> (*make)(at::Device);
};

/// Every mode, in the order in which users should read them.
const std::vector<Mode>& modes();

/// The row for a name or an alias.
/// Errors: c10::ValueError that echoes the name and lists the allowed ones.
const Mode& find_mode(const std::string& name);

/// Whether `mode` runs natively, emulated or not at all on `device`, and why.
DtypeSupportInfo mode_support(const Mode& mode, at::Device device);

/// The hooks for a precision named as Lightning names them: "16-mixed", "bf16", 32, ...
/// Errors: c10::ValueError if the name is unknown (ERR-1) or the device cannot run the mode.
/// Source: spec 1.1.
std::unique_ptr<Precision> make_precision(const std::string& name, at::Device device);
/// Whole numbers only: 32.0 is no precision and does not compile.
template <std::integral Bits>
std::unique_ptr<Precision> make_precision(Bits bits, at::Device device) {
  return make_precision(std::to_string(bits), device);
}

}  // namespace mantissa
