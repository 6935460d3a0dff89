#include <algorithm>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "mantissa/core/suggest.h"

namespace {

/// libtorch's own handler adds a file and line of libtorch's or ours, which says nothing to a user.
struct PlainWarnings final : c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    fmt::print(stderr, "mantissa: warning: {}\n", warning.msg());
  }
};

int report(const std::string& message, int status) {
  // One line each: scripts and logs can rely on it.
  fmt::print(stderr, "mantissa: error: {}\n", message.substr(0, message.find('\n')));
  return status;
}

/// CLI11 says of `mantissa fitt` only that a subcommand is required.
void check_command(const CLI::App& app, int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  if (word.empty() || word[0] == '-' || std::find(commands.begin(), commands.end(), word) != commands.end())
    return;
  throw mantissa::cli::UsageError("'" + word + "' is not a command" + mantissa::did_you_mean(word, commands) +
                                  "; commands: " + mantissa::join_names(commands));
}

}  // namespace

int main(int argc, char** argv) {
  PlainWarnings warnings;
  c10::WarningUtils::set_warning_handler(&warnings);

  CLI::App app("Mantissa: training in N-bit precision, on libtorch");
  app.name("mantissa");
  app.set_version_flag("--version", "mantissa " MANTISSA_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 done, 1 the run failed, 2 the command or its configuration is wrong, 128 + N ended by "
      "signal N (130: Ctrl-C).");
  mantissa::cli::add_fit(app);
  mantissa::cli::add_modes(app);
  for (CLI::App* subcommand : app.get_subcommands({}))
    subcommand->set_version_flag("--version", app.version());

  try {
    check_command(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report(std::string(error.what()) + "; see mantissa --help", 2);
  } catch (const mantissa::cli::UsageError& error) {
    return report(error.what(), 2);
  } catch (const mantissa::cli::Interrupted& interrupted) {
    return 128 + interrupted.signal;
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), 1);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
  return 0;
}
