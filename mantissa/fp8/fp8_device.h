#pragma once

#include <string_view>

#include <c10/core/Device.h>

#include "mantissa/core/device.h"
#include "mantissa/fp8/recipe.h"

namespace mantissa {

/// Whether `device` multiplies the codes of a recipe by instructions of its own, and why. A device that has no memory,
/// such as meta, computes nothing.
FormatSupportInfo fp8_support(at::Device device, const Fp8Recipe& recipe);

/// Returns what fp8_support() does for a GPU of a compute capability: 90 is sm_90.
FormatSupportInfo fp8_support_of_capability(int capability, const Fp8Recipe& recipe);

/// Throws c10::ValueError, beginning with `who`, if `native` is kRequired and the device would emulate the recipe.
void check_fp8_native(std::string_view who, Fp8Native native, at::Device device, const Fp8Recipe& recipe);

}  // namespace mantissa
