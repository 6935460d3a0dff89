#include "mantissa/amp/keep_in_fp32.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include "mantissa/amp/kept_weights_internal.h"
#include "mantissa/core/suggest.h"
#include "mantissa/core/weak_map.h"

// How it works. A C++ module has no hooks and its forward() is not virtual, so the dispatcher is the one
// place that sees every use of a weight. While weights are kept, an enabled Autocast region adds one key
// above autocast's to the thread's key set. Under this key there are kernels for the operations below; for
// all others there is a fall-through, which the dispatcher skips without a call. The kernel checks whether an
// argument is a kept weight. If not, the operation continues to autocast; if so, it runs in float32 with
// autocast off.
//
// The tensors themselves carry no mark: keys and metadata on a tensor are lost when set_data() moves it to
// another device, and they would show in printing and saving. The registry holds TensorImpls instead, which
// set_data() keeps.
namespace mantissa {
namespace {

// This key is meant for modes outside of libtorch's core, and nothing in libtorch uses it.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

using WeakWeight = WeakKey<at::Tensor>::Weak;

const void* storage_of(const c10::TensorImpl& tensor) {
  return tensor.has_storage() ? tensor.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

/// Whether `tensor` lies inside the bytes of `weight`. Weights may share one storage, as slices of a buffer.
bool is_view_of(const c10::TensorImpl& tensor, const c10::TensorImpl& weight) {
  if (&tensor == &weight) return true;
  const void* storage = storage_of(tensor);
  if (!storage || storage != storage_of(weight)) return false;
  const auto bytes = [](const c10::TensorImpl& t) {
    const size_t size = t.itemsize(), start = t.storage_offset() * size;
    return std::pair(start,
                     at::detail::computeStorageNbytes(t.sizes(), t.strides(), size, t.storage_offset()));
  };
  const auto [begin, end] = bytes(tensor);
  const auto [weight_begin, weight_end] = bytes(weight);
  return weight_begin <= begin && end <= weight_end && begin < end;
}

/// The kept weights of the process.
class Registry {
 public:
  void add(const std::vector<at::Tensor>& weights) {
    const std::unique_lock lock(mutex_);
    for (const at::Tensor& weight : weights) weights_.try_emplace(weight);
  }

  size_t remove(const std::vector<at::Tensor>& weights) {
    const std::unique_lock lock(mutex_);
    size_t removed = 0;
    for (const at::Tensor& weight : weights) removed += weights_.erase(weight);
    index();
    return removed;
  }

  /// Forgets weights that have been destroyed and looks up the current storages of the others, which
  /// set_data() may have changed. Returns whether there are any.
  bool refresh() {
    const std::unique_lock lock(mutex_);
    weights_.erase_expired();
    index();
    return !by_storage_.empty();
  }

  bool contains(const at::Tensor& tensor) const {
    const std::shared_lock lock(mutex_);
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    const auto [begin, end] = by_storage_.equal_range(storage_of(impl));
    return std::any_of(begin, end, [&](const auto& entry) {
      const auto weight = entry.second.lock();
      return weight.defined() && is_view_of(impl, *weight);
    });
  }

 private:
  void index() {
    by_storage_.clear();
    weights_.for_each([this](const auto& weight, Kept /*kept*/) {
      by_storage_.emplace(storage_of(*weight), WeakWeight(weight));
    });
  }

  mutable std::shared_mutex mutex_;
  struct Kept {};
  WeakMap<at::Tensor, Kept> weights_;
  std::unordered_multimap<const void*, WeakWeight> by_storage_;
};

Registry& registry() {
  static auto* registry = new Registry;  // never destroyed: regions may end after main()
  return *registry;
}

bool is_kept(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() != at::kDouble &&
         at::autocast::is_autocast_available(tensor.device().type()) &&
         at::autocast::is_autocast_enabled(tensor.device().type()) && registry().contains(tensor);
}

/// Returns the device of a kept weight among the arguments, if autocast is enabled there.
std::optional<at::DeviceType> kept_device(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && is_kept(argument.toTensor())) return argument.toTensor().device().type();
    if (!argument.isTensorList()) continue;
    for (const at::Tensor& tensor : argument.toTensorVector())
      if (is_kept(tensor)) return tensor.device().type();
  }
  return std::nullopt;
}

void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t arity = op.schema().arguments().size();
  const auto device = kept_device(torch::jit::last(*stack, arity));
  if (!device) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard plain(
      c10::DispatchKeySet({kKey, at::autocast::get_autocast_dispatch_key_from_device_type(*device)}));
  for (size_t i = stack->size() - arity; i < stack->size(); ++i) {
    c10::IValue& argument = (*stack)[i];
    if (argument.isTensor() && argument.toTensor().defined())
      argument = at::autocast::cached_cast(at::kFloat, argument.toTensor(), *device);
    else if (argument.isTensorList())
      argument = at::autocast::cached_cast(at::kFloat, at::TensorList(argument.toTensorVector()), *device);
  }
  op.callBoxed(stack);
}

/// Operations on weights that autocast does not list, but whose parts it would lower.
bool is_unlisted(const std::string& name) {
  static const std::set<std::string> names = {"aten::batch_norm",    "aten::embedding_bag", "aten::gru",
                                              "aten::instance_norm", "aten::lstm",          "aten::rms_norm",
                                              "aten::rnn_relu",      "aten::rnn_tanh"};
  return names.contains(name);
}

/// Registers the kernels when the first weight is kept. Programs that keep none have no kernel of ours in the
/// dispatcher.
void register_kernels() {
  static const auto* libraries = [] {
    const auto library = [](const char* name) {
      return torch::Library(torch::Library::IMPL, name, kKey, __FILE__, __LINE__);
    };
    // Never destroyed, because the dispatcher may be gone before static objects are.
    auto* list = new std::vector<torch::Library>;
    list->push_back(library("_"));
    list->back().fallback(torch::CppFunction::makeFallthrough());
    list->push_back(library("aten"));
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || name.getNamespace() != "aten") continue;
      const bool is_listed = op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU) ||
                             op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA);
      const bool returns_only = !op->schema().is_mutable();
      if (returns_only && (is_listed || is_unlisted(name.name)))
        list->back().impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
    }
    return list;
  }();
  static_cast<void>(libraries);
}

struct NamedWeight {
  std::string name;
  at::Tensor weight;
};

std::vector<NamedWeight> weights_of(const torch::nn::Module& module) {
  std::vector<NamedWeight> weights;
  const auto collect = [&](const auto& tensors) {
    for (const auto& item : tensors)
      if (item.value().defined() && item.value().is_floating_point())
        weights.push_back({item.key(), item.value()});
  };
  collect(module.named_parameters());
  collect(module.named_buffers());
  return weights;
}

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    return matches(pattern.substr(1), text) || (!text.empty() && matches(pattern, text.substr(1)));
  }
  return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
         matches(pattern.substr(1), text.substr(1));
}

/// Returns the names that select "a.b.weight": "a", "a.b" and its own name.
std::vector<std::string> names_for(const std::string& name) {
  std::vector<std::string> names;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    names.push_back(name.substr(0, dot));
  names.push_back(name);
  return names;
}

size_t keep(const std::vector<NamedWeight>& named) {
  std::vector<at::Tensor> weights;
  std::set<const c10::TensorImpl*> seen;  // a tied weight has two names
  for (const auto& [name, weight] : named)
    if (seen.insert(weight.unsafeGetTensorImpl()).second) weights.push_back(weight);
  register_kernels();
  registry().add(weights);
  return weights.size();
}

}  // namespace

size_t keep_in_fp32(torch::nn::Module& module) {
  const auto weights = weights_of(module);
  TORCH_CHECK_VALUE(!weights.empty(), "keep_in_fp32: ", module.name(),
                    " has no floating-point weight, so its operations cannot be recognised; wrap its call "
                    "in in_fp32(...)");
  return keep(weights);
}

size_t keep_in_fp32(torch::nn::Module& root, const std::string& pattern) {
  std::vector<NamedWeight> kept;
  std::set<std::string> candidates;
  for (const NamedWeight& named : weights_of(root)) {
    const auto names = names_for(named.name);
    candidates.insert(names.begin(), names.end());
    if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return matches(pattern, name); }))
      kept.push_back(named);
  }
  TORCH_CHECK_VALUE(!kept.empty(), "keep_in_fp32: '", pattern, "' is the name of no weight of ", root.name(),
                    " and of no module with weights",
                    did_you_mean(pattern, std::vector<std::string>(candidates.begin(), candidates.end())));
  return keep(kept);
}

size_t undo_keep_in_fp32(torch::nn::Module& module) {
  std::vector<at::Tensor> weights;
  for (const NamedWeight& named : weights_of(module)) weights.push_back(named.weight);
  return registry().remove(weights);
}

Fp32Region::Fp32Region() {
  if (at::autocast::is_autocast_enabled(at::kCPU)) cpu_.emplace(at::kCPU, AutocastOptions{.enabled = false});
  if (at::autocast::is_autocast_enabled(at::kCUDA))
    cuda_.emplace(at::kCUDA, AutocastOptions{.enabled = false});
}

namespace kept_weights {

bool begin_watch() {
  if (!registry().refresh() || c10::impl::tls_is_dispatch_key_included(kKey)) return false;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
  return true;
}

void end_watch() { c10::impl::tls_set_dispatch_key_included(kKey, false); }

}  // namespace kept_weights

}  // namespace mantissa
