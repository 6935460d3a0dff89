// Trains as described by a job file and writes what happened at every step. tests/parity/*.py compare it with
// the peers.
//
//   parity_runner JOB.json
//   parity_runner --digits FILE    writes the embedded digits as "data" and "target", safetensors
//
// Job:    without "model", see optimizer_job.h. "max_epochs", "ckpt_path", "device" (cpu), "channels_last"
//         and "deterministic" (false; true requests libtorch's deterministic algorithms where there are any)
//         may be missing. Files are safetensors: `weights` under state_dict names; `data` with "data" [n,
//         ...], "target" [n, ...] and "order" int64 [batches, batch_size].
// Result: `output`, safetensors: "loss" [batches] as the task returned it, "scale" [batches] after each batch
//         (0 without a scaler), "skipped" [batches], the final weights under "weights.<name>", and metadata
//         "step_ms", the median.
#include <cstdio>
#include <fstream>
#include <string>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <nlohmann/json.hpp>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/core/device.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/digits.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/registry.h"
#include "mantissa/precision/mixed.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/trainer.h"
#include "optimizer_job.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

struct Recorder final : Callback {
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override {
    losses.push_back(batch.loss);
    skipped.push_back(batch.step.skipped());
    const StateDict state = trainer.precision().state_dict();
    const auto loss_scale = StateReader(state).find("loss_scale");
    scales.push_back(loss_scale ? loss_scale->at("scale").to_double() : 0);
  }
  std::vector<at::Tensor> losses;
  std::vector<double> scales;
  std::vector<int64_t> skipped;
};

void run(const Json& job) {
  at::set_num_threads(job["threads"]);
  at::globalContext().setDeterministicAlgorithms(job.value("deterministic", false), /*warn_only=*/true);
  const at::Device device = resolve_device(job.value("device", "cpu"));
  ModelInput input;
  for (const ModelEntry& entry : models())
    if (entry.name == job["model"]) input.kind = *entry.input;
  input.height = input.width = job["image_size"];
  input.classes = 10;
  const auto model = make_model(job["model"], input);
  load_weights(*model, job["weights"].get<std::string>());

  const Safetensors data = load_safetensors(job["data"].get<std::string>());
  OrderedLoader loader(std::make_shared<TensorDataset>(data.tensors.at("data"), data.tensors.at("target")),
                       data.tensors.at("order"));

  auto recorder = std::make_shared<Recorder>();
  TrainerOptions options{.device = device.str(),
                         .channels_last = job.value("channels_last", false),
                         .max_epochs = job.value("max_epochs", 1),
                         .accumulate_grad_batches = job["accumulate_grad_batches"].get<int64_t>(),
                         .gradient_clip_val = job["gradient_clip_val"],
                         .callbacks = {recorder}};
  if (job.contains("scaler")) {
    const Json& scaler = job["scaler"];
    options.precision_plugin = std::make_shared<MixedPrecision>(
        at::kHalf, device,
        std::make_unique<GradScaler>(device,
                                     GradScalerOptions{.init_scale = scaler["init_scale"],
                                                       .growth_interval = scaler["growth_interval"]}));
  } else {
    options.precision = job["precision"].get<std::string>();
  }
  Trainer trainer(options);
  ClassificationTask task(
      model, [&](const at::Tensor& x) { return model->forward(x); },
      [&](torch::nn::Module& module) {
        return OptimizerConfig{std::shared_ptr(make_optimizer(job, module.parameters()))};
      });
  const FitResult fit = trainer.fit(task, loader, nullptr, job.value("ckpt_path", ""));

  std::map<std::string, at::Tensor> result{{"loss", at::stack(recorder->losses)},
                                           {"scale", at::tensor(recorder->scales, at::kDouble)},
                                           {"skipped", at::tensor(recorder->skipped, at::kLong)}};
  for (const auto& [name, weight] : named_weights(*model)) result["weights." + name] = weight;
  save_safetensors(job["output"].get<std::string>(), result, {{"step_ms", std::to_string(fit.step_ms)}});
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  if (argc == 3 && std::string(argv[1]) == "--digits") {
    const auto digits = mantissa::load_digits();
    mantissa::save_safetensors(argv[2], {{"data", digits->data()}, {"target", digits->target()}});
    return 0;
  }
  if (argc != 2) {
    std::fprintf(stderr, "usage: parity_runner JOB.json | parity_runner --digits FILE\n");
    return 2;
  }
  const auto job = nlohmann::json::parse(std::ifstream(argv[1]));
  if (job.contains("model")) {
    mantissa::run(job);
  } else {
    mantissa::run_optimizer(job);
  }
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "parity_runner: %s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "parity_runner: %s\n", error.what());
  return 1;
}
