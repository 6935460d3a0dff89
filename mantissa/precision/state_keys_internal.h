#pragma once

// The keys of a mode's state, which one mode writes and another may have to read (docs/checkpoints.md).
namespace mantissa {

inline constexpr const char* kLossScaleKey = "loss_scale";
inline constexpr const char* kMasterWeightsKey = "master_weights";
inline constexpr const char* kFp8StateKey = "fp8_state";

// In the state of gradients that wait for a step.
inline constexpr const char* kStageKey = "stage";  ///< only of a mode with a loss scale: a GradientStage
inline constexpr const char* kScaleKey = "scale";  ///< the scale that they carry, if any
inline constexpr const char* kClipDivisorKey = "clip_divisor";

}  // namespace mantissa
