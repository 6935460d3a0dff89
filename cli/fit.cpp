#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Utils.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/fit_options.h"
#include "cli/recipe.h"
#include "cli/run_folder.h"
#include "mantissa/core/device.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/weights.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/csv_logger.h"
#include "mantissa/trainer/interrupt.h"
#include "mantissa/trainer/progress_bar.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::cli {
namespace {

using Json = nlohmann::ordered_json;

struct FitCommand {
  FitOptions flags;
  std::string config, json;
  bool print_config = false, quiet = false;
};

/// Optimizer steps of the whole run, which the learning-rate schedule must know beforehand.
int64_t total_steps(const FitOptions& o, const Loader& train) {
  const int64_t per_epoch = (train.size() + *o.accumulate_grad_batches - 1) / *o.accumulate_grad_batches;
  const int64_t by_epochs = *o.max_epochs < 0 ? INT64_MAX : *o.max_epochs * per_epoch;
  const int64_t by_steps = *o.max_steps < 0 ? INT64_MAX : *o.max_steps;
  return std::max<int64_t>(1, std::min(by_epochs, by_steps));
}

Json metric(const Metrics& metrics, const std::string& name) {
  const auto found = metrics.find(name);
  return found == metrics.end() ? Json(nullptr) : Json(found->second);  // nan and inf become null in JSON too
}

Json to_json(const FitOptions& o, const Trainer& trainer, const FitResult& result, int64_t parameters,
             const std::filesystem::path& folder) {
  return {{"precision", trainer.precision().name()},
          {"device", trainer.device().str()},
          {"model", *o.model},
          {"data", *o.data},
          {"parameters", parameters},
          {"epochs", result.epochs},
          {"steps", result.steps},
          {"skipped_steps", result.skipped_steps},
          {"train_loss", metric(result.metrics, "train_loss")},
          {"val_loss", metric(result.metrics, "val_loss")},
          {"val_accuracy", metric(result.metrics, "val_accuracy")},
          {"seconds", result.seconds},
          {"step_ms", result.step_ms},
          {"samples_per_second", result.samples_per_second},
          {"peak_memory_bytes", result.peak_memory_bytes},
          {"interrupted_by", result.interrupted_by},
          {"run_folder", folder.string()},
          {"mantissa_version", MANTISSA_VERSION}};
}

Json run_fit(const FitOptions& o, bool quiet) {
  if (*o.threads > 0) at::set_num_threads(static_cast<int>(*o.threads));
  auto progress = quiet ? nullptr : std::make_shared<ProgressBar>();
  auto options = usage([&] {
    TrainerOptions t;
    t.precision = *o.precision;
    t.device = *o.device;
    t.max_epochs = *o.max_epochs;
    t.max_steps = *o.max_steps;
    t.accumulate_grad_batches = *o.accumulate_grad_batches;
    t.gradient_clip_val = *o.gradient_clip_val;
    t.gradient_clip_algorithm = *o.gradient_clip_algorithm;
    const Trainer words_are_right(t);
    return t;
  });
  const Data data = load_data(o);
  const auto train = train_loader(o, data);
  const auto val = val_loader(o, data);

  torch::manual_seed(static_cast<uint64_t>(*o.seed));
  const auto model = make_model(*o.model, data.input);
  if (!o.weights->empty()) load_weights(*model, *o.weights);
  int64_t parameters = 0;
  for (const at::Tensor& p : model->parameters()) parameters += p.numel();

  // Only now, when all that can be wrong with the input has been found, is anything written.
  const std::string label = fmt::format("{}-{}-{}", data.name, *o.model, find_mode(*o.precision).name);
  const std::filesystem::path folder = make_run_folder(*o.output, label);
  write_file_atomically(folder / "config.yaml", to_yaml(o));
  options.callbacks.push_back(std::make_shared<CsvLogger>(folder / "metrics.csv"));
  if (progress) options.callbacks.push_back(progress);

  Trainer trainer(options);
  const int64_t steps = total_steps(o, *train);
  ClassificationTask task(
      model, [&](const at::Tensor& x) { return model->forward(x); },
      [&](torch::nn::Module& module) { return make_optimizer(o, module, steps); });
  const FitResult result = trainer.fit(task, *train, val.get());
  save_weights(*model, folder / "weights.safetensors",
               {{"precision", trainer.precision().name()}, {"model", *o.model}});
  Json json = to_json(o, trainer, result, parameters, folder);
  write_file_atomically(folder / "result.json", json.dump(2) + "\n");
  return json;
}

std::string cell(const Json& value, const char* format) {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

void print_table(const std::vector<Json>& results) {
  fmt::print("\n{:<11} {:>6} {:>7} {:>9} {:>13} {:>10} {:>12}  {}\n", "precision", "epochs", "steps",
             "val loss", "val accuracy", "ms a step", "peak memory", "run files");
  for (const Json& r : results) {
    fmt::print("{:<11} {:>6} {:>7} {:>9} {:>13} {:>10} {:>9} MiB  {}\n", r["precision"].get<std::string>(),
               r["epochs"].get<int64_t>(), r["steps"].get<int64_t>(), cell(r["val_loss"], "{:.4f}"),
               cell(r["val_accuracy"], "{:.4f}"), cell(r["step_ms"], "{:.2f}"),
               r["peak_memory_bytes"].get<int64_t>() >> 20, r["run_folder"].get<std::string>());
  }
}

/// Each mode in a process of its own: its peak memory is its own, and one that fails does not take the others
/// along. Nothing of libtorch's threads or of CUDA may have started before: a forked child could not use
/// them.
Json run_in_child(const std::function<Json()>& run) {
  int ends[2];
  TORCH_CHECK(pipe(ends) == 0, "cannot make a pipe to a child process; are there too many open files?");
  const pid_t child = fork();
  TORCH_CHECK(child >= 0, "cannot start a child process; is there too little memory?");
  if (child == 0) {
    close(ends[0]);
    Json answer;
    try {
      answer["result"] = run();
    } catch (const UsageError& error) {
      answer = {{"error", error.what()}, {"usage", true}};
    } catch (const c10::Error& error) {
      answer = {{"error", error.what_without_backtrace()}};
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    const std::string text = answer.dump();
    const bool sent = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  const Json answer = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK(!answer.is_discarded(), "the child process that trained died without a result");
  if (answer.contains("usage")) throw UsageError(answer["error"].get<std::string>());
  TORCH_CHECK(!answer.contains("error"), answer["error"].get<std::string>());
  return answer["result"];
}

std::vector<Json> run_all_modes(const FitOptions& o, bool quiet) {
  const InterruptScope interrupt;  // Ctrl-C reaches the child as well, which ends cleanly
  std::vector<Json> results;
  for (const Mode& mode : modes()) {
    FitOptions one = o;
    one.precision = mode.name;
    if (!o.output->empty()) one.output = (std::filesystem::path(*o.output) / mode.name).string();
    if (!quiet) fmt::print(stderr, "{}\n", mode.name);
    results.push_back(run_in_child([&] { return run_fit(one, quiet); }));
    if (InterruptScope::requested()) break;
  }
  return results;
}

void fit(const FitCommand& command) {
  const FitOptions file =
      command.config.empty() ? FitOptions{} : usage([&] { return read_yaml(command.config); });
  const FitOptions o = usage([&] { return resolve(merge(command.flags, file)); });
  if (command.print_config) {
    fmt::print("{}", to_yaml(o));
    return;
  }
  if (!command.json.empty()) check_writable(command.json);
  const bool all = *o.precision == "all";
  const std::vector<Json> results =
      all ? run_all_modes(o, command.quiet) : std::vector<Json>{run_fit(o, command.quiet)};
  if (!command.json.empty())
    write_file_atomically(command.json, (all ? Json(results) : results[0]).dump(2) + "\n");
  print_table(results);
  if (const int signal = results.back()["interrupted_by"].get<int>()) throw Interrupted{signal};
}

std::string flag_name(std::string name) {
  for (char& c : name)
    if (c == '_') c = '-';
  return "--" + name;
}

}  // namespace

void add_fit(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("fit", "Train a model and report what it reached");
  const auto command = std::make_shared<FitCommand>();
  sub->add_option("--config", command->config, "YAML file of the options below; flags override it");
  sub->add_flag("--print-config", command->print_config,
                "write the complete configuration and train nothing");
  sub->add_option("--json", command->json, "write the result here, machine-readably");
  sub->add_flag("--quiet", command->quiet, "no progress");
  for_each_option(command->flags, [&](const char* name, auto& member, const char* help) {
    sub->add_option(flag_name(name), member, help);
  });
  sub->callback([command] { fit(*command); });
}

}  // namespace mantissa::cli
