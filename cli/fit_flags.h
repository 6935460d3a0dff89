#pragma once

#include <string>

#include <CLI/App.hpp>

#include "cli/option.h"
#include "cli/option_values.h"

namespace mantissa::cli {

/// The commands that take options. `fit` takes all options; `resume` and the commands for trained models take
/// some, and `generate` those of them that do not concern data.
enum class FlagsOf { kFit, kResume, kTrained, kGenerate };
/// Whether `commands` take `option`.
bool takes(FlagsOf commands, const Option& option);

/// Adds the options that `commands` take as flags of a subcommand, in the groups of the table of options. The
/// values that the user gives are stored in `values`.
void add_fit_flags(CLI::App& subcommand, OptionValues& values, FlagsOf commands);

/// Refuses a switch that is followed by a value, such as `--transactional true`. CLI11 would take the value
/// for an argument of the command.
/// Errors: UsageError with the remedy.
void check_switches(int argc, const char* const* argv);

/// Adds `--plan`, for plan_fit().
void add_plan_flag(CLI::App& subcommand, bool& plan);

/// Adds `--json`, for write_json().
void add_json_flag(CLI::App& subcommand, std::string& json);

/// A check for CLI11, which itself accepts an empty file name (`--json=`). Returns an error text for it, and
/// "" for any other text.
std::string names_a_file(const std::string& text);

}  // namespace mantissa::cli
