#pragma once

#include "mantissa/core/state_dict.h"

namespace mantissa {

class LowBitOptimizer;

/// Returns an optimizer's state as bitsandbytes's optimizer of the same name has it in its state_dict():
///
///     {"state": {"0": {"step": 3, "__bnb_optimizer_quant_state__": {"state1": tensor, "qmap1": tensor, ...}}},
///      "param_groups": [{"lr": 0.001, "betas": [0.9, 0.999], "eps": ..., "weight_decay": ..., "params": [0]}]}
///
/// With is_wrapped false, the tensors are beside "step", as older versions of bitsandbytes write them. In
/// Python the keys of "state" are numbers. bitsandbytes has no maximize, no overrides in its files and no
/// stochastic rounding, so these are left out.
///
/// Memory:  copies no tensor: take a snapshot() before the next step.
/// Sync:    reads the step counters.
/// Errors:  c10::ValueError for a group that maximizes, and for a 4-bit optimizer and Muon.
/// Example: tests/parity/test_8bit_optimizers.py
StateDict bitsandbytes_state(const LowBitOptimizer& optimizer, bool is_wrapped = true);

/// Restores such a state, wrapped or not: states, step counters, and the groups' lr, betas, eps and
/// weight_decay. The other options of the groups stay, and so do overrides: repeat those of the saved run
/// before, because they decide which states have 8 bits.
///
/// Errors: those of load_optimizer_state(), and c10::ValueError naming the place for values that no optimizer
///         here keeps (unorm_vec, a map of other values). Nothing has changed then.
void load_bitsandbytes_state(LowBitOptimizer& optimizer, const StateReader& state);

}  // namespace mantissa
