#include "mantissa/trainer/task.h"

#include "mantissa/trainer/metrics.h"

namespace mantissa {

void Task::log(const std::string& name, const at::Tensor& value) {
  TORCH_CHECK(metrics_, "log('", name,
              "'): call it inside training_step() or validation_step() of a running Trainer");
  metrics_->add(name, value, batch_weight_);
}

void Task::log(const std::string& name, double value) {
  TORCH_CHECK(metrics_, "log('", name,
              "'): call it inside training_step() or validation_step() of a running Trainer");
  metrics_->add(name, value, batch_weight_);
}

}  // namespace mantissa
