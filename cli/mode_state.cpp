#include "cli/mode_state.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "cli/json_output.h"
#include "cli/run_folder.h"
#include "mantissa/core/error_message.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;

class LoadsModeState final : public Callback {
 public:
  LoadsModeState(StateDict state, std::string weights)
      : state_(std::move(state)), weights_(std::move(weights)) {}

  void on_validation_start(Trainer& trainer) override { load(trainer.precision()); }
  void on_test_start(Trainer& trainer) override { load(trainer.precision()); }
  void on_predict_start(Trainer& trainer) override { load(trainer.precision()); }

 private:
  void load(Precision& precision) const {
    StateDict needed;  // what the optimizer's step needs is of no use here
    for (const auto& [name, value] : precision.state_dict())
      if (const auto saved = state_.find(name); saved != state_.end()) needed.insert(*saved);
    for (const std::string& difference : precision.load_state_dict(StateReader(needed, weights_))) {
      TORCH_WARN("evaluating '", weights_, "' in ", precision.name(), ": ", difference);
    }
  }

  StateDict state_;
  std::string weights_;
};

/// Returns the number of steps in a run's result; -1 without one.
int64_t steps_of_result(const fs::path& run) {
  std::ifstream in(run / kResult);
  const Json result = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  const bool has_steps =
      result.is_object() && result.contains("steps") && result["steps"].is_number_integer();
  return has_steps ? result["steps"].get<int64_t>() : -1;
}

}  // namespace

StateDict mode_state_in(const StateDict& checkpoint) {
  const auto precision = StateReader(checkpoint).find("precision");
  return precision ? precision->at("state").to_dict() : StateDict();
}

StateDict mode_state_of_result(const fs::path& run) {
  const fs::path checkpoints = run / kCheckpoints;
  std::error_code error;
  if (!fs::is_directory(checkpoints, error)) return {};
  const int64_t steps = steps_of_result(run);
  const std::vector<CheckpointEntry> all = list_checkpoints(checkpoints);
  const auto last = std::find_if(all.begin(), all.end(), [&](const CheckpointEntry& entry) {
    return entry.problem.empty() && entry.step == steps;
  });
  if (last == all.end()) return {};
  try {
    return mode_state_in(load_checkpoint(last->path).state);
  } catch (const std::exception& failure) {
    TORCH_WARN("the state of the mode cannot be read: ", message_of(failure));
    return {};
  }
}

std::shared_ptr<Callback> loads_mode_state(StateDict state, std::string weights) {
  return std::make_shared<LoadsModeState>(std::move(state), std::move(weights));
}

}  // namespace mantissa::cli
