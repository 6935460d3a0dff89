#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "cli/fit_options.h"

namespace mantissa::cli {

/// The options of `fit` as flags of a subcommand, those named `only`, or all of them.
void add_fit_flags(CLI::App& subcommand, FitOptions& options, const std::vector<std::string>& only = {});

/// `--plan`: for plan_fit().
void add_plan_flag(CLI::App& subcommand, bool& plan);

/// `--json`: for write_json().
void add_json_flag(CLI::App& subcommand, std::string& json);

/// CLI11 takes `--json=` for a file without a name.
std::string names_a_file(const std::string& text);

}  // namespace mantissa::cli
