#pragma once

#include <string>

#include <CLI/App.hpp>

#include "cli/option.h"
#include "cli/option_values.h"

namespace mantissa::cli {

/// For whom: `fit` takes every option, `resume` and the commands that take a trained model take some.
enum class FlagsOf { kFit, kResume, kTrained };
bool takes(FlagsOf commands, const Option& option);

/// The options that `commands` take as flags of a subcommand, in the groups of the table. Those that are
/// given come into `values`.
void add_fit_flags(CLI::App& subcommand, OptionValues& values, FlagsOf commands);

/// CLI11 takes the word behind a switch for an argument of the command.
/// Errors: UsageError, with the cure, for a switch that is given a value.
void check_switches(int argc, const char* const* argv);

/// `--plan`: for plan_fit().
void add_plan_flag(CLI::App& subcommand, bool& plan);

/// `--json`: for write_json().
void add_json_flag(CLI::App& subcommand, std::string& json);

/// CLI11 takes `--json=` for a file without a name.
std::string names_a_file(const std::string& text);

}  // namespace mantissa::cli
