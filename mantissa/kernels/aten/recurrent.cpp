#include <ATen/autocast_mode.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/lstm_compositeimplicitautograd_dispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "mantissa/kernels/aten/recurrent_internal.h"

namespace mantissa::kernels::aten::recurrent {

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor& input, at::TensorList states,
                                                    at::TensorList weights, bool has_biases,
                                                    int64_t num_layers, double dropout, bool train,
                                                    bool bidirectional, bool batch_first) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  const auto cast = [&](const auto& tensors) { return at::autocast::cached_cast(dtype, tensors, at::kCPU); };
  return at::lstm(cast(input), cast(states), cast(weights), has_biases, num_layers, dropout, train,
                  bidirectional, batch_first);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> stock_lstm(const at::Tensor& input, at::TensorList states,
                                                          at::TensorList weights, bool has_biases,
                                                          int64_t num_layers, double dropout, bool train,
                                                          bool bidirectional, bool batch_first) {
  return at::compositeimplicitautograd::lstm(input, states, weights, has_biases, num_layers, dropout, train,
                                             bidirectional, batch_first);
}

}  // namespace mantissa::kernels::aten::recurrent
