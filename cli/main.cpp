#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/option.h"
#include "cli/warnings.h"
#include "mantissa/core/error_message.h"
#include "mantissa/core/suggest.h"
#include "mantissa/core/threads_apart.h"
#include "mantissa/kernels/aten/environment.h"

namespace {

// A sanitizer's own start comes before ours, and its report comes at a normal end.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MANTISSA_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int report(const std::string& message, int status) {
  // Each error is one line, so that scripts and logs can rely on it.
  mantissa::cli::print_to_stderr("mantissa: error: " + mantissa::cli::on_one_line(message) + "\n");
  return status;
}

/// For `mantissa fitt`, CLI11 only reports that a subcommand is required.
void check_command(const CLI::App& app, int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  if (word.empty() || word[0] == '-' || std::find(commands.begin(), commands.end(), word) != commands.end())
    return;
  throw mantissa::cli::UsageError("'" + word + "' is not a command" + mantissa::did_you_mean(word, commands) +
                                  "; commands: " + mantissa::join_names(commands));
}

/// CLI11's own message for an unknown flag suggests no remedy.
std::string unknown_arguments(const CLI::App& app, const CLI::App& command) {
  std::string word = app.remaining(/*recurse=*/true).front();
  word = word.substr(0, word.find('='));
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  const size_t dashes = std::min(word.find_first_not_of('-'), word.size());
  std::string meant = mantissa::cli::option_meant(word, options);
  if (meant.empty() && dashes > 0) meant = mantissa::cli::option_meant(word.substr(dashes), options);
  return "'" + word + "' is not an option of " + command.get_display_name() +
         (meant.empty() ? "" : "; did you mean '" + meant + "'?");
}

/// CLI11's own message for a flag without its value does not name the values.
std::string missing_value(const std::string& message) {
  const std::string flag = message.substr(0, message.find(':'));
  std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  const mantissa::cli::Option* const option = mantissa::cli::find_option(name);
  if (!option || option->choices.empty()) return message;
  return flag + " needs a value; choose from " + mantissa::join_names(option->choices);
}

/// Returns the arguments in reverse order, as CLI11 expects. In `--model= --quiet` CLI11 would take `--quiet`
/// as the model.
std::vector<std::string> reversed_arguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const bool is_empty = word.starts_with("--") && word.size() > 3 && word.find('=') == word.size() - 1;
    if (is_empty) word.pop_back();
    arguments.push_back(word);
    if (is_empty) arguments.emplace_back();
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

/// Flushes the output: it may still be in a buffer, and the disk may be full.
int flushed(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  if (errno == EPIPE) return 128 + SIGPIPE;  // as if the signal had ended it: its reader has stopped reading
  return report(std::string("standard output cannot be written: ") + std::strerror(errno),
                std::max(status, 1));
}

/// Ends the program for exceptions that no try block can catch: one in a thread that is not ours, or one that
/// is thrown while another is reported. A lack of memory is not a fault of the program, so it leaves no core
/// file.
[[noreturn]] void end_without_a_handler() {
  try {
    if (const std::exception_ptr exception = std::current_exception()) std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kMessage =
        "mantissa: error: there is too little memory; free some, raise the limit (ulimit -v), or choose a "
        "smaller --batch-size or --model\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
    ::_exit(1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mantissa: error: %s\n", error.what());
  } catch (...) {
    std::fputs("mantissa: error: an exception that is not a std::exception\n", stderr);
  }
  std::abort();
}

/// Without a current folder, MKL ends the program while it is loaded, and names libtorch as the cause.
void check_current_folder() {
  std::array<char, PATH_MAX> path{};
  if (::getcwd(path.data(), path.size()) != nullptr || errno != ENOENT) return;
  constexpr std::string_view kMessage =
      "mantissa: error: the current folder was removed; change to one that exists\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(2);
}

void prepare_to_load(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  std::set_terminate(end_without_a_handler);
  check_current_folder();
}

// libtorch and MKL run code while they are loaded. Only a function that runs before the initialisers of all
// libraries can prepare for it.
#ifndef MANTISSA_SANITIZED
[[gnu::section(".preinit_array"), gnu::used]] void (*const kFirst)(int, char**, char**) = prepare_to_load;
#endif

int run(int argc, char** argv) {
  mantissa::cli::print_warnings_plainly();

  CLI::App app("Mantissa: training in N-bit precision, on libtorch");
  app.name("mantissa");
  app.set_version_flag("--version", "mantissa " MANTISSA_VERSION);
  app.require_subcommand(1);
  // The last value wins, as in other programs; a list keeps all values.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  // This runs after --help and --version, and before any command.
  app.parse_complete_callback([] {
    mantissa::cli::usage([] { mantissa::check_environment(); });
    mantissa::keep_threads_apart();
  });
  app.footer(
      "Exit status: 0 done, 1 the run failed, 2 the command or its configuration is wrong, 3 a check that "
      "was asked for found something, 128 + N ended by signal N (130: Ctrl-C).");
  mantissa::cli::add_fit(app);
  mantissa::cli::add_resume(app);
  mantissa::cli::add_evaluate(app);
  mantissa::cli::add_predict(app);
  mantissa::cli::add_generate(app);
  mantissa::cli::add_tokenize(app);
  mantissa::cli::add_pack(app);
  mantissa::cli::add_merge(app);
  mantissa::cli::add_modes(app);
  mantissa::cli::add_inspect(app);
  mantissa::cli::add_convert(app);
  mantissa::cli::add_completion(app);
  mantissa::cli::add_man(app);
  for (CLI::App* subcommand : app.get_subcommands({}))
    subcommand->set_version_flag("--version", app.version());

  try {
    check_command(app, argc, argv);
    mantissa::cli::check_switches(argc, argv);
    app.parse(reversed_arguments(argc, argv));
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    const auto called = app.get_subcommands();
    const CLI::App& command = called.empty() ? app : *called.front();
    const std::string name = called.empty() ? "mantissa" : "mantissa " + command.get_name();
    std::string message = error.what();
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) message = unknown_arguments(app, command);
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) message = missing_value(message);
    return report(message + "; see " + name + " --help", 2);
  } catch (const mantissa::cli::UsageError& error) {
    return report(error.what(), 2);
  } catch (const mantissa::cli::CheckFailed& found) {
    return report(found.what(), 3);
  } catch (const mantissa::cli::Interrupted& interrupted) {
    return 128 + interrupted.signal;
  } catch (const std::filesystem::filesystem_error& error) {
    return report("'" + error.path1().string() + "' cannot be read: " + error.code().message() +
                      "; give a path that you may read",
                  1);
  } catch (const std::exception& error) {
    const std::string memory = mantissa::cli::too_little_memory(error);
    return report(memory.empty() ? mantissa::message_of(error)
                                 : memory +
                                       "; free some, raise the limit (ulimit -v), or choose a smaller "
                                       "--batch-size",
                  1);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  prepare_to_load(argc, argv, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // `mantissa fit 2>&1 | head` must not lose the weights
  // A file that grows past `ulimit -f` must fail one write, which the run reports, and not end the program.
  std::signal(SIGXFSZ, SIG_IGN);
  const int status = flushed(run(argc, argv));
  // At a normal end, libtorch takes its operators out of its tables one by one, which is a third of the time of
  // `mantissa --version`.
  if (!kSanitized) std::quick_exit(status);
  return status;
}
