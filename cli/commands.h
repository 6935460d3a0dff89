#pragma once

#include <CLI/App.hpp>

namespace mantissa::cli {

/// Each function adds its subcommand, with a callback that runs it and throws on failure.
void add_fit(CLI::App& app);
void add_resume(CLI::App& app);
/// `validate` and `test`.
void add_evaluate(CLI::App& app);
void add_predict(CLI::App& app);
void add_generate(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_pack(CLI::App& app);
void add_merge(CLI::App& app);
void add_modes(CLI::App& app);
void add_inspect(CLI::App& app);
void add_convert(CLI::App& app);
/// These two describe the subcommands that were added to `app` before they run.
void add_completion(CLI::App& app);
void add_man(CLI::App& app);

}  // namespace mantissa::cli
