#include "cli/run_length.h"

#include <algorithm>
#include <limits>

namespace mantissa::cli {

void check_shares(const FitOptions& o, const Loader& train, const Loader* val) {
  const TrainerOptions& t = o.trainer;
  if (t.fast_dev_run > 0) return;
  t.overfit_batches.of(train.size(), "overfit_batches");
  t.limit_train_batches.of(train.size(), "limit_train_batches");
  if (val != nullptr) t.limit_val_batches.of(val->size(), "limit_val_batches");
}

int64_t total_steps(const FitOptions& o, const Loader& train) {
  const TrainerOptions& t = o.trainer;
  if (t.fast_dev_run > 0) return t.fast_dev_run;
  int64_t batches = train.size();
  if (!t.overfit_batches.is_none()) batches = t.overfit_batches.of(batches, "overfit_batches");
  batches = t.limit_train_batches.of(batches, "limit_train_batches");
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t per_epoch = batches == 0 ? 0 : (batches - 1) / t.accumulate_grad_batches.at(0) + 1;
  int64_t by_epochs = kNone;
  if (t.max_epochs >= 0 && __builtin_mul_overflow(t.max_epochs, per_epoch, &by_epochs)) by_epochs = kNone;
  const int64_t by_steps = t.max_steps < 0 ? kNone : t.max_steps;
  return std::max<int64_t>(1, std::min(by_epochs, by_steps));
}

}  // namespace mantissa::cli
