#pragma once

#include <string>
#include <vector>

#include "mantissa/precision/precision.h"
#include "mantissa/trainer/callback.h"

namespace mantissa::cli {

/// Returns what a mode has done with each layer, as a table for the terminal; "" without rows.
std::string layer_table(const std::vector<LayerReport>& rows);

/// Prints layer_table() once, to stderr, when a fit begins.
class PrintsLayers final : public Callback {
 public:
  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
};

}  // namespace mantissa::cli
