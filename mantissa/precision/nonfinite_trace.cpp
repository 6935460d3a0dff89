#include "mantissa/precision/nonfinite_trace.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/nn/module.h>

#include "mantissa/precision/nonfinite_operation_internal.h"
#include "mantissa/precision/nonfinite_report_internal.h"
#include "mantissa/precision/nonfinite_values_internal.h"

namespace mantissa {
namespace {

using nonfinite_internal::each_tensor;
using nonfinite_internal::facts_of;
using nonfinite_internal::finite_in;
using nonfinite_internal::Finiteness;
using nonfinite_internal::Frame;
using nonfinite_internal::is_mask;
using nonfinite_internal::is_strided;
using nonfinite_internal::look_at;
using nonfinite_internal::map_tensors_of;
using nonfinite_internal::Place;
using nonfinite_internal::Span;
using nonfinite_internal::Use;
using nonfinite_internal::use_of;
using nonfinite_internal::values_of;
using torch::autograd::Node;

/// While it lives, what this thread computes is neither observed nor differentiated nor autocast.
struct Unobserved {
  at::DisableRecordFunctionGuard no_records;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

thread_local Frame* innermost = nullptr;

/// Calls f(now, before) for every tensor of argument `i`: as it is, and as it was before the operation.
template <typename F>
void each_operand(const Frame& frame, size_t i, const F& f) {
  std::vector<at::Tensor> now, before;
  each_tensor(frame.inputs[i], [&](const at::Tensor& t) { now.push_back(t); });
  each_tensor(frame.before(i), [&](const at::Tensor& t) { before.push_back(t); });
  for (size_t k = 0; k < now.size(); ++k) f(now[k], before[k]);
}

/// Values that are not finite came into being, or spread to another tensor.
struct Event {
  enum class Blame { kNone, kLastResort, kFull } blame = Blame::kNone;
  std::vector<size_t> causes = {};  ///< events that made the inputs what they are
  NonFiniteOrigin origin = {};      ///< filled in unless nothing is to blame
  size_t visits = 0;
};

/// A node for as long as the process lives; its address may be used again.
using NodeKey = std::pair<uint64_t, uint64_t>;
NodeKey key_of(const Node& node) { return {node.thread_id(), node.sequence_nr()}; }

class Trace : public std::enable_shared_from_this<Trace> {
 public:
  explicit Trace(const torch::nn::Module& module);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void begin();
  std::optional<NonFiniteOrigin> backward_and_blame(const at::Tensor& loss);
  void on_node(Node& node, const torch::autograd::variable_list& outputs,
               const torch::autograd::variable_list& inputs);

 private:
  /// A parameter or buffer, or a copy of one.
  struct Owned {
    Span span;
    std::string module, name;
    bool is_parameter;
  };
  struct Write {
    Span span;
    size_t event;
  };
  struct ForwardOp {
    std::string name;
    Place place;
  };
  /// What the operands of an event held.
  struct Operands {
    Finiteness seen;
    bool constant_inf = false, constant_nan = false;
    bool reduced = false;  ///< one is of less than 32 bits
    std::vector<size_t> causes;
    std::vector<OperandFacts> facts;
  };

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn);
  static void on_end(const at::RecordFunction& fn, at::ObserverContext* context);

  void start(const at::RecordFunction& fn, Frame& frame);
  void end(const at::RecordFunction& fn, const Frame& frame);
  void own(const at::Tensor& tensor, const std::string& module, const std::string& name, bool is_parameter);
  const Owned* owner_of(const at::Tensor& tensor) const;
  void own_copies(const Frame& frame, const at::RecordFunction& fn);
  void remember_forward_op(const at::Tensor& result, const std::string& name, const Place& place);
  Place place_of(const Frame& frame);
  void locate(NonFiniteOrigin& origin, const Place& place, const Node* node) const;
  std::vector<size_t> causes_of(const Span& span) const;
  bool reads_callers_own(const Frame& frame) const;
  void read_operand(const at::Tensor& tensor, const at::Tensor& before, size_t index,
                    const NonFiniteOrigin& reader, size_t visits, Operands& operands);
  Operands read_operands(const Frame& frame, const NonFiniteOrigin& reader);
  void judge(Event& event, const Operands& operands, const Finiteness& result, const Frame* frame);
  size_t add(Event event, const std::vector<at::Tensor>& results);
  size_t root(const at::Tensor& values, const std::string& what);
  void hook_nodes(const at::Tensor& loss);
  std::optional<NonFiniteOrigin> blame(std::vector<size_t> roots) const;

  const torch::nn::Module& module_;
  std::mutex mutex_;  ///< autograd's threads, one a GPU, report at the same time
  std::optional<at::CallbackHandle> callback_;
  std::vector<Event> events_;
  std::unordered_map<c10::StorageImpl*, std::vector<Write>> writes_;
  std::unordered_map<c10::StorageImpl*, std::vector<Owned>> owned_;
  // Keeps the addresses of storages that are gone from being used again.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> known_;
  std::vector<std::string> visits_;           ///< modules in the order of the forward
  std::map<NodeKey, ForwardOp> forward_ops_;  ///< by the node that holds their derivative
  bool in_backward_ = false;
};

// Callbacks are plain functions; libtorch hands them to autograd's threads, but nothing of ours with them.
std::atomic<Trace*> active_trace = nullptr;

/// Tells the trace what a node of the backward graph returned: a custom function may make values without any
/// operation of libtorch.
class NodeHook final : public torch::autograd::FunctionPostHook {
 public:
  // The loss, and with it this hook, may outlive the trace.
  NodeHook(std::weak_ptr<Trace> trace, Node& node) : trace_(std::move(trace)), node_(node) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    if (const std::shared_ptr<Trace> trace = trace_.lock()) trace->on_node(node_, outputs, inputs);
    return outputs;
  }

 private:
  std::weak_ptr<Trace> trace_;
  Node& node_;
};

/// "NanGradient" for torch::autograd::CppNode<(anonymous namespace)::NanGradient>.
std::string node_name(const Node& node) {
  std::string name = node.name();
  const std::string custom = "torch::autograd::CppNode<";
  if (name.rfind(custom, 0) != 0) return name;
  name = name.substr(custom.size(), name.size() - custom.size() - 1);
  const size_t scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

Trace::Trace(const torch::nn::Module& module) : module_(module) {
  const auto module_of = [](const std::string& name) {
    const size_t dot = name.rfind('.');
    return dot == std::string::npos ? "" : name.substr(0, dot);
  };
  for (const auto& item : module.named_parameters())
    own(item.value(), module_of(item.key()), item.key(), /*is_parameter=*/true);
  for (const auto& item : module.named_buffers())
    own(item.value(), module_of(item.key()), item.key(), /*is_parameter=*/false);
}

void Trace::begin() {
  Trace* none = nullptr;
  TORCH_CHECK(active_trace.compare_exchange_strong(none, this),
              "trace_nonfinite: another trace is under way in this process; wait until it has ended");
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Trace::on_start, &Trace::on_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

Trace::~Trace() {
  if (!callback_) return;
  at::removeCallback(*callback_);
  active_trace = nullptr;
}

void Trace::own(const at::Tensor& tensor, const std::string& module, const std::string& name,
                bool is_parameter) {
  if (!is_strided(tensor)) return;
  const Span span(tensor);
  known_.push_back(tensor.storage().getWeakStorageImpl());
  std::vector<Owned>& all = owned_[span.storage];
  for (Owned& other : all) {
    if (other.span.begin != span.begin || other.span.end != span.end) continue;
    other.module += " or " + module;  // a tied weight: which of the two reads it cannot be told
    other.name += " or " + name;
    return;
  }
  all.push_back({.span = span, .module = module, .name = name, .is_parameter = is_parameter});
}

const Trace::Owned* Trace::owner_of(const at::Tensor& tensor) const {
  if (!is_strided(tensor)) return nullptr;
  const Span span(tensor);
  const auto found = owned_.find(span.storage);
  if (found == owned_.end()) return nullptr;
  for (const Owned& owned : found->second)
    if (owned.span.overlaps(span)) return &owned;
  return nullptr;
}

/// Casts and copies of a parameter, such as autocast's, speak for its module as well.
void Trace::own_copies(const Frame& frame, const at::RecordFunction& fn) {
  static const std::set<std::string> copying = {"aten::_to_copy", "aten::clone", "aten::contiguous",
                                                "aten::to"};
  if (copying.count(frame.name()) == 0 || !frame.inputs[0].isTensor() || fn.outputs().empty()) return;
  const Owned* owner = owner_of(frame.inputs[0].toTensor());
  if (!owner || owner_of(fn.outputs()[0].toTensor())) return;
  const Owned original = *owner;  // own() may move it
  own(fn.outputs()[0].toTensor(), original.module, original.name, original.is_parameter);
}

void Trace::remember_forward_op(const at::Tensor& result, const std::string& name, const Place& place) {
  if (!result.defined() || !result.requires_grad()) return;
  const std::shared_ptr<Node>& node = result.grad_fn();
  // The innermost operation ends first and is the one whose derivative the node is.
  if (node) forward_ops_.try_emplace(key_of(*node), ForwardOp{name.empty() ? node_name(*node) : name, place});
}

Place Trace::place_of(const Frame& frame) {
  const std::shared_ptr<Node> node = torch::autograd::get_current_node();
  const auto forward = node ? forward_ops_.find(key_of(*node)) : forward_ops_.end();
  const size_t visits = forward == forward_ops_.end() ? visits_.size() : forward->second.place.visits;
  const Owned* owner = nullptr;
  for (const c10::IValue& input : frame.inputs)
    each_tensor(input, [&](const at::Tensor& t) { owner = owner ? owner : owner_of(t); });
  // What the root holds itself, such as a mask, says less than the module that came before.
  if (owner && (!owner->module.empty() || visits_.empty())) {
    if (!in_backward_ && !node && !owner->module.empty() &&
        (visits_.empty() || visits_.back() != owner->module))
      visits_.push_back(owner->module);
    return {.module = owner->module, .inside = true, .visits = node ? visits : visits_.size()};
  }
  if (forward != forward_ops_.end()) return forward->second.place;
  if (frame.parent && frame.parent->place.inside) return frame.parent->place;
  if (node || in_backward_) return {};
  return {.module = visits == 0 ? "" : visits_[visits - 1], .inside = false, .visits = visits};
}

void Trace::locate(NonFiniteOrigin& origin, const Place& place, const Node* node) const {
  origin.backward = node || in_backward_;
  origin.module = place.module;
  origin.inside_module = place.inside;
  if (!node) return;
  const auto forward = forward_ops_.find(key_of(*node));
  if (forward != forward_ops_.end()) origin.forward_op = forward->second.name;
}

std::unique_ptr<at::ObserverContext> Trace::on_start(const at::RecordFunction& fn) {
  Trace* trace = active_trace;
  const auto name = fn.operator_name();  // none: one of the engine's own ranges
  if (!trace || !name) return nullptr;
  auto handle = c10::Dispatcher::singleton().findSchema(*name);
  if (!handle) return nullptr;
  auto frame = std::make_unique<Frame>(*handle);
  const Unobserved guard;
  trace->start(fn, *frame);
  frame->parent = std::exchange(innermost, frame.get());
  return frame;
}

void Trace::on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  Trace* trace = active_trace;
  const auto* frame = static_cast<const Frame*>(context);
  if (!trace || !frame) return;
  innermost = frame->parent;
  const Unobserved guard;
  trace->end(fn, *frame);
}

void Trace::start(const at::RecordFunction& fn, Frame& frame) {
  const std::lock_guard lock(mutex_);
  frame.parent = innermost;
  frame.inputs.assign(fn.inputs().begin(), fn.inputs().end());
  frame.first_event = events_.size();
  // The result of a custom function is first seen here.
  const Place here{
      .module = visits_.empty() ? "" : visits_.back(), .inside = false, .visits = visits_.size()};
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    each_tensor(frame.inputs[i], [&](const at::Tensor& t) { remember_forward_op(t, "", here); });
    if (use_of(frame.op, i) == Use::kModify)
      frame.modified[i] = map_tensors_of(frame.inputs[i], [](const at::Tensor& t) {
        return values_of(t).defined() ? t.detach().clone() : t;
      });
  }
  frame.place = place_of(frame);
}

void Trace::end(const at::RecordFunction& fn, const Frame& frame) {
  const std::lock_guard lock(mutex_);
  own_copies(frame, fn);
  if (nonfinite_internal::returns_raw_memory(frame.name())) return;
  std::vector<at::Tensor> results, written;
  for (const c10::IValue& output : fn.outputs())
    each_tensor(output, [&](const at::Tensor& t) {
      remember_forward_op(t, frame.name(), frame.place);
      results.push_back(t);
    });
  std::unordered_set<c10::StorageImpl*> inputs;
  for (size_t i = 0; i < frame.inputs.size(); ++i)
    each_tensor(frame.inputs[i], [&](const at::Tensor& t) {
      const at::Tensor values = values_of(t);
      if (!values.defined()) return;
      if (use_of(frame.op, i) == Use::kRead) {
        inputs.insert(Span(values).storage);
      } else {
        written.push_back(t);
      }
    });
  for (const at::Tensor& t : written)
    if (std::none_of(results.begin(), results.end(), [&](const at::Tensor& r) { return r.is_same(t); }))
      results.push_back(t);

  std::vector<at::Tensor> bad;
  Finiteness seen;
  NonFiniteOrigin origin;
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor values = values_of(results[i]);
    if (!values.defined()) continue;
    const Span span(values);
    const bool is_written = std::any_of(written.begin(), written.end(), [&](const at::Tensor& t) {
      return Span(values_of(t)).storage == span.storage;
    });
    if (!is_written && inputs.count(span.storage) != 0) continue;  // a view of an operand
    const std::vector<size_t> known = causes_of(span);
    if (std::any_of(known.begin(), known.end(), [&](size_t event) { return event >= frame.first_event; }))
      continue;  // a part of this operation has made them, and has been told of
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
  if (bad.empty() || reads_callers_own(frame)) return;

  origin.op = frame.name();
  if (frame.outermost().name() != frame.name()) origin.called_by = frame.outermost().name();
  locate(origin, frame.place, torch::autograd::get_current_node().get());
  Event event{.origin = origin, .visits = frame.place.visits};
  const Operands operands = read_operands(frame, origin);
  event.causes = operands.causes;
  judge(event, operands, seen, &frame);
  if (frame.parent && event.origin.cause == NonFiniteCause::kDomain) {
    // logsumexp() of -inf ends in the log of 0: what it was given counts, not the steps in between.
    const Operands given = read_operands(frame.outermost(), origin);
    if (!given.seen.finite()) {
      event = {.causes = given.causes, .origin = origin, .visits = frame.place.visits};
      event.origin.op = frame.outermost().name();
      event.origin.called_by.clear();
      judge(event, given, seen, nullptr);
    }
  }
  add(std::move(event), bad);
}

/// Whether an operand that is not finite was made by the kernel of an operation that this one is a part of:
/// then that one is to be judged, and by its own operands.
bool Trace::reads_callers_own(const Frame& frame) const {
  if (!frame.parent) return false;
  std::unordered_set<c10::StorageImpl*> given;
  for (const c10::IValue& input : frame.outermost().inputs)
    each_tensor(input, [&](const at::Tensor& t) {
      if (const at::Tensor values = values_of(t); values.defined()) given.insert(Span(values).storage);
    });
  bool found = false;
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    if (use_of(frame.op, i) == Use::kOverwrite) continue;
    each_operand(frame, i, [&](const at::Tensor& now, const at::Tensor& before) {
      if (found || !values_of(now).defined() || now.unsafeGetTensorImpl()->is_wrapped_number() ||
          owner_of(now))
        return;
      const Span span(values_of(now));
      found =
          given.count(span.storage) == 0 && causes_of(span).empty() && !look_at(values_of(before)).finite();
    });
  }
  return found;
}

/// Notes what an operand held. One that is not finite and that no operation has made is an event of its own.
void Trace::read_operand(const at::Tensor& tensor, const at::Tensor& before, size_t index,
                         const NonFiniteOrigin& reader, size_t visits, Operands& operands) {
  const at::Tensor values = values_of(before), now = values_of(tensor);
  if (!values.defined()) return;
  const Owned* owner = owner_of(now);
  operands.facts.push_back(facts_of(values, owner ? owner->name : ""));
  operands.reduced |= at::isReducedFloatingType(values.scalar_type());
  if (operands.facts.back().non_finite == 0) return;
  const Finiteness finiteness = look_at(values);
  if (values.unsafeGetTensorImpl()->is_wrapped_number()) {
    operands.constant_nan |= finiteness.nan;
    operands.constant_inf |= finiteness.inf;
    return;
  }
  operands.seen.nan |= finiteness.nan;
  operands.seen.inf |= finiteness.inf;
  std::vector<size_t> causes = causes_of(Span(now));
  if (causes.empty()) {
    Event source{.blame = Event::Blame::kFull, .origin = reader, .visits = visits};
    source.origin.result = operands.facts.back();
    source.origin.result.name.clear();
    source.origin.tensor = "input " + std::to_string(index);
    source.origin.cause = NonFiniteCause::kInput;
    if (owner) {
      source.origin.tensor = (owner->is_parameter ? "parameter '" : "buffer '") + owner->name + "'";
      source.origin.cause = NonFiniteCause::kParameter;
    }
    if (!(owner && owner->is_parameter) && !finiteness.nan && is_mask(values)) {
      source.blame = Event::Blame::kLastResort;
      source.origin.cause = NonFiniteCause::kConstant;
    }
    causes.push_back(add(std::move(source), {now}));
  }
  operands.causes.insert(operands.causes.end(), causes.begin(), causes.end());
}

Trace::Operands Trace::read_operands(const Frame& frame, const NonFiniteOrigin& reader) {
  Operands operands;
  const auto number = [&](double value) {
    operands.constant_nan |= std::isnan(value);
    operands.constant_inf |= std::isinf(value);
  };
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    const c10::IValue& value = frame.inputs[i];
    if (value.isDouble()) number(value.toDouble());
    if (value.isDoubleList())
      for (const double item : value.toDoubleVector()) number(item);
    if (use_of(frame.op, i) == Use::kOverwrite) {
      each_tensor(value, [&](const at::Tensor& t) {
        operands.reduced |= t.defined() && at::isReducedFloatingType(t.scalar_type());
      });
      continue;
    }
    each_operand(frame, i, [&](const at::Tensor& now, const at::Tensor& before) {
      read_operand(now, before, i, reader, frame.place.visits, operands);
    });
  }
  return operands;
}

/// Decides whether an operation is to blame for its result, and for what. `frame`: null for a custom
/// function's node.
void Trace::judge(Event& event, const Operands& operands, const Finiteness& result, const Frame* frame) {
  NonFiniteOrigin& origin = event.origin;
  origin.inputs = operands.facts;
  event.blame = Event::Blame::kFull;
  if (operands.constant_nan) {
    origin.cause = NonFiniteCause::kConstant;
  } else if (operands.seen.nan) {
    event.blame = Event::Blame::kNone;
  } else if (operands.seen.inf || operands.constant_inf) {
    if (result.nan) {
      origin.cause = NonFiniteCause::kInfinities;
    } else {
      event.blame = operands.constant_inf ? Event::Blame::kLastResort : Event::Blame::kNone;
      origin.cause = NonFiniteCause::kConstant;
    }
  } else if (frame) {
    const bool reduced = operands.reduced || at::isReducedFloatingType(origin.result.dtype);
    origin.finite_in_float32 = reduced ? finite_in(at::kFloat, *frame) : std::optional(false);
    if (origin.finite_in_float32.value_or(false)) {
      origin.cause = origin.backward ? NonFiniteCause::kLossScale : NonFiniteCause::kDtypeRange;
    } else if (const std::optional<bool> finite = finite_in(at::kDouble, *frame)) {
      const bool too_large = *finite || (!result.nan && !nonfinite_internal::has_known_domain(origin));
      origin.cause = too_large ? NonFiniteCause::kOverflow : NonFiniteCause::kDomain;
    }
  }
}

void Trace::on_node(Node& node, const torch::autograd::variable_list& outputs,
                    const torch::autograd::variable_list& inputs) {
  const Unobserved guard;
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor values = values_of(outputs[i]);
    if (!values.defined() || !causes_of(Span(values)).empty()) continue;
    const Finiteness finiteness = look_at(values);
    if (finiteness.finite()) continue;
    NonFiniteOrigin origin;
    origin.op = node_name(node);
    origin.tensor = "output " + std::to_string(i);
    origin.result = facts_of(values);
    const auto forward = forward_ops_.find(key_of(node));
    const Place place = forward == forward_ops_.end() ? Place{} : forward->second.place;
    locate(origin, place, &node);
    Operands operands;
    for (size_t k = 0; k < inputs.size(); ++k)
      read_operand(inputs[k], inputs[k], k, origin, place.visits, operands);
    Event event{.causes = operands.causes, .origin = origin, .visits = place.visits};
    judge(event, operands, finiteness, nullptr);
    add(std::move(event), {values});
  }
}

/// The events that may have written what is not finite in `span`, latest first, back to one that wrote all of
/// it.
std::vector<size_t> Trace::causes_of(const Span& span) const {
  std::vector<size_t> causes;
  const auto found = writes_.find(span.storage);
  if (found == writes_.end()) return causes;
  for (auto write = found->second.rbegin(); write != found->second.rend(); ++write) {
    if (!write->span.overlaps(span)) continue;
    causes.push_back(write->event);
    if (write->span.covers(span)) break;
  }
  return causes;
}

size_t Trace::add(Event event, const std::vector<at::Tensor>& results) {
  if (event.blame != Event::Blame::kNone) event.origin.cure = nonfinite_internal::cure_for(event.origin);
  events_.push_back(std::move(event));
  for (const at::Tensor& values : results) {
    const Span span(values);
    known_.push_back(values.storage().getWeakStorageImpl());
    writes_[span.storage].push_back({span, events_.size() - 1});
  }
  return events_.size() - 1;
}

void Trace::hook_nodes(const at::Tensor& loss) {
  std::unordered_set<Node*> seen;
  std::deque<Node*> open{loss.grad_fn().get()};
  while (!open.empty()) {
    Node* node = open.front();
    open.pop_front();
    // A leaf's node lives as long as the leaf, so that a hook would stay.
    if (!node || !seen.insert(node).second || node->name() == "torch::autograd::AccumulateGrad") continue;
    node->add_post_hook(std::make_unique<NodeHook>(weak_from_this(), *node));
    for (const torch::autograd::Edge& edge : node->next_edges()) open.push_back(edge.function.get());
  }
}

/// The event that made `values`, which the loss or a gradient holds.
size_t Trace::root(const at::Tensor& values, const std::string& what) {
  const std::vector<size_t> causes = causes_of(Span(values));
  if (!causes.empty()) return add({.causes = causes}, {});
  Event event{.blame = Event::Blame::kFull, .visits = visits_.size()};
  event.origin.op = "no operation of libtorch";
  event.origin.backward = in_backward_;
  event.origin.tensor = what;
  event.origin.result = facts_of(values);
  event.origin.cause = NonFiniteCause::kInput;
  return add(std::move(event), {});
}

std::optional<NonFiniteOrigin> Trace::backward_and_blame(const at::Tensor& loss) {
  const auto is_bad = [](const at::Tensor& values) {
    const Unobserved guard;
    return values.defined() && !look_at(values).finite();
  };
  const auto add_root = [this](const at::Tensor& values, const std::string& what) {
    const Unobserved guard;
    return root(values, what);
  };
  in_backward_ = false;
  if (is_bad(values_of(loss))) return blame({add_root(values_of(loss), "the loss")});
  if (!loss.requires_grad()) return std::nullopt;

  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  for (const auto& item : module_.named_parameters()) {
    const bool again = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const at::Tensor& other) { return other.is_same(item.value()); });
    if (again || !item.value().requires_grad()) continue;
    parameters.push_back(item.value());
    names.push_back(item.key());
  }
  if (parameters.empty()) return std::nullopt;
  hook_nodes(loss);
  in_backward_ = true;
  const auto gradients =
      torch::autograd::grad({loss}, parameters, /*grad_outputs=*/{}, /*retain_graph=*/std::nullopt,
                            /*create_graph=*/false, /*allow_unused=*/true);
  std::vector<size_t> roots;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (const at::Tensor values = values_of(gradients[i]); is_bad(values))
      roots.push_back(add_root(values, "the gradient of '" + names[i] + "'"));
  if (roots.empty()) return std::nullopt;
  return blame(std::move(roots));
}

/// The first event to blame among all that lead to `roots`.
std::optional<NonFiniteOrigin> Trace::blame(std::vector<size_t> roots) const {
  std::unordered_set<size_t> leading;
  while (!roots.empty()) {
    const size_t event = roots.back();
    roots.pop_back();
    if (!leading.insert(event).second) continue;
    roots.insert(roots.end(), events_[event].causes.begin(), events_[event].causes.end());
  }
  std::optional<size_t> first;
  for (const size_t event : leading) {
    const Event::Blame blame = events_[event].blame;
    if (blame == Event::Blame::kNone) continue;
    if (!first || blame > events_[*first].blame || (blame == events_[*first].blame && event < *first))
      first = event;
  }
  if (!first) return std::nullopt;
  NonFiniteOrigin origin = events_[*first].origin;
  if (!origin.inside_module && events_[*first].visits < visits_.size())
    origin.next_module = visits_[events_[*first].visits];
  return origin;
}

/// Takes the gradients of a module's parameters away and puts them back: what runs meanwhile cannot add to
/// them.
class GradientsAside {
 public:
  explicit GradientsAside(const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) {
      saved_.emplace_back(parameter, parameter.grad());
      parameter.mutable_grad() = at::Tensor();
    }
  }
  ~GradientsAside() {
    // Backwards: a tied parameter was seen twice, and the first time it still had its gradient.
    for (auto item = saved_.rbegin(); item != saved_.rend(); ++item)
      item->first.mutable_grad() = item->second;
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;
};

class RestoreAtEnd {
 public:
  explicit RestoreAtEnd(const torch::nn::Module& module) : point_(module) {}
  ~RestoreAtEnd() { point_.restore(); }
  RestoreAtEnd(const RestoreAtEnd&) = delete;
  RestoreAtEnd& operator=(const RestoreAtEnd&) = delete;

 private:
  ReplayPoint point_;
};

/// Autocast keeps casts of weights while a region is open: those from before would hide the casting, and
/// those of the trace lead into a graph that has been used up.
struct NoCachedCasts {
  NoCachedCasts() { at::autocast::clear_cache(); }
  ~NoCachedCasts() { at::autocast::clear_cache(); }
  NoCachedCasts(const NoCachedCasts&) = delete;
  NoCachedCasts& operator=(const NoCachedCasts&) = delete;
};

std::optional<NonFiniteOrigin> trace(torch::nn::Module& module,
                                     const std::function<at::Tensor()>& forward_and_loss,
                                     const ReplayPoint* from) {
  const RestoreAtEnd restore(module);
  const GradientsAside gradients(module);
  const NoCachedCasts casts;
  const at::AutoGradMode with_gradients(true);
  const at::RecordFunctionGuard observed(true);
  if (from) from->restore();
  const auto trace = std::make_shared<Trace>(module);
  trace->begin();
  const at::Tensor loss = forward_and_loss();
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "trace_nonfinite: forward_and_loss returned ",
                    loss.defined() ? "more than one number" : "no tensor",
                    "; return the loss as a tensor of one element, before its backward()");
  return trace->backward_and_blame(loss);
}

}  // namespace

std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss) {
  return trace(module, forward_and_loss, nullptr);
}

std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss,
                                               const ReplayPoint& from) {
  return trace(module, forward_and_loss, &from);
}

}  // namespace mantissa
