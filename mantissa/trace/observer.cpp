#include <algorithm>
#include <atomic>
#include <deque>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/function_hook.h>

#include "mantissa/core/error_message.h"
#include "mantissa/trace/observer_internal.h"

namespace mantissa::nonfinite_internal {

using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

thread_local Frame* innermost = nullptr;

// Callbacks are plain functions: libtorch runs them on autograd's threads, but passes none of our objects
// along.
std::atomic<Observer*> active = nullptr;

/// Reports the results of a backward node to the observer, because a custom function may compute values
/// without any operation of libtorch.
class NodeHook final : public torch::autograd::FunctionPostHook {
 public:
  // The loss, and with it this hook, may outlive the trace.
  NodeHook(std::weak_ptr<Observer> observer, Node& node) : observer_(std::move(observer)), node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (const std::shared_ptr<Observer> observer = observer_.lock())
      observer->on_node(node_, outputs, inputs);
    return outputs;
  }

 private:
  std::weak_ptr<Observer> observer_;
  Node& node_;
};

}  // namespace

void Observer::begin() {
  Observer* none = nullptr;
  TORCH_CHECK(active.compare_exchange_strong(none, this),
              "trace_nonfinite: another trace is under way in this process; wait until it has ended");
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Observer::on_start, &Observer::on_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

Observer::~Observer() {
  if (!callback_) return;
  at::removeCallback(*callback_);
  active = nullptr;
}

std::unique_ptr<at::ObserverContext> Observer::on_start(const at::RecordFunction& fn) {
  Observer* observer = active;
  const auto name = fn.operator_name();  // empty for one of the engine's own ranges
  if (!observer || !name) return nullptr;
  auto handle = c10::Dispatcher::singleton().findSchema(*name);
  if (!handle) return nullptr;
  auto frame = std::make_unique<Frame>(*handle);
  frame->inputs.assign(fn.inputs().begin(), fn.inputs().end());
  const c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  frame->autocast = !excluded.has_all(c10::autocast_dispatch_keyset);
  const Unobserved guard;
  frame->parent = innermost;
  try {
    observer->start(*frame);
  } catch (const std::exception& error) {
    observer->warn_about(frame->name(), error);
    return nullptr;
  }
  innermost = frame.get();
  return frame;
}

void Observer::on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  Observer* observer = active;
  const auto* frame = static_cast<const Frame*>(context);
  if (!observer || !frame) return;
  innermost = frame->parent;
  const Unobserved guard;
  try {
    observer->end(*frame, {fn.outputs().begin(), fn.outputs().end()});
  } catch (const std::exception& error) {
    observer->warn_about(frame->name(), error);
  }
}

/// A legal operation of the user's program must not end in an exception of the trace.
void Observer::warn_about(const std::string& name, const std::exception& error) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(warned_, true)) return;
  TORCH_WARN("trace_nonfinite: ", name, " could not be observed (", message_of(error),
             "); values that it computes are reported as inputs of the operation that reads them");
}

/// Copies what the operation will change, under every argument that reads it: mul_() by a number is mul_out()
/// to its own operand.
void Observer::keep_before(Frame& frame) {
  std::vector<Span> written;
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    if (use_of(frame.op, i) == Use::kRead) continue;
    each_tensor(frame.inputs[i], [&](const at::Tensor& t) {
      const at::Tensor values = values_of(t);
      if (!values.defined()) return;
      written.emplace_back(values);
      const Owned* owner = modules_.owner_of(values);
      if (!owner || !owner->is_parameter || !owner->original.defined()) return;
      const bool is_kept = std::any_of(written_parameters_.begin(), written_parameters_.end(),
                                       [&](const auto& kept) { return kept.first.is_same(owner->original); });
      if (!is_kept) written_parameters_.emplace_back(owner->original, owner->original.detach().clone());
    });
  }
  if (written.empty()) return;
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    if (use_of(frame.op, i) == Use::kOverwrite) continue;
    bool changes = false;
    each_tensor(frame.inputs[i], [&](const at::Tensor& t) {
      const at::Tensor values = values_of(t);
      if (!values.defined()) return;
      const Span span(values);
      changes |= std::any_of(written.begin(), written.end(), [&](const Span& other) {
        return other.storage == span.storage && other.overlaps(span);
      });
    });
    if (!changes) continue;
    frame.modified[i] = map_tensors_of(
        frame.inputs[i], [](const at::Tensor& t) { return values_of(t).defined() ? t.detach().clone() : t; });
  }
}

void Observer::restore_parameters() const {
  const Unobserved guard;
  for (auto [parameter, value] : written_parameters_) parameter.copy_(value);
}

void Observer::start(Frame& frame) {
  const std::lock_guard lock(mutex_);
  frame.first_event = history_.size();
  // The result of a custom function is first seen here.
  for (const c10::IValue& input : frame.inputs)
    each_tensor(input, [&](const at::Tensor& t) { modules_.remember_forward_op(t, "", modules_.here()); });
  keep_before(frame);
  frame.place = modules_.enter(frame, in_backward_);
}

/// The tensors of an operation that has ended.
struct Observer::Results {
  std::vector<at::Tensor> returned;
  std::vector<at::Tensor> all;                    ///< with the operands that the operation wrote
  std::unordered_set<c10::StorageImpl*> written;  ///< of the operands that the operation wrote
  std::unordered_set<c10::StorageImpl*> read;     ///< of the operands that the operation only read

  /// Whether the operation computed the values in `storage`; it may also have returned a view of an operand.
  bool computed(c10::StorageImpl* storage) const {
    return written.contains(storage) || !read.contains(storage);
  }
};

Observer::Results Observer::results_of(const Frame& frame, const std::vector<c10::IValue>& outputs) {
  Results results;
  for (const c10::IValue& output : outputs)
    each_tensor(output, [&](const at::Tensor& t) {
      modules_.remember_forward_op(t, frame.name(), frame.place);
      results.returned.push_back(t);
    });
  results.all = results.returned;
  for (size_t i = 0; i < frame.inputs.size(); ++i)
    each_tensor(frame.inputs[i], [&](const at::Tensor& t) {
      const at::Tensor values = values_of(t);
      if (!values.defined()) return;
      c10::StorageImpl* const storage = Span(values).storage;
      if (use_of(frame.op, i) == Use::kRead) {
        results.read.insert(storage);
        return;
      }
      results.written.insert(storage);
      const bool is_listed = std::any_of(results.all.begin(), results.all.end(),
                                         [&](const at::Tensor& r) { return r.is_same(t); });
      if (!is_listed) results.all.push_back(t);
    });
  return results;
}

void Observer::end(const Frame& frame, const std::vector<c10::IValue>& outputs) {
  const std::lock_guard lock(mutex_);
  modules_.own_copies(frame, outputs);
  if (returns_raw_memory(frame.name())) return;
  if (!in_backward_ && !outputs.empty() && outputs[0].isTensor())
    judge_.note_scale(frame, outputs[0].toTensor());
  const Results results = results_of(frame, outputs);
  std::vector<at::Tensor> bad;
  Finiteness seen;
  NonFiniteOrigin origin;
  std::vector<c10::StorageImpl*> made;
  for (size_t i = 0; i < results.all.size(); ++i) {
    const at::Tensor values = values_of(results.all[i]);
    if (!values.defined()) continue;
    const Span span(values);
    if (!results.computed(span.storage)) continue;
    made.push_back(span.storage);
    const std::vector<size_t> known = history_.causes_of(span);
    if (std::any_of(known.begin(), known.end(), [&](size_t event) { return event >= frame.first_event; }))
      continue;  // a part of this operation made them, and has been reported
    const Finiteness finiteness = look_at(values);
    if (finiteness.finite()) continue;
    if (bad.empty()) {
      origin.tensor = "output " + std::to_string(i);
      origin.result = facts_of(values);
    }
    bad.push_back(values);
    seen.nan |= finiteness.nan;
    seen.inf |= finiteness.inf;
  }
  if (!bad.empty() && !judge_.reads_memory_of_caller(frame)) report(frame, origin, bad, seen);
  if (made.empty()) return;
  // A kernel may clear its result before it computes.
  const bool clears = frame.name() == "aten::zero_" || frame.name() == "aten::fill_";
  if (frame.parent && !clears) frame.parent->made_inside.insert(made.begin(), made.end());
  underflows_.note(frame, results.returned);
}

void Observer::report(const Frame& frame, NonFiniteOrigin origin, const std::vector<at::Tensor>& bad,
                      const Finiteness& seen) {
  origin.op = frame.name();
  origin.under_autocast = frame.is_under_autocast();
  if (const Frame* cast = frame.cast()) {
    origin.op = "aten::to";
    origin.by_autocast = cast->is_by_autocast();
  }
  if (frame.outermost().name() != origin.op) origin.called_by = frame.outermost().name();
  modules_.locate(origin, frame.place, torch::autograd::get_current_node().get(), in_backward_);
  Event event{.origin = origin, .visits = frame.place.visits};
  const Operands operands = judge_.read(frame, origin);
  event.causes = operands.causes;
  judge_.judge(event, operands, seen, &frame);
  if (frame.parent && event.origin.cause == NonFiniteCause::kDomain) {
    // logsumexp() of -inf ends in the log of 0. Its inputs count, not the steps in between.
    const Operands given = judge_.read(frame.outermost(), origin);
    if (!given.seen.finite()) {
      event = {.causes = given.causes, .origin = origin, .visits = frame.place.visits};
      event.origin.op = frame.outermost().name();
      event.origin.called_by.clear();
      judge_.judge(event, given, seen, nullptr);
    }
  }
  if (event.origin.cause == NonFiniteCause::kConstant && !event.origin.called_by.empty()) {
    event.origin.op = frame.outermost().name();  // what the program called: index_put_(), not its kernel
    event.origin.called_by.clear();
  }
  history_.add(std::move(event), bad);
}

void Observer::on_node(Node& node, const variable_list& outputs, const variable_list& inputs) {
  const Unobserved guard;
  try {
    look_at_node(node, outputs, inputs);
  } catch (const std::exception& error) {
    warn_about(node_name(node), error);
  }
}

void Observer::look_at_node(Node& node, const variable_list& outputs, const variable_list& inputs) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor values = values_of(outputs[i]);
    if (!values.defined() || !history_.causes_of(Span(values)).empty()) continue;
    const Finiteness finiteness = look_at(values);
    if (finiteness.finite()) continue;
    NonFiniteOrigin origin;
    origin.op = node_name(node);
    origin.tensor = "output " + std::to_string(i);
    origin.result = facts_of(values);
    const Place place = modules_.place_of(node);
    modules_.locate(origin, place, &node, in_backward_);
    Operands operands;
    for (size_t k = 0; k < inputs.size(); ++k)
      judge_.read_tensor(inputs[k], inputs[k], k, origin, place.visits, operands);
    Event event{.causes = operands.causes, .origin = origin, .visits = place.visits};
    judge_.judge(event, operands, finiteness, nullptr);
    history_.add(std::move(event), {values});
  }
}

void Observer::begin_backward(const at::Tensor& loss) {
  judge_.begin_backward(loss);
  std::unordered_set<Node*> seen;
  std::deque<Node*> open{loss.grad_fn().get()};
  while (!open.empty()) {
    Node* node = open.front();
    open.pop_front();
    // A leaf's node lives as long as the leaf, so a hook would remain.
    if (!node || !seen.insert(node).second || node->name() == "torch::autograd::AccumulateGrad") continue;
    node->add_post_hook(std::make_unique<NodeHook>(weak_from_this(), *node));
    for (const torch::autograd::Edge& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  in_backward_ = true;
}

std::optional<NonFiniteOrigin> Observer::blame(const std::vector<Bad>& bad) {
  const Unobserved guard;
  const std::lock_guard lock(mutex_);
  std::vector<size_t> roots;
  for (const auto& [values, what] : bad) {
    Event root{.causes = history_.causes_of(Span(values)), .visits = modules_.visits()};
    if (root.causes.empty()) {
      root.blame = Event::Blame::kFull;
      root.origin.op = "no operation of libtorch";
      root.origin.backward = in_backward_;
      root.origin.tensor = what;
      root.origin.result = facts_of(values);
      root.origin.cause = NonFiniteCause::kInput;
    }
    roots.push_back(history_.add(std::move(root), {}));
  }
  const Event* first = history_.first_to_blame(std::move(roots));
  if (!first) return std::nullopt;
  NonFiniteOrigin origin = first->origin;
  if (!origin.inside_module) origin.next_module = modules_.entered_after(first->visits);
  return origin;
}

}  // namespace mantissa::nonfinite_internal
