#include <unordered_set>
#include <utility>

#include "mantissa/trace/history_internal.h"
#include "mantissa/trace/report_internal.h"

namespace mantissa::nonfinite_internal {

size_t History::add(Event event, const std::vector<at::Tensor>& results) {
  if (event.blame != Event::Blame::kNone) event.origin.cure = cure_for(event.origin);
  events_.push_back(std::move(event));
  for (const at::Tensor& values : results) {
    const Span span(values);
    writes_.try_emplace(values.storage()).first->push_back({span, events_.size() - 1});
  }
  return events_.size() - 1;
}

std::vector<size_t> History::causes_of(const Span& span) const {
  std::vector<size_t> causes;
  const std::vector<Write>* writes = writes_.find(span.storage);
  if (!writes) return causes;
  for (auto write = writes->rbegin(); write != writes->rend(); ++write) {
    if (!write->span.overlaps(span)) continue;
    causes.push_back(write->event);
    if (write->span.covers(span)) break;
  }
  return causes;
}

const Event* History::first_to_blame(std::vector<size_t> roots) const {
  std::unordered_set<size_t> leading;
  while (!roots.empty()) {
    const size_t event = roots.back();
    roots.pop_back();
    if (!leading.insert(event).second) continue;
    roots.insert(roots.end(), events_[event].causes.begin(), events_[event].causes.end());
  }
  const Event* first = nullptr;
  for (const size_t number : leading) {
    const Event* event = &events_[number];
    if (event->blame == Event::Blame::kNone) continue;
    if (!first || event->blame > first->blame || (event->blame == first->blame && event < first))
      first = event;
  }
  return first;
}

}  // namespace mantissa::nonfinite_internal
