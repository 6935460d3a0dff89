#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace mantissa::cli {

/// An option or argument as users see it.
struct OptionWords {
  std::vector<std::string> names;    ///< with their dashes; none: an argument without a flag
  std::string value;                 ///< what its value is called; empty: it takes none
  std::vector<std::string> choices;  ///< all its values, where they are a list
  std::string help;
  bool repeats = false;
  std::string group = {};  ///< the heading that it stands under in help
};

/// A subcommand, or with no name the program itself.
struct CommandWords {
  std::string name, help, footer;
  std::vector<OptionWords> options;
};

/// The options of `app` and its subcommands, the program first.
std::vector<CommandWords> words_of(const CLI::App& app);

/// What makes a shell complete the program's words. `shell`: one of kShells.
std::string completion(const std::vector<CommandWords>& commands, const std::string& shell);
inline constexpr const char* kShells = "bash|zsh|fish";

/// The manual page, in roff's man macros.
std::string man_page(const std::vector<CommandWords>& commands, const std::string& version);

}  // namespace mantissa::cli
