#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace mantissa {

inline const std::vector<double> kStart = {0.75, -1.25, 0.001953125, 3.0, -0.3125};

inline at::Tensor start_parameter(at::ScalarType dtype) {
  return at::tensor(kStart, at::kDouble).to(dtype).set_requires_grad(true);
}

/// Returns gradients that 16-bit dtypes hold exactly; some are 0, signs alternate, and the size differs by
/// element.
inline at::Tensor gradient(int64_t step, at::ScalarType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < 5; ++i) {
    values.push_back(static_cast<double>((step * 7 + i * 5) % 11 - 5) / 16 * (i % 2 == 1 ? 1 : 0.125));
  }
  return at::tensor(values, at::kDouble).to(dtype);
}

inline void take_steps(torch::optim::Optimizer& optimizer, int64_t from, int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    for (auto& group : optimizer.param_groups()) {
      for (at::Tensor& p : group.params()) p.mutable_grad() = gradient(step, p.scalar_type());
    }
    optimizer.step();
  }
}

/// Whether `p` is what was `recorded` on another CPU after 25 steps of take_steps(). The kernels of libtorch
/// and MKL round differently there (fused or separate products and sums, square roots), by half a last place
/// of the weight or of the update in each step; in 25 steps these add up to less than 8. An error in the
/// formula moves a weight by a large part of `lr`.
inline bool is_near_recorded(const at::Tensor& p, const std::vector<double>& recorded, double lr) {
  const at::Tensor wanted = at::tensor(recorded, at::kDouble);
  const double half_last_place = p.scalar_type() == at::kBFloat16 ? 0x1p-8
                                 : p.scalar_type() == at::kHalf   ? 0x1p-11
                                 : p.scalar_type() == at::kFloat  ? 0x1p-24
                                                                  : 0x1p-53;
  const at::Tensor allowed = 8 * half_last_place * (wanted.abs() + 8 * lr);
  return ((p.detach().to(at::kDouble) - wanted).abs() <= allowed).all().item<bool>();
}

/// Saves the state and options of `of` and loads them into `into`.
template <typename Saved, typename Loaded>
void save_and_load(const Saved& of, Loaded& into) {
  std::stringstream file;
  torch::serialize::OutputArchive saved;
  of.save(saved);
  saved.save_to(file);
  torch::serialize::InputArchive loaded;
  loaded.load_from(file);
  into.load(loaded);
}

/// A weight large enough for a kernel's vector body, its tail and several threads to each get a part.
inline at::Tensor large_parameter(at::ScalarType dtype) {
  torch::manual_seed(3);
  return at::randn({3001}).to(dtype).set_requires_grad(true);
}

/// Returns the same noise in every call with `step` and `sizes`. 16-bit dtypes hold it exactly, so it is
/// equal in all dtypes.
inline at::Tensor noise(int64_t step, at::IntArrayRef sizes, at::ScalarType dtype) {
  torch::manual_seed(100 + static_cast<uint64_t>(step));
  return at::randn(sizes).to(at::kBFloat16).to(dtype);
}

inline void take_noisy_steps(torch::optim::Optimizer& optimizer, int64_t from, int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    for (auto& group : optimizer.param_groups()) {
      for (at::Tensor& p : group.params())
        p.mutable_grad() = noise(step, p.sizes(), p.scalar_type()).to(p.device());
    }
    optimizer.step();
  }
}

/// Returns a copy that trains independently of `parameter`.
inline at::Tensor twin(const at::Tensor& parameter) {
  return parameter.detach().clone().set_requires_grad(true);
}

inline std::string value_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no ValueError";
}

}  // namespace mantissa
