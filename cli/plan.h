#pragma once

#include <cstdio>
#include <vector>

#include "cli/train_run.h"

namespace mantissa::cli {

/// Returns the memory that the run with these options would need, followed by that of the same run in every
/// other mode, with that mode's own options. There is a row for each, with MemoryPlan's numbers by name,
/// "precision" first. With precision "all" they are the rows of its runs. Nothing is left behind: each mode
/// is tried in its own process.
///
/// The rows are also written to `to` as a table.
///
/// Errors: those of the run itself. Another mode that fails is reported and left out.
Json plan_fit(const FitOptions& options, std::FILE* to);

/// Prints the memory that each run took, beside its plan.
void print_measured(const std::vector<Json>& results, std::FILE* to);

}  // namespace mantissa::cli
