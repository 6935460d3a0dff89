#include "mantissa/optim/ema.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

at::ScalarType average_dtype(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
}

/// Returns `tensors` without packed weights that are frozen: these are their own average.
/// Errors: c10::ValueError for a packed weight that trains. Averages of its codes would be as coarse as the codes are.
std::vector<at::Tensor> without_packed(std::vector<at::Tensor> tensors) {
  std::erase_if(tensors, [](const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(!is_packed(tensor) || !tensor.requires_grad(),
                      "ExponentialMovingAverage: a weight of the module is stored as codes (",
                      packed_data(tensor)->description(),
                      ") and trains, so it has no average; average a model without fp8_primary_weights");
    return is_packed(tensor);
  });
  return tensors;
}

}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(torch::nn::Module& module, const EmaOptions& options)
    : module_(module), options_(options) {
  TORCH_CHECK_VALUE(options.decay >= 0 && options.decay < 1,
                    "ExponentialMovingAverage: the decay must be in [0, 1); got ", options.decay,
                    " (0.999 spans some 1000 steps)");
  tensors();  // its error belongs here, before the first step
}

std::vector<at::Tensor> ExponentialMovingAverage::tensors() const {
  std::vector<at::Tensor> all = without_packed(module_.parameters());
  for (const at::Tensor& buffer : without_packed(module_.buffers())) all.push_back(buffer);
  return all;
}

void ExponentialMovingAverage::check_same(const std::vector<at::Tensor>& now,
                                          const std::vector<at::Tensor>& averages) const {
  TORCH_CHECK(std::equal(now.begin(), now.end(), averages.begin(), averages.end(),
                         [](const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes(); }),
              "ExponentialMovingAverage: there are averages of ", averages.size(),
              " tensors, and the module has ", now.size(),
              "; number and shapes must match, so make a new average for a module of another shape");
}

void ExponentialMovingAverage::update() {
  const c10::InferenceMode no_inference(false);  // inference tensors cannot be updated later
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> now = tensors();
  if (num_updates_ == 0) {
    std::vector<at::Tensor> first;
    for (const at::Tensor& tensor : now)
      first.push_back(tensor.detach().to(average_dtype(tensor), /*non_blocking=*/false, /*copy=*/true));
    averages_ = std::move(first);
  } else {
    check_same(now, averages_);
    const size_t parameters = without_packed(module_.parameters()).size();
    for (size_t i = 0; i < now.size(); ++i) {
      at::Tensor& average = averages_[i];
      const bool averaged = i < parameters || options_.use_buffers;
      if (averaged && (average.is_floating_point() || average.is_complex())) {
        average.lerp_(now[i].to(average.options()), 1 - options_.decay);
      } else {
        average.copy_(now[i]);
      }
    }
  }
  ++num_updates_;
}

std::shared_ptr<void> ExponentialMovingAverage::average_weights() {
  const at::NoGradGuard no_grad;
  if (num_updates_ == 0) return {};
  const std::vector<at::Tensor> now = tensors();
  std::vector<at::Tensor> trained;
  trained.reserve(now.size());
  for (const at::Tensor& tensor : now) trained.push_back(tensor.detach().clone());
  auto restore = std::shared_ptr<void>(nullptr, [now, trained](void*) {
    const at::NoGradGuard still_no_grad;
    for (size_t i = 0; i < now.size(); ++i) now[i].detach().copy_(trained[i]);
  });
  copy_to_module();
  return restore;
}

void ExponentialMovingAverage::copy_to_module() {
  if (num_updates_ == 0) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> now = tensors();
  check_same(now, averages_);
  for (size_t i = 0; i < now.size(); ++i) now[i].detach().copy_(averages_[i]);
}

std::map<std::string, at::Tensor> ExponentialMovingAverage::named_averages() const {
  std::map<std::string, at::Tensor> named;
  if (num_updates_ == 0) return named;
  check_same(tensors(), averages_);
  size_t next = 0;
  const auto add = [&](const auto& items) {
    for (const auto& item : items)
      if (!is_packed(item.value()))
        named.emplace(item.key(), averages_[next++].to(item.value().scalar_type()));
  };
  add(module_.named_parameters());
  add(module_.named_buffers());
  return named;
}

void ExponentialMovingAverage::save(torch::serialize::OutputArchive& archive) const {
  archive.write("num_updates", c10::IValue(num_updates_));
  archive.write("averages", c10::IValue(averages_));
}

void ExponentialMovingAverage::load(torch::serialize::InputArchive& archive) {
  const c10::InferenceMode no_inference(false);
  c10::IValue num_updates, averages;
  archive.read("num_updates", num_updates);
  archive.read("averages", averages);
  take(num_updates.toInt(), averages.toTensorVector());
}

void ExponentialMovingAverage::take(int64_t num_updates, std::vector<at::Tensor> averages) {
  if (num_updates > 0) {
    const std::vector<at::Tensor> now = tensors();
    check_same(now, averages);
    for (size_t i = 0; i < now.size(); ++i) {
      // Use the memory layout of the first update: in another layout lerp() may round differently.
      averages[i] = at::empty_like(now[i], now[i].options().dtype(average_dtype(now[i]))).copy_(averages[i]);
    }
  }
  averages_ = std::move(averages);
  num_updates_ = num_updates;
}

StateDict ExponentialMovingAverage::state_dict() const {
  return {{"num_updates", num_updates_}, {"averages", StateList(averages_.begin(), averages_.end())}};
}

void ExponentialMovingAverage::load_state_dict(const StateReader& state) {
  const c10::InferenceMode no_inference(false);  // inference tensors cannot be updated later
  const int64_t num_updates = state.at("num_updates").to_count();
  const StateReader saved = state.at("averages");
  std::vector<at::Tensor> averages;
  for (size_t i = 0; i < saved.to_list().size(); ++i) averages.push_back(saved.at(i).to_tensor());
  if (num_updates == 0 && !averages.empty()) saved.fail("is not empty, although num_updates is 0");
  take(num_updates, std::move(averages));
}

}  // namespace mantissa
