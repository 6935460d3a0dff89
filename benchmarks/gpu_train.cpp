// Our side of benchmarks/gpu. The other side is gpu_parts/peers.py, which reads the same jobs.
//
//   gpu_train --facts DEVICE   prints the result of device_facts()
//   gpu_train JOB.json         trains in rounds, as requested on its standard input
//
// Job:    "model" {"kind": gpt, resnet or vit, and its sizes}; "weights" (safetensors with the names of
//         state_dict()); "data" (safetensors: "data" and "target" [batches, B, ...], used in turn; all of
//         them are on the device, unless "batches_on" is "host" and "trainer" moves them to it); "precision",
//         "tf32", "channels_last"; "optimizer", "lr", "eps", "weight_decay" as in
//         tests/parity/optimizer_job.h; "clip"; "device"; "threads"; "first_steps"; "deterministic_first";
//         "loop": "hand" (the hooks of Precision), "recipe" (Autocast and GradScaler, for 16-mixed) or
//         "trainer"; "count_syncs".
// Rounds: the first round, of `first_steps` steps, is the warm-up and serves to compare losses; with
//         `deterministic_first` it uses libtorch's deterministic algorithms where there are any. After each
//         round, a line of JSON is written to standard output: "ms" per step; "losses" of all its steps;
//         "scale" after it (null without a scaler); "peak_bytes" of memory, on a GPU in this round, on the
//         CPU since the process began; with `count_syncs` also "syncs", the calls by name that made the host
//         wait for the device in the round's steps. Then a line of standard input gives the number of steps
//         of the next round. The end of the input ends the program.
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>

#include <nlohmann/json.hpp>

#include "benchmarks/device_facts.h"
#include "benchmarks/gpt_options_internal.h"
#include "benchmarks/host_syncs.h"
#include "benchmarks/job_file_internal.h"
#include "benchmarks/vision_models.h"
#include "mantissa/amp/autocast.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/matmul_precision.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/precision/channels_last.h"
#include "mantissa/precision/init.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/trainer.h"
#include "tests/parity/optimizer_job.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

std::shared_ptr<TensorModule> make_model(const Json& model) {
  const std::string kind = model["kind"];
  if (kind == "gpt") return std::make_shared<GptImpl>(gpt_options(model));
  if (kind == "resnet")
    return std::make_shared<twins::BottleneckResnetImpl>(
        twins::BottleneckResnetOptions{.blocks = model["blocks"].get<std::vector<int64_t>>(),
                                       .width = model["width"],
                                       .classes = model["classes"]});
  TORCH_CHECK_VALUE(kind == "vit", "gpu_train: no model is called '", kind, "'; choose gpt, resnet or vit");
  return std::make_shared<twins::VitImpl>(twins::VitOptions{.layers = model["layers"],
                                                            .width = model["width"],
                                                            .heads = model["heads"],
                                                            .image = model["image"],
                                                            .patch = model["patch"],
                                                            .classes = model["classes"]});
}

std::shared_ptr<TensorModule> load_model(const Json& job, const Precision& precision, at::Device device) {
  const auto net = init_module(precision, device, [&] { return make_model(job["model"]); });
  load_weights(*net, job["weights"].get<std::string>());
  if (job["channels_last"]) set_channels_last(*net);
  return net;
}

std::vector<Batch> load_batches(const Json& job, at::Device device) {
  const Safetensors file = load_safetensors(job["data"].get<std::string>());
  const at::Tensor data = file.tensors.at("data"), target = file.tensors.at("target");
  std::vector<Batch> batches;
  for (int64_t i = 0; i < data.size(0); ++i) {
    const at::Tensor x = data[i].to(device);
    batches.push_back({job["channels_last"] ? channels_last(x) : x, target[i].to(device), {}});
  }
  return batches;
}

/// Uses libtorch's default algorithms, and for cuDNN the fastest by trial.
void use_fast_algorithms() {
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/true);
  at::globalContext().setBenchmarkCuDNN(true);
}

/// Counts the steps of a round. After the last step it reports the round and waits for the next one. Until
/// then losses stay on the device: nothing in a round waits for it.
class Rounds {
 public:
  Rounds(const Json& job, at::Device device)
      : device_(device), steps_(job["first_steps"]), counts_syncs_(job["count_syncs"]) {
    begin();
  }

  /// Must be called after each step. `scale()` reads the loss scale, if there is one.
  void step_done(const at::Tensor& loss, const std::function<std::optional<double>()>& scale) {
    losses_.push_back(loss.detach());
    if (static_cast<int64_t>(losses_.size()) < steps_) return;
    report(scale);
    losses_.clear();
    over_ = !(std::cin >> steps_);
    begin();
  }

  bool over() const { return over_; }

 private:
  using Clock = std::chrono::steady_clock;

  void begin() {
    if (counts_syncs_) syncs_ = std::make_unique<HostSyncs>(device_);
    begin_ = Clock::now();
  }

  void report(const std::function<std::optional<double>()>& scale) {
    Json line;
    if (syncs_) line["syncs"] = syncs_->calls();
    syncs_.reset();
    if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());
    const std::chrono::duration<double, std::milli> time = Clock::now() - begin_;
    const at::Tensor losses = at::stack(losses_).to(at::kCPU, at::kDouble);
    line["ms"] = time.count() / static_cast<double>(steps_);
    line["losses"] = std::vector<double>(losses.const_data_ptr<double>(),
                                         losses.const_data_ptr<double>() + losses.numel());
    const std::optional<double> loss_scale = scale();
    line["scale"] = loss_scale ? Json(*loss_scale) : Json();
    line["peak_bytes"] = peak_memory_bytes(device_);
    use_fast_algorithms();
    reset_peak_memory(device_);
    std::cout << line.dump() << std::endl;
  }

  at::Device device_;
  int64_t steps_;
  bool counts_syncs_, over_ = false;
  std::unique_ptr<HostSyncs> syncs_;
  std::vector<at::Tensor> losses_;
  Clock::time_point begin_;
};

/// Returns the scale that the next step will use.
std::optional<double> scale_of(const Precision& precision) {
  const StateDict state = precision.state_dict();
  const auto scale = StateReader(state).find("loss_scale");
  return scale ? std::optional(scale->at("scale").to_double()) : std::nullopt;
}

at::Tensor loss_of(const at::Tensor& logits, const Batch& batch) {
  const at::Tensor y = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::cross_entropy_loss(y.flatten(0, -2), batch.target.flatten());
}

/// Trains with the hooks of Precision, as a user writes each step.
void train_by_hand(const Json& job, at::Device device) {
  const auto precision = make_precision(job["precision"].get<std::string>(), device);
  const auto net = load_model(job, *precision, device);
  precision->convert_module(*net);
  const auto optimizer = make_optimizer(job, net->parameters());
  precision->setup_optimizer(*optimizer);
  const std::vector<Batch> batches = load_batches(job, device);
  Rounds rounds(job, device);
  for (size_t i = 0; !rounds.over(); i = (i + 1) % batches.size()) {
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const Scope forward = precision->forward_context();
      loss = loss_of(net->forward(precision->convert_input(batches[i].data)), batches[i]);
    }
    precision->backward(loss);
    precision->clip_gradients(*optimizer, job["clip"]);
    precision->optimizer_step(*optimizer);
    rounds.step_done(loss, [&] { return scale_of(*precision); });
  }
}

/// Trains in 16-mixed as in PyTorch's recipe, with the parts that Precision's hooks are made of.
void train_by_recipe(const Json& job, at::Device device) {
  TORCH_CHECK_VALUE(job["precision"] == "16-mixed", "gpu_train: the loop 'recipe' is for 16-mixed, got ",
                    job["precision"].get<std::string>());
  const auto net = load_model(job, Precision("32-true"), device);
  const auto optimizer = make_optimizer(job, net->parameters());
  GradScaler scaler(device);
  const std::vector<Batch> batches = load_batches(job, device);
  Rounds rounds(job, device);
  for (size_t i = 0; !rounds.over(); i = (i + 1) % batches.size()) {
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast(device.type(), {.dtype = at::kHalf});
      loss = loss_of(net->forward(batches[i].data), batches[i]);
    }
    scaler.scale(loss).backward();
    scaler.clip_grad_norm_(*optimizer, job["clip"]);
    scaler.step(*optimizer);
    scaler.update();
    rounds.step_done(loss, [&] { return std::optional(scaler.get_scale()); });
  }
}

/// Repeats the same batches without end.
class Endless final : public Loader {
 public:
  explicit Endless(std::vector<Batch> batches) : batches_(std::move(batches)) {}
  void set_epoch(int64_t) override { next_ = 0; }
  std::optional<Batch> next() override { return batches_[next_++ % batches_.size()]; }
  int64_t size() const override { return int64_t{1} << 40; }

 private:
  std::vector<Batch> batches_;
  size_t next_ = 0;
};

class RoundsOfTrainer final : public Callback {
 public:
  explicit RoundsOfTrainer(Rounds rounds) : rounds_(std::move(rounds)) {}
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override {
    rounds_.step_done(batch.loss, [&] { return scale_of(trainer.precision()); });
    if (rounds_.over()) trainer.stop("no round is asked for");
  }

 private:
  Rounds rounds_;
};

void train_by_trainer(const Json& job, at::Device device) {
  Endless batches(load_batches(job, job["batches_on"] == "host" ? at::Device(at::kCPU) : device));
  const auto net = load_model(job, Precision("32-true"), device);
  ClassificationTask task(
      net, [&](const at::Tensor& x) { return net->forward(x); },
      [&](torch::nn::Module& module) {
        return OptimizerConfig{std::shared_ptr(make_optimizer(job, module.parameters()))};
      });
  Trainer trainer({.precision = job["precision"].get<std::string>(),
                   .device = device.str(),
                   .gradient_clip_val = job["clip"],
                   .callbacks = {std::make_shared<RoundsOfTrainer>(Rounds(job, device))}});
  trainer.fit(task, batches);
}

void train(const Json& job) {
  at::set_num_threads(job["threads"]);
  set_float32_matmul_precision(job["tf32"] ? "high" : "highest");
  set_tf32_convolutions(job["tf32"]);
  job["deterministic_first"] ? at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true)
                             : use_fast_algorithms();
  const at::Device device = resolve_device(job["device"]);
  const std::map<std::string, void (*)(const Json&, at::Device)> loops = {
      {"hand", train_by_hand}, {"recipe", train_by_recipe}, {"trainer", train_by_trainer}};
  loops.at(job["loop"])(job, device);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  if (argc == 3 && std::string(argv[1]) == "--facts") {
    std::printf("%s\n", mantissa::device_facts(argv[2]).dump().c_str());
    return 0;
  }
  if (const int status = mantissa::answer_usage(argc, argv, "gpu_train --facts DEVICE | gpu_train JOB.json");
      status >= 0)
    return status;
  mantissa::train(mantissa::read_job(argv[1]));
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "gpu_train: %s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_train: %s\n", error.what());
  return 1;
}
