#pragma once

#include <string>

#include <CLI/App.hpp>

#include "cli/option.h"
#include "cli/option_values.h"

namespace mantissa::cli {

/// The commands that take options: `fit` takes all of them, `resume` and the commands for trained models take
/// some.
enum class FlagsOf { kFit, kResume, kTrained };
bool takes(FlagsOf commands, const Option& option);

/// Adds the options that `commands` take as flags of a subcommand, in the groups of the table. Options that
/// are given are stored in `values`.
void add_fit_flags(CLI::App& subcommand, OptionValues& values, FlagsOf commands);

/// CLI11 would take the word behind a switch as an argument of the command.
/// Errors: UsageError, with the remedy, for a switch that is given a value.
void check_switches(int argc, const char* const* argv);

/// Adds `--plan`, for plan_fit().
void add_plan_flag(CLI::App& subcommand, bool& plan);

/// Adds `--json`, for write_json().
void add_json_flag(CLI::App& subcommand, std::string& json);

/// CLI11 would take `--json=` as a file without a name.
std::string names_a_file(const std::string& text);

}  // namespace mantissa::cli
