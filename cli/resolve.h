#pragma once

#include "cli/fit_options.h"

namespace mantissa::cli {

/// What `given` means: what it leaves unset has the default that suits the model, and the precision its
/// canonical name.
/// Errors: those of fit_options(); c10::ValueError for names that name nothing, and for options that do not
///         fit together.
FitOptions resolve(const OptionValues& given);

/// Whether the defaults for text hold, by the model or else by the data.
bool reads_text(const OptionValues& given);

/// Refuses AdamW where it would keep its state in fp16.
/// Errors: c10::ValueError with the cure.
void check_optimizer_state(const FitOptions& options);

}  // namespace mantissa::cli
