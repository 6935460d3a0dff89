#pragma once

// The keys of a mode's state, which one mode writes and another may have to read (docs/checkpoints.md).
namespace mantissa {

inline constexpr const char* kLossScaleKey = "loss_scale";
inline constexpr const char* kMasterWeightsKey = "master_weights";
inline constexpr const char* kFp8StateKey = "fp8_state";

}  // namespace mantissa
