#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <type_traits>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Utils.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sum.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/fit_options.h"
#include "cli/recipe.h"
#include "cli/run_folder.h"
#include "mantissa/core/device.h"
#include "mantissa/core/error_message.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/weights.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/csv_logger.h"
#include "mantissa/trainer/interrupt.h"
#include "mantissa/trainer/progress_bar.h"
#include "mantissa/trainer/trainer.h"
#include "mantissa/trainer/weight_averaging.h"

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
  const int64_t per_epoch = (train.size() - 1) / *o.accumulate_grad_batches + 1;
  int64_t by_epochs = INT64_MAX;
  if (*o.max_epochs >= 0 && __builtin_mul_overflow(*o.max_epochs, per_epoch, &by_epochs))
    by_epochs = INT64_MAX;
  const int64_t by_steps = *o.max_steps < 0 ? INT64_MAX : *o.max_steps;
  return std::max<int64_t>(1, std::min(by_epochs, by_steps));
}

/// A path need not be UTF-8, which JSON is: what is not becomes U+FFFD.
std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

/// Keeps the folder of a run that took a step; one that failed before has nothing worth keeping.
class KeepsFolder final : public Callback {
 public:
  explicit KeepsFolder(RunFolder& folder) : folder_(folder) {}
  void on_train_batch_end(Trainer& /*trainer*/, const TrainBatch& batch) override {
    if (batch.stepped) folder_.keep();
  }

 private:
  RunFolder& folder_;
};

void warn_if_not_finite(const FitOptions& o, const Metrics& metrics) {
  for (const char* name : {"train_loss", "val_loss"}) {
    const auto found = metrics.find(name);
    if (found != metrics.end() && !std::isfinite(found->second)) {
      TORCH_WARN("the final ", name, " of --precision ", *o.precision, " is ", format_metric(found->second),
                 ": training diverged; try a smaller --lr or another --precision");
    }
  }
}

void warn_if_nothing_was_learned(const FitResult& result) {
  if (result.steps == 0 || result.skipped_steps < result.steps) return;
  TORCH_WARN("all ", result.steps,
             " steps were skipped: the weights are those that the run began with; lower or leave "
             "out --loss-scale or --init-scale, or see --trace-nonfinite true");
}

/// A loss of nan after the training would be blamed on the training.
void check_finite_weights(const torch::nn::Module& module, const std::string& file) {
  std::string first;
  int64_t tensors = 0;
  for (const auto& [name, weight] : named_weights(module)) {
    const int64_t wrong = weight.numel() - at::isfinite(weight).sum().item<int64_t>();
    if (wrong == 0 || tensors++ > 0) continue;
    first = fmt::format("{} of the {} values of '{}'", wrong, weight.numel(), name);
  }
  const std::string others = tensors > 1 ? fmt::format(" (and {} more tensors)", tensors - 1) : "";
  TORCH_CHECK(tensors == 0, "--weights ", file, ": ", first, others,
              " are nan or inf, from which nothing can be trained; give a file from before its run diverged");
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
    t.precision_options = precision_options(o);
    t.float32_matmul_precision = *o.float32_matmul_precision;
    t.device = *o.device;
    t.transactional = *o.transactional;
    t.trace_nonfinite = *o.trace_nonfinite;
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
  if (!o.weights->empty()) {
    load_weights(*model, *o.weights);
    check_finite_weights(*model, *o.weights);
  }
  int64_t parameters = 0;
  for (const at::Tensor& p : model->parameters()) parameters += p.numel();

  // Only now, when all that can be wrong with the input has been found, is anything written.
  if (const int signal = InterruptScope::requested()) throw Interrupted{signal};
  const std::string label = fmt::format("{}-{}-{}", data.name, *o.model, *o.precision);
  RunFolder folder(*o.output, label);
  FitOptions repeatable = o;
  repeatable.output.reset();  // a repetition wants a folder of its own
  write_file_atomically(folder.file("config.yaml"), to_yaml(repeatable));
  options.callbacks.push_back(std::make_shared<KeepsFolder>(folder));
  options.callbacks.push_back(std::make_shared<CsvLogger>(folder.file("metrics.csv")));
  if (progress) options.callbacks.push_back(progress);
  if (*o.ema_decay > 0)
    options.callbacks.push_back(
        std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{{*o.ema_decay}}));

  Trainer trainer(options);
  const int64_t steps = total_steps(o, *train);
  ClassificationTask task(
      model, [&](const at::Tensor& x) { return model->forward(x); },
      [&](torch::nn::Module& module) { return make_optimizer(o, module, steps); });
  const FitResult result = trainer.fit(task, *train, val.get());
  folder.keep();
  warn_if_not_finite(o, result.metrics);
  warn_if_nothing_was_learned(result);
  save_weights(*model, folder.file("weights.safetensors"),
               {{"precision", trainer.precision().name()}, {"model", *o.model}});
  Json json = to_json(o, trainer, result, parameters, folder.path());
  write_file_atomically(folder.file("result.json"), dump(json) + "\n");
  return json;
}

std::string cell(const Json& value) { return value.is_number() ? format_metric(value.get<double>()) : "-"; }

void print_table(const std::vector<Json>& results, std::FILE* to) {
  std::string table =
      fmt::format("\n{:<11} {:>6} {:>7} {:>7} {:>9} {:>13} {:>10} {:>12}  {}\n", "precision", "epochs",
                  "steps", "skipped", "val loss", "val accuracy", "ms a step", "peak memory", "run files");
  for (const Json& r : results) {
    table += fmt::format("{:<11} {:>6} {:>7} {:>7} {:>9} {:>13} {:>10.2f} {:>9} MiB  {}\n",
                         r["precision"].get<std::string>(), r["epochs"].get<int64_t>(),
                         r["steps"].get<int64_t>(), r["skipped_steps"].get<int64_t>(), cell(r["val_loss"]),
                         cell(r["val_accuracy"]), r["step_ms"].get<double>(),
                         r["peak_memory_bytes"].get<int64_t>() >> 20, r["run_folder"].get<std::string>());
  }
  std::fputs(table.c_str(), to);
}

/// One mode of `--precision all`: a result, or why there is none.
struct Outcome {
  Json result, error;
  bool usage = false;
};

/// A child's answer on its way through the pipe.
Json answer_of(const std::function<Json()>& run) {
  try {
    return {{"result", run()}};
  } catch (const Interrupted&) {
    return Json::object();
  } catch (const UsageError& error) {
    return {{"error", error.what()}, {"usage", true}};
  } catch (const std::exception& error) {
    return {{"error", message_of(error)}};
  }
}

[[noreturn]] void run_child(pid_t parent, int pipe_end, const std::function<Json()>& run) {
  // In a group of its own, so that a terminal's Ctrl-C comes once, from the parent; a second one kills the
  // parent, and with it the child.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  bool sent = false;
  try {
    const std::string text = dump(answer_of(run));
    size_t done = 0;
    for (ssize_t n = 0; done < text.size(); done += static_cast<size_t>(n)) {
      n = write(pipe_end, text.data() + done, text.size() - done);
      if (n < 0 && errno != EINTR) break;
      n = std::max<ssize_t>(n, 0);
    }
    sent = done == text.size();
  } catch (...) {
    sent = false;
  }
  _exit(sent ? 0 : 1);
}

/// All that comes through the pipe until the child ends. A signal that asks for the end is passed on.
std::string read_answer(pid_t child, int pipe_end) {
  constexpr int kMilliseconds = 200;  // a signal just before poll() does not end it
  std::string text;
  std::array<char, 4096> buffer{};
  for (bool passed_on = false;;) {
    const int signal = InterruptScope::requested();
    if (signal != 0 && !passed_on) {
      kill(child, signal);
      passed_on = true;
    }
    pollfd ready{pipe_end, POLLIN, 0};
    if (poll(&ready, 1, kMilliseconds) <= 0) continue;
    const ssize_t n = read(pipe_end, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(n));
  }
}

/// Each mode in a process of its own: its peak memory is its own, and one that fails does not take the others
/// along. Nothing of libtorch's threads or of CUDA may have started before: a forked child could not use
/// them.
Outcome run_in_child(const std::function<Json()>& run) {
  std::array<int, 2> ends{};
  TORCH_CHECK(pipe(ends.data()) == 0,
              "cannot make a pipe to a child process; are there too many open files?");
  const pid_t parent = getpid(), child = fork();
  TORCH_CHECK(child >= 0, "cannot start a child process; is there too little memory?");
  if (child == 0) {
    close(ends[0]);
    run_child(parent, ends[1], run);
  }
  close(ends[1]);
  const std::string text = read_answer(child, ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (signal == InterruptScope::requested()) return {};  // asked before it could end cleanly
    return {.result = {},
            .error = fmt::format("its process was ended by signal {} ({}); is there enough memory?", signal,
                                 strsignal(signal))};
  }
  const Json answer = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded())
    return {.result = {}, .error = "its process ended without a result; is there enough memory?"};
  return {answer.value("result", Json()), answer.value("error", Json()), answer.value("usage", false)};
}

/// What the modes reached and, of those that failed, who and why.
struct Report {
  std::vector<Json> results;
  std::string error;  ///< the first one, naming its mode; empty if none failed
  bool usage = false;
};

Report run_all_modes(const FitOptions& o, bool quiet) {
  std::vector<FitOptions> runs;
  std::vector<std::string> left_out;
  for (const Mode& mode : modes()) {
    if (mode.historical) continue;
    FitOptions one = o;
    one.precision = mode.name;
    try {
      TORCH_CHECK_VALUE(!adamw_steps_fp16(one), kAdamWIn16True);
      make_precision(mode.name, at::Device(at::kCPU), precision_options(one));
    } catch (const c10::ValueError& error) {
      left_out.push_back(mode.name + " is left out: " + error.what_without_backtrace());
      continue;
    }
    // libtorch gives a forked process one thread unless it is told otherwise.
    if (*one.threads == 0) one.threads = at::get_num_threads();
    if (!o.output->empty()) one.output = (std::filesystem::path(*o.output) / mode.name).string();
    check_run_folder(*one.output);
    runs.push_back(one);
  }
  if (runs.empty()) throw UsageError("--precision all: every mode is left out; " + left_out.front());
  for (const std::string& why : left_out) {
    TORCH_WARN(why);
  }
  Report report;
  std::vector<std::string> failed;
  for (const FitOptions& one : runs) {
    if (InterruptScope::requested()) break;
    if (!quiet) tell_user(*one.precision + "\n");
    const Outcome outcome = run_in_child([&] { return run_fit(one, quiet); });
    if (!outcome.result.is_null()) report.results.push_back(outcome.result);
    if (outcome.error.is_null()) continue;
    if (failed.empty()) {
      report.error = fmt::format("--precision {}: {}", *one.precision, outcome.error.get<std::string>());
      report.usage = outcome.usage;
    }
    failed.push_back(*one.precision);
  }
  if (failed.size() > 1) {
    failed.erase(failed.begin());
    report.error =
        report.error.substr(0, report.error.find('\n')) + " (failed too: " + join_names(failed) + ")";
  }
  return report;
}

void fit(const FitCommand& command) {
  const FitOptions file =
      command.config.empty() ? FitOptions{} : usage([&] { return read_yaml(command.config); });
  const FitOptions o = usage([&] { return resolve(merge(command.flags, file)); });
  warn_without_effect(command.flags, o);
  if (command.print_config) {
    fmt::print("{}", to_yaml(o));
    return;
  }
  const bool to_stdout = command.json == "-", all = *o.precision == "all";
  if (!command.json.empty() && !to_stdout) check_writable(command.json);
  const InterruptScope interrupt;
  const Report report = all ? run_all_modes(o, command.quiet) : Report{{run_fit(o, command.quiet)}, {}};
  if (!report.results.empty()) {
    // The table first: should the file fail after all, the numbers of a long run are still there.
    print_table(report.results, to_stdout ? stderr : stdout);
    const std::string text = dump(all ? Json(report.results) : report.results[0]) + "\n";
    if (to_stdout) {
      fmt::print("{}", text);
    } else if (!command.json.empty()) {
      write_file_atomically(command.json, text);
    }
  }
  if (const int signal = InterruptScope::requested()) {
    if (!report.error.empty()) {
      TORCH_WARN(report.error);
    }
    throw Interrupted{signal};
  }
  if (report.usage) throw UsageError(report.error);
  TORCH_CHECK(report.error.empty(), report.error);
}

std::string flag_name(std::string name) {
  for (char& c : name)
    if (c == '_') c = '-';
  return "--" + name;
}

/// " [32; text: 16]": what an option is when it is not given, and with text if that differs.
std::string default_of(const std::string& option) {
  FitOptions text;
  text.data = "text:FILE";
  std::vector<std::string> defaults;
  for (const FitOptions& recipe : {resolve({}), resolve(text)}) {
    for_each_option(recipe, [&](const char* name, const auto& member, const char*) {
      if (name == option) defaults.push_back(fmt::format("{}", *member));
    });
  }
  if (option == "data" || defaults[0] == defaults[1])
    return defaults[0].empty() ? "" : " [" + defaults[0] + "]";
  return fmt::format(" [{}; text: {}]", defaults[0], defaults[1]);
}

/// Why `text` is no Value, or "". CLI11's own reading takes an empty word for no option at all, 2 for true,
/// and a number that is too large for the largest one.
template <typename Value>
std::string misfit(const std::string& text) {
  if constexpr (std::is_same_v<Value, bool>) {
    const std::vector<std::string> words{"true", "false", "yes", "no", "on", "off", "1", "0"};
    const bool known = std::find(words.begin(), words.end(), text) != words.end();
    return known ? "" : "'" + text + "' is not one; choose true or false";
  } else {
    Value value{};
    const char* const end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc::result_out_of_range)
      return text + " is out of range; choose a number of at most 18 digits";
    const char* const kind = std::is_same_v<Value, int64_t> ? "whole number" : "number";
    return error == std::errc() && stopped == end ? "" : fmt::format("'{}' is no {}; give one", text, kind);
  }
}

}  // namespace

void add_fit(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("fit", "Train a model and report what it reached");
  const auto command = std::make_shared<FitCommand>();
  const auto names_a_file = [](const std::string& text) {
    return text.empty() ? "'' is no file; name one, or leave it out" : "";
  };
  sub->add_option("--config", command->config, "YAML file of the options below; flags override it")
      ->check(names_a_file, "");
  sub->add_flag("--print-config", command->print_config,
                "write the complete configuration and train nothing");
  sub->add_option("--json", command->json, "write the result here, machine-readably; -: standard output")
      ->check(names_a_file, "");
  sub->add_flag("--quiet", command->quiet, "no progress");
  for_each_option(command->flags, [&](const char* name, auto& member, const char* help) {
    using Value = typename std::decay_t<decltype(member)>::value_type;
    const std::string apex(apex_name(name)),
        flags = flag_name(name) + (apex.empty() ? "" : "," + flag_name(apex));
    CLI::Option* option = sub->add_option(flags, member, help + default_of(name));
    if constexpr (!std::is_same_v<Value, std::string>) option->check(misfit<Value>, "");
  });
  sub->callback([command] { fit(*command); });
}

}  // namespace mantissa::cli
