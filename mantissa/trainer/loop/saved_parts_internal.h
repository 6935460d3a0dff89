#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mantissa/trainer/loop/run_part_internal.h"
#include "mantissa/trainer/task.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa {

class Loader;

/// The mode's own state, and the choice of CPU kernels, whose results differ in bits.
class SavedPrecision final : public RunPart {
 public:
  explicit SavedPrecision(Precision& precision) : precision_(precision) {}
  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;
  /// Returns the name of the mode that wrote a saved state, and that mode's own state.
  static const std::string& name_in(const StateReader& state);
  static StateReader state_in(const StateReader& state);

 private:
  Precision& precision_;
};

/// The states of the user's Stateful objects: callbacks, the task, the training loader.
class SavedObjects final : public RunPart {
 public:
  SavedObjects(const TrainerOptions& options, Task& task) : options_(options), task_(task) {}
  /// `train`: the training loader, or null if the run has none now. It must live until the next call.
  void set_loader(Loader* train) { train_ = train; }
  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;

 private:
  const TrainerOptions& options_;
  Task& task_;
  Loader* train_ = nullptr;
};

/// Settings that change the results of a resumed run. They are compared with the run's, not applied.
class SavedSettings final : public RunPart {
 public:
  SavedSettings(const TrainerOptions& options, const int64_t& batches_per_epoch)
      : options_(options), batches_per_epoch_(batches_per_epoch) {}
  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;
  /// Returns the batches per epoch in a saved state, if it has them.
  /// Errors: c10::ValueError for text that is no count.
  static std::optional<int64_t> batches_per_epoch_in(const StateReader& state);

 private:
  StateDict settings() const;

  const TrainerOptions& options_;
  const int64_t& batches_per_epoch_;
};

}  // namespace mantissa
