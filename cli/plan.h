#pragma once

#include <cstdio>
#include <vector>

#include "cli/train_run.h"

namespace mantissa::cli {

/// What the run of these options and, after it, the same run in every other mode with that mode's own options
/// would hold in memory: a row for each, MemoryPlan's numbers by name, "precision" first. With precision
/// "all", the rows of its runs. Nothing is left behind: each mode is tried in a process of its own.
///
/// Writes them to `to`, too, as a table.
/// Errors: those of the run itself; another mode that fails is told of and left out.
Json plan_fit(const FitOptions& options, std::FILE* to);

/// What each result's run took, beside what was planned for it.
void print_measured(const std::vector<Json>& results, std::FILE* to);

}  // namespace mantissa::cli
