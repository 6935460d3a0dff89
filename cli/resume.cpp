#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/option.h"
#include "cli/outputs.h"
#include "cli/plan.h"
#include "cli/resolve.h"
#include "cli/run_data.h"
#include "cli/run_folder.h"
#include "cli/run_result.h"
#include "cli/saved_paths.h"
#include "cli/train_run.h"
#include "cli/trained_model.h"
#include "cli/without_effect.h"
#include "mantissa/trainer/loop/interrupt.h"

namespace mantissa::cli {
namespace {

struct ResumeCommand {
  OptionValues flags;
  std::string folder, json;
  bool plan = false, quiet = false;
};

/// Returns a number from result.json. A value of another type counts as absent, because the user may have
/// edited the file.
std::optional<int64_t> number_in(const Json& result, const char* name) {
  const auto found = result.find(name);
  if (found == result.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

/// Returns the result of a run that was completed, else null.
Json completed_result(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(folder / kResult, error)) return {};  // a pipe would block
  std::ifstream in(folder / kResult);
  Json result = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  return result.is_object() && number_in(result, "interrupted_by") == 0 ? result : Json();
}

/// Checks that `given` asks a complete run for more steps or epochs than it has.
/// Errors: c10::Error, with the remedy, if it does not.
void check_goes_further(const OptionValues& given, const std::filesystem::path& folder, const Json& result) {
  const auto check_above = [&](const char* option, const char* done) {
    const auto* const limit = given.get_if<int64_t>(option);
    const int64_t so_far = number_in(result, done).value_or(0);
    TORCH_CHECK(!limit || *limit < 0 || *limit > so_far, "the run in ", folder.string(),
                " is complete, with ", so_far, " ", done, "; give ", flag_of(option),
                " above that to continue");
  };
  check_above("max_epochs", "epochs");
  check_above("max_steps", "steps");
  const auto is_given = [&](const char* option) { return given.has(option); };
  constexpr std::array kLift{"max_epochs", "max_steps", "max_time", "early_stopping", "patience"};
  TORCH_CHECK(std::any_of(kLift.begin(), kLift.end(), is_given), "the run in ", folder.string(),
              " is complete; give --max-epochs or --max-steps to continue, or change the limit that ended "
              "it: --max-time, --early-stopping, --patience");
}

/// Checks that no trained weights are lost. A run without checkpoints starts again from the beginning.
/// Errors: c10::Error, with the remedy, if weights would be lost.
void check_loses_nothing(const RunFolder& folder) {
  TORCH_CHECK(!folder.checkpoints().empty() || !std::filesystem::exists(folder.file(kWeights)), "the run in ",
              folder.path().string(),
              " has no checkpoints to resume from; start a new run from its weights: fit --weights ",
              folder.file(kWeights).string());
}

/// Otherwise a run that ends where it would have continued in another mode would be a surprise.
void warn_of_dropped_fallback(const OptionValues& saved, const OptionValues& flags, const FitOptions& o) {
  const auto* const fallback = saved.get_if<std::string>("fallback");
  if (!fallback || *fallback == "none" || flags.has("fallback") || !o.fallback.empty()) return;
  TORCH_WARN("--precision ", o.precision(), " replaces the run's ", *saved.get_if<std::string>("precision"),
             ", and drops its --fallback ", *fallback,
             "; give --fallback to have other modes to continue in");
}

void resume(const ResumeCommand& command) {
  const std::filesystem::path folder = command.folder;
  usage([&] { return read_run_config(folder); });  // before the lock, so that only a run gets locked
  RunFolder held(folder);
  // Read again, because another process may have held the run until now.
  const OptionValues before = usage([&] { return read_run_config(folder); });
  usage([&] { check_same_kind(folder, command.flags, before); });
  const FitOptions o =
      usage([&] { return resolve(merge(command.flags, options_of_run(before, command.flags))); });
  warn_without_effect(command.flags, o);
  warn_of_dropped_fallback(before, command.flags, o);
  check_loses_nothing(held);  // first, because more epochs would not help there
  if (const Json result = completed_result(folder); !result.is_null())
    check_goes_further(command.flags, folder, result);
  check_saved_paths(folder, command.flags, o);
  check_outputs({{command.json}}, inputs_of(o));
  const InterruptScope interrupt;
  std::FILE* const to = command.json == "-" ? stderr : stdout;
  const Json plan = command.plan ? plan_fit(with_record(o, folder), to) : Json();
  const std::vector<Json> results{resume_fit(o, held, command.quiet, plan)};
  report(results, command.json, /*as_array=*/false);
  if (command.plan) print_measured(results, to);
  if (const int signal = InterruptScope::requested()) throw Interrupted{signal};
}

}  // namespace

void add_resume(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("resume", "Resume a run that ended early, from its newest checkpoint");
  const auto command = std::make_shared<ResumeCommand>();
  sub->add_option("run", command->folder, "the run's folder")->required()->option_text("RUN");
  add_plan_flag(*sub, command->plan);
  add_json_flag(*sub, command->json);
  sub->add_flag("--quiet", command->quiet, "no progress");
  add_fit_flags(*sub, command->flags, FlagsOf::kResume);
  sub->footer(
      "--data and --tokenizer are for a run whose data or tokenizer has moved: the same ones, at their place "
      "now.");
  sub->callback([command] { resume(*command); });
}

}  // namespace mantissa::cli
