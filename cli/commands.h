#pragma once

#include <CLI/App.hpp>

namespace mantissa::cli {

/// Each adds its subcommand with a callback that runs it and throws on failure.
void add_fit(CLI::App& app);
void add_modes(CLI::App& app);

}  // namespace mantissa::cli
