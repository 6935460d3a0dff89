#pragma once

#include "mantissa/trainer/metrics.h"

namespace mantissa {

/// Points Task::log() at `metrics` for one batch.
class LoggingInto {
 public:
  LoggingInto(MeanMetrics*& slot, MeanMetrics& metrics) : slot_(slot), outer_(slot) { slot_ = &metrics; }
  ~LoggingInto() { slot_ = outer_; }
  LoggingInto(const LoggingInto&) = delete;
  LoggingInto& operator=(const LoggingInto&) = delete;

 private:
  MeanMetrics*& slot_;
  MeanMetrics* outer_;
};

}  // namespace mantissa
