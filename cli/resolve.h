#pragma once

#include "cli/fit_options.h"

namespace mantissa::cli {

/// Resolves `given`: unset options get the default that suits the model, and the precision gets its canonical
/// name.
/// Errors: those of fit_options(); c10::ValueError for unknown names, and for options that do not fit
///         together.
FitOptions resolve(const OptionValues& given);

/// Returns the options of a saved run for a command on it. If `flags` choose another precision, the options of the
/// run's own mode that the command does not take are kept where the other mode has them, too, and unset otherwise.
OptionValues options_of_run(const OptionValues& saved, const OptionValues& flags);

/// Returns the options of the run that continues after one with `options` has diverged, in the first of its modes to fall
/// back to. There must be one.
FitOptions falling_back(const FitOptions& options);

/// True if the defaults for text apply, because of the model or else of the data.
bool reads_text(const OptionValues& given);

/// Refuses AdamW where it would keep its state in fp16.
/// Errors: c10::ValueError with the remedy.
void check_optimizer_state(const FitOptions& options);

}  // namespace mantissa::cli
