#include "mantissa/weights/marked_weight.h"

#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/alias.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include "mantissa/core/weak_map.h"
#include "mantissa/weights/marked_weight_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace marked {
namespace {

/// Opens TensorImpl's key set, which has setters for single keys of libtorch only.
struct KeySetAccess : c10::TensorImpl {
  static constexpr c10::DispatchKeySet c10::TensorImpl::*kMember = &KeySetAccess::key_set_;
};

/// The bytes of a storage that a tensor covers.
struct Range {
  size_t begin, end;

  bool contains(const Range& other) const { return begin <= other.begin && other.end <= end; }
};

Range range_of(const at::Tensor& tensor) {
  const size_t size = tensor.itemsize(), start = static_cast<size_t>(tensor.storage_offset());
  return {start * size, at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), size, start)};
}

/// The rules of a process. Weights may share a storage, as slices of one buffer.
class Rules {
 public:
  void insert(const at::Tensor& weight, WeightRulePtr rule) {
    const Range range = range_of(weight);
    const std::unique_lock lock(mutex_);
    rules_.erase_expired();  // the rules of dead weights may keep codes
    std::vector<Entry>& entries = *rules_.try_emplace(weight.storage()).first;
    std::erase_if(entries, [&](const Entry& entry) {
      return range.contains(entry.range) || entry.range.contains(range);
    });
    entries.push_back({range, std::move(rule)});
  }

  WeightRulePtr find(const at::Tensor& tensor) const {
    const Range range = range_of(tensor);
    const std::shared_lock lock(mutex_);
    if (const std::vector<Entry>* const entries = rules_.find(tensor.storage()))
      for (const Entry& entry : *entries)
        if (entry.range.contains(range)) return entry.rule;
    return nullptr;
  }

 private:
  struct Entry {
    Range range;
    WeightRulePtr rule;
  };
  mutable std::shared_mutex mutex_;
  WeakMap<c10::Storage, std::vector<Entry>> rules_;
};

Rules& rules() {
  static auto* rules = new Rules;  // never destroyed: weights may live longer than static objects
  return *rules;
}

}  // namespace

void insert_rule(const at::Tensor& weight, WeightRulePtr rule) { rules().insert(weight, std::move(rule)); }

WeightRulePtr find_rule(const at::Tensor& tensor) { return rules().find(tensor); }

bool has_key(const at::Tensor& tensor) { return tensor.key_set().has(kKey); }

void set_key(const at::Tensor& tensor, bool on) {
  c10::DispatchKeySet& keys = tensor.unsafeGetTensorImpl()->*KeySetAccess::kMember;
  keys = on ? keys.add(kKey) : keys.remove(kKey);
}

at::Tensor without_mark(const at::Tensor& tensor) {
  if (!has_key(tensor)) return tensor;
  at::Tensor plain = at::alias(tensor);
  set_key(plain, false);
  return plain;
}

}  // namespace marked

void mark_weight(const at::Tensor& weight, WeightRulePtr rule) {
  TORCH_CHECK_VALUE(weight.defined() && rule, "mark_weight: got ", rule ? "an undefined tensor" : "no rule",
                    "; give a weight and a rule");
  TORCH_CHECK_VALUE(!is_packed(weight) || rule->takes_packed(),
                    "mark_weight: the weight is packed, and so has an arithmetic already; "
                    "exchange it with mantissa::replace_weight() for a plain tensor first");
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.layout() == at::kStrided,
                    "mark_weight: the weight has shape ", weight.sizes(), " and layout ", weight.layout(),
                    "; only strided matrices can be marked");
  TORCH_CHECK_TYPE(weight.is_floating_point(), "mark_weight: the weight has dtype ", weight.scalar_type(),
                   "; only floating-point weights are trained");
  marked::in_charge().insert(weight, std::move(rule));
  marked::set_key(weight, true);
}

void unmark_weight(const at::Tensor& weight) {
  if (is_marked(weight)) marked::set_key(weight, false);
}

at::Tensor with_rule_of(const at::Tensor& weight, at::Tensor values) {
  if (WeightRulePtr rule = weight_rule(weight)) mark_weight(values, std::move(rule));
  return values;
}

bool is_marked(const at::Tensor& tensor) { return tensor.defined() && marked::has_key(tensor); }

WeightRulePtr weight_rule(const at::Tensor& tensor) {
  if (!is_marked(tensor)) return nullptr;
  WeightRulePtr rule = marked::in_charge().find(tensor);
  TORCH_CHECK(rule, "mark_weight: a marked weight of ", tensor.sizes(),
              " has other memory than when it was marked, which no operation of libtorch has given it; mark "
              "it again");
  return rule;
}

}  // namespace mantissa
