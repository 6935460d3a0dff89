#pragma once

#include <cstddef>
#include <unordered_map>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace mantissa {

/// Defines how a WeakMap refers to an object: by tensor or by storage.
template <typename Object>
struct WeakKey;
template <>
struct WeakKey<at::Tensor> {
  using Impl = at::TensorImpl;
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;
  static const Impl* address(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }
  static Weak weak(const at::Tensor& tensor) { return Weak(tensor.getIntrusivePtr()); }
};
template <>
struct WeakKey<c10::Storage> {
  using Impl = c10::StorageImpl;
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  static const Impl* address(const c10::Storage& storage) { return storage.unsafeGetStorageImpl(); }
  static Weak weak(const c10::Storage& storage) { return storage.getWeakStorageImpl(); }
};

/// A map from tensors (WeakMap<at::Tensor, Value>) or storages (WeakMap<c10::Storage, Value>) to values. An
/// object is found by its identity; its contents may change.
///
/// The map does not keep an object alive. While it has an entry, no later object can get the same address, so
/// a lookup never finds another object's value. Entries of dead objects are dropped as the map grows.
///
/// Threads: as std::unordered_map.
/// Example: weak_map_test.cpp, WeakMap.FindsTheObjectItWasGiven
template <typename Object, typename Value>
class WeakMap {
 public:
  using Key = WeakKey<Object>;
  using Address = const typename Key::Impl*;

  /// Returns null if there is no entry.
  Value* find(Address address) {
    const auto found = entries_.find(address);
    return found == entries_.end() ? nullptr : &found->second.value;
  }
  const Value* find(Address address) const { return const_cast<WeakMap*>(this)->find(address); }
  Value* find(const Object& object) { return find(Key::address(object)); }
  const Value* find(const Object& object) const { return find(Key::address(object)); }
  bool contains(const Object& object) const { return find(object) != nullptr; }

  /// Returns the object's value, made from `arguments` if it had none, and whether it was made.
  template <typename... Arguments>
  std::pair<Value*, bool> try_emplace(const Object& object, Arguments&&... arguments) {
    if (Value* value = find(object)) return {value, false};
    if (entries_.size() >= limit_) {
      erase_expired();
      limit_ = 2 * entries_.size() + kMinSweepSize;
    }
    Entry entry{Key::weak(object), Value{std::forward<Arguments>(arguments)...}};
    return {&entries_.try_emplace(Key::address(object), std::move(entry)).first->second.value, true};
  }
  void insert_or_assign(const Object& object, Value value) {
    const auto [place, is_new] = try_emplace(object, std::move(value));
    if (!is_new) *place = std::move(value);
  }

  size_t erase(const Object& object) { return entries_.erase(Key::address(object)); }
  size_t erase_expired() {
    return std::erase_if(entries_, [](const auto& entry) { return entry.second.object.expired(); });
  }
  void clear() { entries_.clear(); }
  /// Counts entries of dead objects too.
  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

  /// Calls visit(pointer to the object's impl, value) for each object that is alive.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [address, entry] : entries_)
      if (const auto alive = entry.object.lock(); alive.defined()) visit(alive, entry.value);
  }

 private:
  static constexpr size_t kMinSweepSize = 64;  // below this size dead entries are not worth a search
  struct Entry {
    typename Key::Weak object;
    Value value;
  };
  std::unordered_map<Address, Entry> entries_;
  size_t limit_ = kMinSweepSize;
};

}  // namespace mantissa
