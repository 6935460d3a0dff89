#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/weak_map.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/trace/values_internal.h"

namespace mantissa::nonfinite_internal {

/// Values that are not finite came into being, or spread to another tensor.
struct Event {
  /// kLastResort: a constant or mask that was meant, unless nothing else is to blame.
  enum class Blame { kNone, kLastResort, kFull } blame = Blame::kNone;
  std::vector<size_t> causes = {};  ///< events that made the inputs what they are
  NonFiniteOrigin origin = {};      ///< filled in unless nothing is to blame
  size_t visits = 0;                ///< modules that had been entered
};

/// The events of a trace in order, and which tensor's memory each of them wrote.
class History {
 public:
  size_t size() const { return events_.size(); }
  /// Notes an event, which made `results` what they are; returns its number.
  size_t add(Event event, const std::vector<at::Tensor>& results);
  /// The events that may have written what is not finite in `span`, latest first, back to one that wrote all
  /// of it.
  std::vector<size_t> causes_of(const Span& span) const;
  /// The first event to blame among all that lead to `roots`; null: none is.
  const Event* first_to_blame(std::vector<size_t> roots) const;

 private:
  struct Write {
    Span span;
    size_t event;
  };
  std::vector<Event> events_;
  WeakMap<c10::Storage, std::vector<Write>> writes_;
};

}  // namespace mantissa::nonfinite_internal
