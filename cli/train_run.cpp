#include "cli/train_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/Utils.h>
#include <torch/nn/module.h>

#include "cli/adapters.h"
#include "cli/config_file.h"
#include "cli/errors.h"
#include "cli/fine_tuning.h"
#include "cli/labels.h"
#include "cli/layer_table.h"
#include "cli/loggers_and_callbacks.h"
#include "cli/model_config.h"
#include "cli/model_weights.h"
#include "cli/nonfinite_values.h"
#include "cli/resolve.h"
#include "cli/run_data.h"
#include "cli/run_folder.h"
#include "cli/run_length.h"
#include "cli/run_optimizer.h"
#include "cli/run_result.h"
#include "mantissa/core/device.h"
#include "mantissa/core/error_message.h"
#include "mantissa/core/out_of_memory.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/causal_model.h"
#include "mantissa/precision/empty_init.h"
#include "mantissa/precision/recompute.h"
#include "mantissa/trainer/callbacks/divergence_monitor.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/progress_bar.h"
#include "mantissa/trainer/loop/interrupt.h"
#include "mantissa/trainer/trainer.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa::cli {
namespace {

/// Marks a folder as a run's once a step has been taken. A run that fails earlier has nothing worth keeping;
/// if it continued an earlier run, that run's configuration and result stay as they were.
class MarksRunStarted final : public Callback {
 public:
  /// `config` is the configuration to write then; "" if it is already written. `watches` makes it end the run
  /// when its folder is lost. If there is a ModelCheckpoint, that does so. `keeps` is false for a folder that is not kept.
  MarksRunStarted(RunFolder& folder, std::string config, bool watches, bool keeps)
      : folder_(folder), config_(std::move(config)), watches_(watches), keeps_(keeps) {}
  void on_epoch_end(Trainer& /*trainer*/, int64_t /*epoch*/, int64_t /*global_step*/,
                    const Metrics& /*metrics*/) override {
    TORCH_CHECK(!watches_ || !folder_.is_lost(), "the run's folder ", folder_.path().string(),
                " was removed, moved or replaced during the run, so the run ends");
  }
  void on_train_batch_end(Trainer& /*trainer*/, const TrainBatch& batch) override {
    if (batch.stepped) mark();
  }
  bool started() const { return started_; }
  void mark() {
    if (started()) return;
    started_ = true;
    if (!keeps_) return;
    folder_.keep();
    if (!config_.empty()) write_file_atomically(folder_.file("config.yaml"), config_, Links::kReplace);
    // If this run is killed, the old result would describe the earlier training and call the run complete.
    const std::filesystem::path result = folder_.file(kResult);
    std::error_code error;
    std::filesystem::remove(result, error);
    TORCH_CHECK(!error, "cannot remove '", result.string(),
                "', the result of the previous training: ", error.message(), "; remove it by hand");
  }

 private:
  RunFolder& folder_;
  std::string config_;
  bool watches_, keeps_;
  bool started_ = false;
};

void warn_if_not_finite(const FitOptions& o, const Metrics& metrics) {
  for (const char* name : {"train_loss", "val_loss"}) {
    const auto found = metrics.find(name);
    if (found != metrics.end() && !std::isfinite(found->second)) {
      TORCH_WARN("the final ", name, " of --precision ", o.precision(), " is ", format_metric(found->second),
                 ": training diverged; try a smaller --lr or another --precision");
    }
  }
}

/// Returns the part of a run's name that tells its model: of "hf:models/llama" and "lib:llama.so", it is "llama".
std::string label_of(const std::string& model) {
  if (!is_model_path(model)) return model;
  std::filesystem::path path = std::filesystem::absolute(path_of_model(model)).lexically_normal();
  if (!model.starts_with(kConfigPrefix)) return path.stem().string();
  if (path.filename().empty() || path.filename() == "config.json") path = path.parent_path();
  return path.filename().string();
}

/// Otherwise a run that hardly learns would be a surprise.
void warn_about_frozen_weights(const FitOptions& o) {
  if (!o.traits().frozen_weights || has_adapter(o)) return;
  TORCH_WARN("--precision ", o.precision(),
             " quantizes the weights of linear layers and does not train them: only biases, norms and other "
             "parameters in float train");
}

void warn_if_all_steps_were_skipped(const FitResult& result) {
  if (result.steps == 0 || result.skipped_steps < result.steps) return;
  TORCH_WARN("all ", result.steps,
             " steps were skipped: the weights are the initial ones; lower or leave "
             "out --loss-scale or --init-scale, or see --trace-nonfinite");
}

/// Otherwise a loss of nan after the training would be blamed on the training.
void check_finite_weights(const torch::nn::Module& module, const std::string& file) {
  std::string first;
  int64_t tensors = 0;
  for (const auto& [name, weight] : plain_weights(named_weights(module))) {
    const int64_t wrong = nonfinite_values(weight);
    if (wrong == 0 || tensors++ > 0) continue;
    first = fmt::format("{} of the {} values of '{}'", wrong, weight.numel(), name);
  }
  const std::string others = tensors > 1 ? fmt::format(" (and {} more tensors)", tensors - 1) : "";
  TORCH_CHECK(tensors == 0, "--weights ", file, ": ", first, others,
              " are nan or inf, from which nothing can be trained; give a file from before its run diverged");
}

/// True if a checkpoint contains all steps that were trained.
bool is_saved(const RunFolder& folder, int64_t steps) {
  const auto all = folder.checkpoints();
  return std::any_of(all.begin(), all.end(), [&](const CheckpointEntry& c) { return c.step >= steps; });
}

/// Saves the weights of a run that ends with an error. The error itself is still the one that is reported.
void rescue_weights(const torch::nn::Module& model, const std::filesystem::path& file,
                    const std::map<std::string, std::string>& about) {
  try {
    save_model_weights(model, file, about);
    TORCH_WARN("the weights as they were at the error are in ", file.string());
  } catch (const std::exception&) {
    return;  // there is no room for the weights either
  }
}

/// Without its configuration the run could not be resumed, and its results could not be interpreted.
void restore_config(const RunFolder& folder, const std::string& config) {
  std::error_code error;
  if (std::filesystem::exists(folder.file("config.yaml"), error)) return;
  write_file_atomically(folder.file("config.yaml"), config, Links::kReplace);
  TORCH_WARN(folder.file("config.yaml").string(), " was removed during the run and is written again");
}

/// If the run's folder was removed or moved, writes the remaining files where its checkpoints went, so that
/// the run can be resumed there. If the folder is still there, restores its configuration.
void replace_if_lost(RunFolder& folder, const std::vector<std::shared_ptr<Callback>>& callbacks,
                     const std::string& config, const DataRecord& record) {
  if (!folder.is_lost()) return restore_config(folder, config);
  const std::string before = folder.path().string();
  std::filesystem::path other;
  for (const auto& callback : callbacks)
    if (const auto* saver = dynamic_cast<const ModelCheckpoint*>(callback.get()))
      other = saver->rescued_dirpath().parent_path();
  folder.replace(other);
  write_file_atomically(folder.file("config.yaml"), config, Links::kReplace);
  save_record(record, folder.path());
  TORCH_WARN("the folder ", before, " was lost; the run's files are in ", folder.path().string(), " now");
}

/// Returns the changes of mode in a run's folder so far, as a JSON array. A file that cannot be read counts as none: it is
/// a record only.
Json earlier_modes(const RunFolder& folder) {
  std::ifstream in(folder.file(kFallbacks));
  const Json all = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  return all.is_array() ? all : Json::array();
}

/// A training of the command line, from its data to the files of its folder.
class TrainingRun {
 public:
  /// Reads and checks everything that the training needs, and writes nothing. `resumed` is the folder of a run
  /// to resume; null: the training makes a folder. With `keeps` false, the folder is removed in the end.
  TrainingRun(const FitOptions& o, RunFolder* resumed, bool keeps)
      : o_(o),
        resumed_(resumed),
        keeps_(keeps),
        options_(trainer_options(o)),
        data_(load_data(o)),
        train_(train_loader(o, data_)),
        val_(val_loader(o, data_)),
        steps_(usage([&] {
          check_shares(o, *train_, val_.get());
          return total_steps(o, *train_);
        })),
        resumes_from_checkpoint_(resumed && !resumed->checkpoints().empty()),
        memory_before_(peak_memory_bytes(at::kCPU)) {
    torch::manual_seed(o.seed);
    {
      // Memory that nobody has written to is not there yet, which large models need. A run that is resumed converts its
      // model before it loads the weights, and needs values until then.
      std::optional<EmptyInit> are_loaded;
      if (!o.weights.empty() && !o.new_head && !resumes_from_checkpoint_) are_loaded.emplace();
      model_ = make_model_of(o, data_.input);
    }
    if (resumed && !resumes_from_checkpoint_) {
      TORCH_WARN("the run in ", resumed->path().string(),
                 " has no checkpoint to resume from and starts again");
    }
    if (!o.weights.empty() && !resumes_from_checkpoint_) {
      load_first_weights(*model_, o);
      check_finite_weights(*model_, o.weights);
    }
    adapter_ = add_adapter(o, *model_, resumes_from_checkpoint_ ? resumed->path() : std::filesystem::path());
    usage([&] { train_only(*model_, o.train_only); });
  }

  /// Returns the content of result.json. A training that has diverged and has a mode to fall back to returns null, and
  /// leaves no result.
  Json train(bool quiet, const Json& plan) {
    open_folder();
    add_callbacks_and_loggers(quiet);
    Trainer trainer(std::move(options_));
    ClassificationTask task = make_training_task(o_, model_, data_, steps_);
    const std::map<std::string, std::string> about{{"precision", trainer.precision().name()},
                                                   {"model", o_.model}};
    warn_about_frozen_weights(o_);
    const FitResult result = fit(trainer, task, about);
    run_start_->mark();  // if there was no step to take
    if (keeps_) replace_if_lost(*folder_, trainer.options().callbacks, yaml_, data_.record());
    if (falls_back(result)) return nullptr;
    warn_if_not_finite(o_, result.metrics);
    warn_if_all_steps_were_skipped(result);
    if (keeps_) save_model(about);
    Json json = result_of(o_, trainer, result, *model_, keeps_ ? folder_->path() : std::filesystem::path());
    if (const Json earlier = earlier_modes(*folder_); !earlier.empty()) json["fallbacks"] = earlier;
    if (adapter_ || !o_.train_only.empty())
      json["trained_parameters"] = parameters_of(*model_, /*trained_only=*/true);
    if (!plan.is_null()) {
      json["memory_plan"] = plan;
      // The peak of a GPU is counted from the start of the fit.
      json["memory_before_bytes"] = trainer.device().is_cpu() ? memory_before_ : 0;
    }
    if (keeps_) write_file_atomically(folder_->file(kResult), dump(json) + "\n", Links::kReplace);
    return json;
  }

  /// Returns the folder that was made for the run; null for that of a resumed run. Call it after train().
  std::unique_ptr<RunFolder> release_folder() { return std::move(fresh_); }

 private:
  /// Whether the training continues in another mode. Records that, and warns of it.
  bool falls_back(const FitResult& result) const {
    if (o_.fallback.empty() || !monitor_->has_diverged()) return false;
    const std::vector<CheckpointEntry> checkpoints = folder_->checkpoints();
    const auto good = std::find_if(checkpoints.begin(), checkpoints.end(),
                                   [](const CheckpointEntry& entry) { return entry.problem.empty(); });
    const int64_t continues = good == checkpoints.end() ? 0 : good->step;
    const std::string& next = o_.fallback.front();
    Json all = earlier_modes(*folder_);
    const Json fallback{{"from", o_.precision()},
                        {"to", next},
                        {"step", result.steps},
                        {"continues", continues},
                        {"reason", monitor_->reason()}};
    // A training that was killed before its next mode has begun diverges here again.
    if (all.empty() || all.back() != fallback) all.push_back(fallback);
    write_file_atomically(folder_->file(kFallbacks), dump(all) + "\n", Links::kReplace);
    TORCH_WARN("the training in ", o_.precision(), " has diverged at step ", result.steps, ": ",
               monitor_->reason(), ". It continues in ", next, " from step ", continues);
    return true;
  }

  /// Makes the folder of a new run, with its configuration: a run that is killed before its first step can be
  /// resumed, too.
  void open_folder() {
    if (const int signal = InterruptScope::requested()) throw Interrupted{signal};
    if (!resumed_) {
      fresh_ = std::make_unique<RunFolder>(
          o_.output, fmt::format("{}-{}-{}", data_.name, label_of(o_.model), o_.precision()));
    }
    folder_ = resumed_ ? resumed_ : fresh_.get();
    OptionValues repeatable = o_.values;
    repeatable.erase("output");  // a repetition needs a folder of its own
    yaml_ = to_yaml(repeatable);
    if (fresh_) write_file_atomically(folder_->file("config.yaml"), yaml_, Links::kReplace);
    save_record(data_.record(), folder_->path());
    // A run that is resumed reads its settings. The trained adapter of such a run is loaded later.
    if (!resumes_from_checkpoint_) save_adapter();
  }

  void save_model(const std::map<std::string, std::string>& about) const {
    save_model_weights(*model_, folder_->file(kWeights), about);
    save_config();
    save_adapter();
  }

  /// Writes what transformers needs beside the weights of a model that they know.
  void save_config() const {
    const std::string config = adapter_ ? "" : config_of(*model_);
    if (!config.empty()) write_file_atomically(folder_->file(kModelConfig), config, Links::kReplace);
  }

  void save_adapter() const {
    if (adapter_) adapter_->save_pretrained(folder_->file(kAdapter));
  }

  void add_callbacks_and_loggers(bool quiet) {
    options_.callbacks = make_callbacks(o_, folder_->path());
    for (const auto& callback : options_.callbacks)
      if (auto monitor = std::dynamic_pointer_cast<DivergenceMonitor>(callback))
        monitor_ = std::move(monitor);
    run_start_ =
        std::make_shared<MarksRunStarted>(*folder_, fresh_ ? "" : yaml_, !o_.enable_checkpointing, keeps_);
    options_.callbacks.push_back(run_start_);
    if (!quiet) options_.callbacks.push_back(std::make_shared<PrintsLayers>());
    if (!quiet) options_.callbacks.push_back(std::make_shared<ProgressBar>());
    options_.loggers = make_loggers(o_, folder_->path());
    if (resumed_ && !resumes_from_checkpoint_)
      for (const auto& logger : options_.loggers) logger->resume_from(-1);
  }

  FitResult fit(Trainer& trainer, ClassificationTask& task, const std::map<std::string, std::string>& about) {
    try {
      return trainer.fit(task, *train_, val_.get(),
                         resumes_from_checkpoint_ ? resumed_->file(kCheckpoints) : "");
    } catch (...) {
      if (run_start_->started() && keeps_) keep_what_was_trained(trainer, about);
      throw;
    }
  }

  void keep_what_was_trained(const Trainer& trainer, const std::map<std::string, std::string>& about) {
    try {
      replace_if_lost(*folder_, trainer.options().callbacks, yaml_, data_.record());
    } catch (const std::exception& error) {
      TORCH_WARN(message_of(error));  // the error that ended the run is the one that is reported
    }
    // Where a checkpoint found no room, there may be some for the weights alone.
    rescue_adapter();
    if (!is_saved(*folder_, trainer.progress().steps))
      rescue_weights(*model_, folder_->file(kWeights), about);
  }

  void rescue_adapter() const {
    try {
      save_adapter();
    } catch (const std::exception& error) {
      TORCH_WARN(message_of(error));
    }
  }

  const FitOptions& o_;
  RunFolder* const resumed_;
  const bool keeps_;
  std::unique_ptr<RunFolder> fresh_;
  RunFolder* folder_ = nullptr;
  TrainerOptions options_;  // its loggers and checkpoints must be destroyed before the folder
  const Data data_;
  const std::unique_ptr<Loader> train_, val_;
  const int64_t steps_;
  const bool resumes_from_checkpoint_;
  const int64_t memory_before_;
  std::shared_ptr<TensorModule> model_;
  std::optional<LoraModel> adapter_;
  std::shared_ptr<MarksRunStarted> run_start_;
  std::shared_ptr<DivergenceMonitor> monitor_;  ///< null if nothing watches
  std::string yaml_;
};

/// Trains in the folder `resumed`, or in a new folder if it is null.
Json train(const FitOptions& o, bool quiet, const Json& plan, RunFolder* resumed) {
  if (o.threads > 0) at::set_num_threads(static_cast<int>(o.threads));
  FitOptions options = o;
  // Who only tries whether a training runs does not want its files, unless a folder is named for them.
  const bool keeps = resumed || o.trainer.fast_dev_run == 0 || !o.output.empty();
  std::unique_ptr<RunFolder> fresh;
  while (true) {
    if (resumed) options = with_record(std::move(options), resumed->path());
    {
      TrainingRun run(options, resumed, keeps);
      const Json json = run.train(quiet, plan);
      if (!json.is_null()) return json;
      if (auto made = run.release_folder()) fresh = std::move(made), resumed = fresh.get();
    }
    options = falling_back(options);
  }
}

Json train_in_memory(const FitOptions& o, bool quiet, const Json& plan, RunFolder* resumed) {
  const auto cure = [&] {
    const at::Device device = resolve_device(o.trainer.device);
    std::string more = device.is_cpu() ? "raise the limit (ulimit -v)" : fragmentation_cure(device);
    if (!more.empty()) more.insert(0, ", or ");
    return fmt::format(
        " (--model {}, --batch-size {}, --precision {}); choose a smaller --batch-size (with "
        "--accumulate-grad-batches a step uses the same number of samples), a smaller --model or a 16-bit "
        "--precision{}; --plan says before a run what it needs",
        o.model, o.loader.batch_size, o.precision(), more);
  };
  return with_memory_cure(cure, [&] { return train(o, quiet, plan, resumed); });
}

}  // namespace

Json run_fit(const FitOptions& options, bool quiet, const Json& plan) {
  return train_in_memory(options, quiet, plan, nullptr);
}

Json resume_fit(const FitOptions& options, RunFolder& folder, bool quiet, const Json& plan) {
  return train_in_memory(options, quiet, plan, &folder);
}

std::shared_ptr<TensorModule> make_model_of(const FitOptions& options, const ModelInput& input) {
  TORCH_CHECK_VALUE(options.model != "convnet" || (input.height >= 2 && input.width >= 2),
                    "--model convnet halves images, and --data ", options.data, " has some of ", input.height,
                    " x ", input.width, " pixels; choose --model mlp");
  auto model = make_model(options.model, input);
  TORCH_CHECK_VALUE(options.loss_chunk == 0 || dynamic_cast<const CausalModel*>(model.get()), "--loss-chunk ",
                    options.loss_chunk, " divides the positions of a text, and --model ", options.model,
                    " does not predict text; leave it out");
  try {
    if (options.activation_checkpointing) set_activation_checkpointing(*model, true);
  } catch (const c10::ValueError&) {
    TORCH_CHECK_VALUE(false, "--activation-checkpointing: --model ", options.model,
                      " has no layers that can be computed again; leave it out, or choose a transformer");
  }
  return model;
}

ClassificationTask make_task(const FitOptions& options, const std::shared_ptr<TensorModule>& model,
                             int64_t steps,
                             const std::function<void(const at::Tensor& scores)>& check_scores) {
  ClassificationTask task(
      model,
      [model, check_scores](const at::Tensor& x) {
        at::Tensor scores = model->forward(x);
        if (check_scores) check_scores(scores);
        return scores;
      },
      [options, steps](torch::nn::Module& module) { return make_optimizer(options, module, steps); });
  if (const auto causal = std::dynamic_pointer_cast<CausalModel>(model); causal && options.loss_chunk > 0) {
    task.set_chunked_loss([causal](const at::Tensor& x) { return causal->hidden_states(x); },
                          [causal](const at::Tensor& x) { return causal->output_layer(x); },
                          options.loss_chunk);
  }
  return task;
}

ClassificationTask make_training_task(const FitOptions& options, const std::shared_ptr<TensorModule>& model,
                                      const Data& data, int64_t steps) {
  return make_task(options, model, steps, checks_first_scores(labelled_for_training(options, data)));
}

}  // namespace mantissa::cli
