#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/weak_map.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/trace/values_internal.h"

namespace mantissa::nonfinite_internal {

/// Non-finite values were created, or spread to another tensor.
struct Event {
  /// kLastResort marks an intended constant or mask, which is blamed only if nothing else is.
  enum class Blame { kNone, kLastResort, kFull } blame = Blame::kNone;
  std::vector<size_t> causes = {};  ///< the events that made the inputs non-finite
  NonFiniteOrigin origin = {};      ///< filled in unless nothing is to blame
  size_t visits = 0;                ///< number of modules entered before
};

/// The events of a trace in order, and the memory that each of them wrote.
class History {
 public:
  size_t size() const { return events_.size(); }
  /// Adds an event whose results are `results`; returns its number.
  size_t add(Event event, const std::vector<at::Tensor>& results);
  /// Returns the events that may have written the non-finite values in `span`: the latest first, back to the
  /// first one that wrote all of the span.
  std::vector<size_t> causes_of(const Span& span) const;
  /// Returns the first event to blame among all that lead to `roots`, or null if none is to blame.
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
