#include "mantissa/core/state_dict.h"

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

/// Names in the order of the variant's alternatives.
constexpr std::array<std::string_view, 8> kKinds = {
    "nothing", "a bool", "a whole number", "a floating-point number", "text", "a tensor", "a list", "a dict"};

std::string joined(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : path + "." + std::string(name);
}

std::string placed(const std::string& path, const std::string& what) {
  return (path.empty() ? "the state" : path) + ": " + what;
}

/// Returns a double as decimal digits, with its bits for values that look the same.
std::string shown(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.17g (0x%016llx)", value,
                static_cast<unsigned long long>(std::bit_cast<uint64_t>(value)));
  return text.data();
}
std::string shown(bool value) { return value ? "true" : "false"; }
std::string shown(int64_t value) { return std::to_string(value); }
std::string shown(const std::string& value) { return "'" + value + "'"; }

/// Returns a tensor's values as bytes on the CPU; copies only if necessary.
at::Tensor values_of(const at::Tensor& tensor) {
  // A conjugate or negated view keeps its flag through a copy, and its bytes would be those of its base.
  return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
}

std::string difference_of_tensors(const at::Tensor& a, const at::Tensor& b, const std::string& path) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) {
    return placed(path,
                  c10::str("a tensor ", a.scalar_type(), a.sizes(), " and one ", b.scalar_type(), b.sizes()));
  }
  const at::Tensor left = values_of(a), right = values_of(b);
  // memcmp() must not get the null pointer of an empty tensor.
  if (left.nbytes() == 0) return "";
  const auto* x = static_cast<const char*>(left.const_data_ptr());
  const auto* y = static_cast<const char*>(right.const_data_ptr());
  if (std::memcmp(x, y, left.nbytes()) == 0) return "";
  const size_t size = left.element_size();
  size_t i = 0;
  while (std::memcmp(x + i * size, y + i * size, size) == 0) ++i;
  return placed(
      path, c10::str("tensors ", a.scalar_type(), a.sizes(), " whose values differ, first at element ", i));
}

std::string difference_of(const StateValue& a, const StateValue& b, const std::string& path);

std::string difference_of_lists(const StateList& a, const StateList& b, const std::string& path) {
  if (a.size() != b.size()) return placed(path, c10::str("a list of ", a.size(), " and one of ", b.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    if (auto found = difference_of(a[i], b[i], joined(path, std::to_string(i))); !found.empty()) return found;
  }
  return "";
}

std::string difference_of_dicts(const StateDict& a, const StateDict& b, const std::string& path) {
  for (const auto& [key, value] : a) {
    const auto other = b.find(key);
    if (other == b.end()) return placed(joined(path, key), "only in the first");
    if (auto found = difference_of(value, other->second, joined(path, key)); !found.empty()) return found;
  }
  for (const auto& [key, value] : b) {
    if (!a.contains(key)) return placed(joined(path, key), "only in the second");
  }
  return "";
}

template <typename T>
std::string difference_of_leaves(const StateValue& a, const StateValue& b, const std::string& path) {
  const T &x = *a.get_if<T>(), &y = *b.get_if<T>();
  bool same = x == y;
  if constexpr (std::same_as<T, double>) same = std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
  return same ? "" : placed(path, shown(x) + " and " + shown(y));
}

std::string difference_of(const StateValue& a, const StateValue& b, const std::string& path) {
  if (a.kind() != b.kind()) return placed(path, std::string(a.kind()) + " and " + std::string(b.kind()));
  if (const auto* tensor = a.get_if<at::Tensor>()) {
    return difference_of_tensors(*tensor, *b.get_if<at::Tensor>(), path);
  }
  if (const auto* list = a.get_if<StateList>())
    return difference_of_lists(*list, *b.get_if<StateList>(), path);
  if (const auto* dict = a.get_if<StateDict>())
    return difference_of_dicts(*dict, *b.get_if<StateDict>(), path);
  if (a.get_if<bool>()) return difference_of_leaves<bool>(a, b, path);
  if (a.get_if<int64_t>()) return difference_of_leaves<int64_t>(a, b, path);
  if (a.get_if<double>()) return difference_of_leaves<double>(a, b, path);
  if (a.get_if<std::string>()) return difference_of_leaves<std::string>(a, b, path);
  return "";
}

StateValue snapshot_of(const StateValue& value) {
  if (const auto* tensor = value.get_if<at::Tensor>()) return snapshot(*tensor);
  if (const auto* list = value.get_if<StateList>()) {
    StateList copy;
    copy.reserve(list->size());
    for (const StateValue& item : *list) copy.push_back(snapshot_of(item));
    return copy;
  }
  if (const auto* dict = value.get_if<StateDict>()) return snapshot(*dict);
  return value;
}

}  // namespace

StateValue::StateValue(at::Tensor value) : value_(std::move(value)) {
  TORCH_CHECK_VALUE(get_if<at::Tensor>()->defined(),
                    "StateValue: the tensor is undefined; leave its entry out of the state");
}

std::string_view StateValue::kind() const { return kKinds[value_.index()]; }

void StateValue::refuse_unsigned(uint64_t value) {
  TORCH_CHECK_VALUE(false, "StateValue: ", value, " is above 2^63 - 1; store its bits as an int64_t");
}

template <typename T>
const T& StateReader::get(const char* expected) const {
  const T* found = value_ ? value_->get_if<T>() : nullptr;
  if constexpr (std::same_as<T, StateDict>) found = dict_ ? dict_ : found;
  if (!found) fail("is " + std::string(kind()) + "; " + expected + " was expected");
  return *found;
}

std::string_view StateReader::kind() const { return value_ ? value_->kind() : kKinds.back(); }

std::string StateReader::below(std::string_view name) const { return joined(path_, name); }

void StateReader::fail(const std::string& what) const { TORCH_CHECK_VALUE(false, placed(path_, what)); }

bool StateReader::to_bool() const { return get<bool>("a bool"); }
int64_t StateReader::to_int() const { return get<int64_t>("a whole number"); }
int64_t StateReader::to_int(int64_t min, int64_t max) const {
  const int64_t value = to_int();
  if (value < min || value > max)
    fail(c10::str("is ", value, "; a number from ", min, " to ", max, " was expected"));
  return value;
}
double StateReader::to_double() const {
  if (const auto* whole = value_ ? value_->get_if<int64_t>() : nullptr) return static_cast<double>(*whole);
  return get<double>("a number");
}
double StateReader::to_double(double min, double max) const {
  const double value = to_double();
  if (!(value >= min && value <= max))
    fail(c10::str("is ", value, "; a number from ", min, " to ", max, " was expected"));
  return value;
}
const std::string& StateReader::to_string() const { return get<std::string>("text"); }
const at::Tensor& StateReader::to_tensor() const { return get<at::Tensor>("a tensor"); }
const StateList& StateReader::to_list() const { return get<StateList>("a list"); }
const StateDict& StateReader::to_dict() const { return get<StateDict>("a dict"); }

StateReader StateReader::at(std::string_view key) const {
  if (auto found = find(key)) return *std::move(found);
  const std::vector<std::string> names = keys_of(to_dict());
  const std::string name(key);
  fail("'" + name + "' is missing" + did_you_mean(name, names) + "; there is " +
       (names.empty() ? "nothing" : join_names(names)));
}

StateReader StateReader::at(size_t index) const {
  const StateList& list = to_list();
  if (index >= list.size()) fail(c10::str("has no entry ", index, ", only ", list.size(), " of them"));
  return StateReader(list[index], below(std::to_string(index)));
}

std::optional<StateReader> StateReader::find(std::string_view key) const {
  const StateDict& dict = to_dict();
  const auto found = dict.find(key);
  if (found == dict.end()) return std::nullopt;
  return StateReader(found->second, below(key));
}

size_t StateReader::size() const {
  if (const auto* list = value_ ? value_->get_if<StateList>() : nullptr) return list->size();
  return get<StateDict>("a list or a dict").size();
}

at::Tensor snapshot(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  // A conjugate or negated view keeps its flag through a copy, and its bytes would be those of its base.
  const at::Tensor values = tensor.detach().resolve_conj().resolve_neg();
  const auto options = values.options().device(at::kCPU);
  return values.to(options, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
}

StateDict snapshot(const StateDict& state) {
  StateDict copy;
  for (const auto& [key, value] : state) copy.emplace_hint(copy.end(), key, snapshot_of(value));
  return copy;
}

std::string difference(const StateDict& a, const StateDict& b) { return difference_of_dicts(a, b, ""); }

StateDict scalars_to_state(const std::map<std::string, at::Scalar>& scalars) {
  StateDict state;
  for (const auto& [key, scalar] : scalars) {
    TORCH_CHECK_VALUE(!scalar.isComplex(), "scalars_to_state: '", key,
                      "' is complex; a state holds real numbers");
    if (scalar.isBoolean()) {
      state.emplace(key, scalar.to<bool>());
    } else if (scalar.isFloatingPoint()) {
      state.emplace(key, scalar.to<double>());
    } else {
      state.emplace(key, scalar.to<int64_t>());
    }
  }
  return state;
}

std::map<std::string, at::Scalar> scalars_from_state(const StateReader& state) {
  std::map<std::string, at::Scalar> scalars;
  for (const auto& [key, value] : state.to_dict()) {
    if (const auto* flag = value.get_if<bool>()) {
      scalars.emplace(key, *flag);
    } else if (const auto* whole = value.get_if<int64_t>()) {
      scalars.emplace(key, *whole);
    } else {
      scalars.emplace(key, state.at(key).to_double());
    }
  }
  return scalars;
}

}  // namespace mantissa
