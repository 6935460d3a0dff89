#include <fmt/format.h>
#include <iostream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/softmax.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/run_data.h"
#include "cli/train_run.h"
#include "cli/trained_model.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/trainer/loop/interrupt.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::cli {
namespace {

struct PredictCommand {
  TrainedModelCommand run;
  std::string output = "-";
  bool overwrite = false;
};

/// Returns a text as a field of CSV (RFC 4180).
std::string as_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
  return field + "\"";
}

/// Predicts, and knows which samples a batch has: images that cannot be decoded may have been left out.
class PredictsSamples final : public ClassificationTask {
 public:
  explicit PredictsSamples(ClassificationTask task) : ClassificationTask(std::move(task)) {}
  c10::IValue predict_step(const Batch& batch, int64_t index) override {
    targets_ = batch.target;
    return ClassificationTask::predict_step(batch, index);
  }
  /// Returns the targets of the last batch.
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor targets_;
};

/// Writes a row of CSV for each sample as soon as its batch is done.
class WritesRows final : public Callback {
 public:
  WritesRows(std::ostream& out, const Data& data, const PredictsSamples& task)
      : out_(out), data_(data), task_(task) {
    for (const std::string& name : data.names.classes) names_.push_back("," + as_field(name));
    out_ << "index,class,probability" << (names_.empty() ? "" : ",name") << (data.file_of ? ",file\n" : "\n");
  }
  void on_predict_batch_end(Trainer& /*trainer*/, const c10::IValue& prediction, int64_t /*index*/) override {
    at::Tensor logits = prediction.toTensor().to(at::kCPU, at::kDouble);
    if (logits.dim() == 3) logits = logits.select(1, -1);  // of a window, the byte that comes next
    const auto [probability, label] = at::softmax(logits, -1).max(-1);
    const auto labels = label.accessor<int64_t, 1>();
    const auto probabilities = probability.accessor<double, 1>();
    for (int64_t i = 0; i < labels.size(0); ++i)
      write_row(data_.file_of ? task_.targets()[i].item<int64_t>() : row_++, labels[i],
                static_cast<float>(probabilities[i]));
  }

 private:
  void write_row(int64_t index, int64_t label, float probability) {
    out_ << fmt::format("{},{},{}{}{}\n", index, label, probability, name_of(label),
                        data_.file_of ? "," + as_field(data_.file_of(index)) : std::string());
  }
  std::string name_of(int64_t label) const {
    return label < std::ssize(names_) ? names_[static_cast<size_t>(label)]
                                      : std::string(names_.empty() ? "" : ",");
  }

  std::ostream& out_;
  const Data& data_;
  const PredictsSamples& task_;
  std::vector<std::string> names_;  ///< as fields, each with its comma
  int64_t row_ = 0;
};

void write_predictions(const TrainedModel& run, std::ostream& out) {
  const FitOptions& o = run.options;
  PredictsSamples task(make_task(o, run.model, /*steps=*/1));
  const auto loader = val_loader(o, run.data);
  TrainerOptions options = evaluation_options(run);
  options.callbacks.push_back(std::make_shared<WritesRows>(out, run.data, task));
  Trainer trainer(std::move(options));
  with_memory_cure([&] { return memory_cure(o); },
                   [&] { trainer.predict(task, *loader, /*return_predictions=*/false); });
  if (const int signal = InterruptScope::requested()) throw Interrupted{signal};
}

void predict(const PredictCommand& command) {
  const bool to_stdout = command.output == "-";
  const InterruptScope interrupt;
  const TrainedModel run =
      open_trained_model(command.run, DataUse::kPrediction, {{command.output, command.overwrite}});
  if (run.data.name == "chat")
    throw UsageError(
        "predict is for images, tables and windows of text; write answers with mantissa generate --chat");
  if (to_stdout) {
    write_predictions(run, std::cout);
    std::cout.flush();
  } else {
    write_file_atomically(command.output, [&](std::ostream& out) { write_predictions(run, out); });
  }
}

}  // namespace

void add_predict(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("predict", "Predictions of a run's model, as CSV");
  const auto command = std::make_shared<PredictCommand>();
  add_trained_model_flags(*sub, command->run);
  sub->add_option("--output", command->output, "the CSV file; -: standard output")->check(names_a_file, "");
  sub->add_flag("--overwrite", command->overwrite, "replace an existing output file");
  sub->footer("The class of an image, or the byte that follows a window of text, and how probable it is.");
  sub->callback([command] { predict(*command); });
}

}  // namespace mantissa::cli
