#pragma once

#include <vector>

#include <ATen/core/ivalue.h>

#include "mantissa/trainer/loop/trainer_run_internal.h"

namespace mantissa {

/// One validate(), test() or predict(). See Trainer.
class EvaluationRun final : public TrainerRun {
 public:
  using TrainerRun::TrainerRun;
  Metrics validate(Loader& val);
  Metrics test(Loader& test);
  std::vector<c10::IValue> predict(Loader& data, bool return_predictions);
};

}  // namespace mantissa
