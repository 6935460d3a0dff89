#pragma once

#include <dlfcn.h>
#include <stdexcept>
#include <string>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "plugin.h"

/// A plug-in of this folder that stays open until the end of the scope.
class Opened {
 public:
  explicit Opened(const std::string& name) : handle_(dlopen(path(name).c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    plugin_ = static_cast<const Plugin*>(dlsym(handle_, "plugin"));
  }
  ~Opened() { dlclose(handle_); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  const Plugin* operator->() const { return plugin_; }

  static bool is_loaded(const std::string& name) {
    void* const handle = dlopen(path(name).c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (handle != nullptr) dlclose(handle);
    return handle != nullptr;
  }

 private:
  static std::string path(const std::string& name) {
    return std::string(PLUGINS "/plugin_").append(name).append(".so");
  }

  void* handle_;
  const Plugin* plugin_;
};

/// libtorch's own bf16 autocast region.
class Region {
 public:
  Region() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Region() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
};

/// Runs one training step in 16 bits, which passes through the kernels of autocast and of the CPU and their
/// gradients. The sums are of small integers, so that every kernel has the same result.
inline at::Tensor step() {
  const at::Tensor weight = at::ones({16, 16}).requires_grad_();
  at::Tensor product;
  {
    const Region region;
    product = at::linear(at::ones({16, 16}), weight);
  }
  product.sum().backward();
  return at::mm(product.detach(), product.detach()) + weight.grad();
}

inline bool is_right(const at::Tensor& result) {
  return at::equal(result, at::full({16, 16}, 16 * 16 * 16 + 16));
}

/// True if autocast multiplies by a weight without casting it: the weight is then an input of the product
/// itself.
inline bool casts_no_weight() {
  const at::Tensor weight = at::ones({16, 16}).requires_grad_();
  const Region region;
  const at::Tensor product = at::linear(at::ones({16, 16}), weight);
  for (const auto& edge : product.grad_fn()->next_edges())
    if (edge.function == torch::autograd::impl::grad_accumulator(weight)) return true;
  return false;
}
