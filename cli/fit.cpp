#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/all_modes.h"
#include "cli/commands.h"
#include "cli/config_file.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/outputs.h"
#include "cli/plan.h"
#include "cli/resolve.h"
#include "cli/run_data.h"
#include "cli/run_result.h"
#include "cli/train_run.h"
#include "cli/without_effect.h"
#include "mantissa/trainer/loop/interrupt.h"

namespace mantissa::cli {
namespace {

struct FitCommand {
  OptionValues flags;
  std::string config, json;
  bool print_config = false, plan = false, quiet = false;
};

void fit(const FitCommand& command) {
  const OptionValues file =
      command.config.empty() ? OptionValues{} : usage([&] { return read_yaml(command.config); });
  const FitOptions o = usage([&] { return resolve(merge(command.flags, file)); });
  warn_without_effect(command.flags, o);
  warn_of_random_weights(command.flags, o);
  if (command.print_config) {
    fmt::print("{}", to_yaml(o.values));
    return;
  }
  const bool all = o.precision() == "all";
  std::vector<std::string> inputs = inputs_of(o);
  inputs.push_back(command.config);
  check_outputs({{command.json}}, inputs, o.output);
  const InterruptScope interrupt;
  // If the JSON goes to standard output, the table goes to standard error, as the table of results does.
  std::FILE* const to = command.json == "-" ? stderr : stdout;
  const Json plan = command.plan ? plan_fit(o, to) : Json();
  const Report done = all ? run_all_modes(o, command.quiet, plan) : Report{{run_fit(o, command.quiet, plan)}};
  report(done.results, command.json, all);
  if (command.plan) print_measured(done.results, to);
  if (const int signal = InterruptScope::requested()) {
    if (!done.error.empty()) {
      TORCH_WARN(done.error);
    }
    throw Interrupted{signal};
  }
  if (done.usage) throw UsageError(done.error);
  TORCH_CHECK(done.error.empty(), done.error);
}

}  // namespace

void add_fit(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("fit", "Train a model and report its results");
  const auto command = std::make_shared<FitCommand>();
  sub->add_option("--config", command->config, "YAML file of the options below; flags override it")
      ->check(names_a_file, "");
  sub->add_flag("--print-config", command->print_config,
                "write the complete configuration and train nothing");
  add_plan_flag(*sub, command->plan);
  add_json_flag(*sub, command->json);
  sub->add_flag("--quiet", command->quiet, "no progress");
  add_fit_flags(*sub, command->flags, FlagsOf::kFit);
  sub->callback([command] { fit(*command); });
}

}  // namespace mantissa::cli
