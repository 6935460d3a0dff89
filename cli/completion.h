#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace mantissa::cli {

/// An option or argument as users see it.
struct OptionDescription {
  std::vector<std::string> names;    ///< with their dashes; empty for an argument without a flag
  std::string value;                 ///< the name of its value; empty if it takes none
  std::vector<std::string> choices;  ///< all its values, if they form a list
  std::string help;
  bool repeats = false;
  std::string group = {};  ///< the heading above it in help
};

/// A subcommand, or the program itself if the name is empty.
struct CommandDescription {
  std::string name, help, footer;
  std::vector<OptionDescription> options;
};

/// Returns the options of `app` and its subcommands, the program first.
std::vector<CommandDescription> describe(const CLI::App& app);

/// Returns the script that makes a shell complete the program's words. `shell` is one of kShells.
std::string completion(const std::vector<CommandDescription>& commands, const std::string& shell);
inline constexpr const char* kShells = "bash|zsh|fish";

/// Returns the manual page, in roff's man macros.
std::string man_page(const std::vector<CommandDescription>& commands, const std::string& version);

}  // namespace mantissa::cli
