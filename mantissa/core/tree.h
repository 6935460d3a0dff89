#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A struct that takes part in map_tensors() by listing its members: `auto tensors() { return std::tie(a, b);
/// }`.
template <typename T>
concept HasTensors = requires(T& value) {
  value.tensors();
};

/// Returns a copy of `tree` in which every tensor t is replaced by f(t). A tree is a tensor, a vector, array,
/// tuple, pair, map or optional of trees, or a struct with tensors(). Strings, numbers and anything else are
/// copied unchanged, and the caller's containers do not change. Undefined tensors are left alone.
template <typename Tree, typename F>
Tree map_tensors(const Tree& tree, const F& f);

namespace tree_internal {

template <typename T, template <typename...> class Template>
inline constexpr bool is_a = false;
template <typename... Args, template <typename...> class Template>
inline constexpr bool is_a<Template<Args...>, Template> = true;

template <typename T>
inline constexpr bool is_array = false;
template <typename T, size_t N>
inline constexpr bool is_array<std::array<T, N>> = true;

}  // namespace tree_internal

template <typename Tree, typename F>
Tree map_tensors(const Tree& tree, const F& f) {
  using tree_internal::is_a;
  if constexpr (std::is_same_v<Tree, at::Tensor>) {
    return tree.defined() ? f(tree) : tree;
  } else if constexpr (is_a<Tree, std::vector> || tree_internal::is_array<Tree>) {
    Tree out = tree;
    for (auto& item : out) item = map_tensors(item, f);
    return out;
  } else if constexpr (is_a<Tree, std::map>) {
    Tree out = tree;
    for (auto& [key, item] : out) item = map_tensors(item, f);
    return out;
  } else if constexpr (is_a<Tree, std::optional>) {
    return tree ? Tree(map_tensors(*tree, f)) : Tree();
  } else if constexpr (is_a<Tree, std::tuple> || is_a<Tree, std::pair>) {
    return std::apply([&](const auto&... items) { return Tree(map_tensors(items, f)...); }, tree);
  } else if constexpr (HasTensors<Tree>) {
    Tree out = tree;
    std::apply([&](auto&... items) { ((items = map_tensors(items, f)), ...); }, out.tensors());
    return out;
  } else {
    return tree;
  }
}

}  // namespace mantissa
