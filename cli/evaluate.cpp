#include <cstdint>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/labels.h"
#include "cli/run_data.h"
#include "cli/train_run.h"
#include "cli/trained_model.h"
#include "mantissa/core/device.h"
#include "mantissa/trainer/loop/interrupt.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::cli {
namespace {

/// Counts the samples that it evaluates: images that cannot be decoded may have been left out.
class CountsSamples final : public ClassificationTask {
 public:
  explicit CountsSamples(ClassificationTask task) : ClassificationTask(std::move(task)) {}
  void validation_step(const Batch& batch, int64_t index) override {
    samples_ += batch.data.size(0);
    ClassificationTask::validation_step(batch, index);
  }
  void test_step(const Batch& batch, int64_t index) override {
    samples_ += batch.data.size(0);
    ClassificationTask::test_step(batch, index);
  }
  int64_t samples() const { return samples_; }

 private:
  int64_t samples_ = 0;
};

struct EvaluateCommand {
  TrainedModelCommand run;
  std::string json;
};

void evaluate(const EvaluateCommand& command, bool is_test) {
  const InterruptScope interrupt;
  const TrainedModel run =
      open_trained_model(command.run, is_test ? DataUse::kTest : DataUse::kValidation, {{command.json}});
  const FitOptions& o = run.options;
  CountsSamples task(make_task(o, run.model, /*steps=*/1,
                               checks_first_scores({run.data, "--data " + o.data, "the run's model"})));
  const auto loader = val_loader(o, run.data);
  Trainer trainer(evaluation_options(run));
  const Metrics metrics = with_memory_cure(
      [&] { return memory_cure(o); },
      [&] { return is_test ? trainer.test(task, *loader) : trainer.validate(task, *loader); });
  const int64_t peak = peak_memory_bytes(trainer.device());
  if (const int signal = InterruptScope::requested()) throw Interrupted{signal};
  Json json{{"precision", trainer.precision().name()},
            {"device", trainer.device().str()},
            {"model", o.model},
            {"data", o.data},
            {"samples", task.samples()},
            {"peak_memory_bytes", peak},
            {"weights", run.weights.string()}};
  for (const auto& [name, value] : metrics) json[name] = value;
  std::string table = fmt::format("{} of {} in {}, {} samples of {}\n", o.model, run.weights.string(),
                                  trainer.precision().name(), task.samples(), o.data);
  for (const auto& [name, value] : metrics) table += fmt::format("{:<13} {}\n", name, format_metric(value));
  table += fmt::format("{:<13} {} MiB\n", "peak memory", peak >> 20);
  std::fputs(table.c_str(), command.json == "-" ? stderr : stdout);
  write_json(json, command.json);
}

void add(CLI::App& app, const char* name, const char* help, bool is_test) {
  CLI::App* sub = app.add_subcommand(name, help);
  const auto command = std::make_shared<EvaluateCommand>();
  add_trained_model_flags(*sub, command->run);
  add_json_flag(*sub, command->json);
  sub->callback([command, is_test] { evaluate(*command, is_test); });
}

}  // namespace

void add_evaluate(CLI::App& app) {
  add(app, "validate", "Loss and accuracy of a run's model on the data that it held out", false);
  add(app, "test", "Loss and accuracy on any data, unsplit", true);
}

}  // namespace mantissa::cli
