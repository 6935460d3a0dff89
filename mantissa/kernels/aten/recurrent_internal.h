#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

/// The kernel that registration.cpp registers for autocast on the CPU, where libtorch's autocast has none for
/// a whole recurrent layer.
///
/// libtorch chooses oneDNN's LSTM by the dtype that the layer is given, which is float32, and autocast casts
/// only inside of it. oneDNN then meets a dtype that it cannot train on this CPU, and throws: fp16 on every
/// CPU, bf16 on those without AVX-512. The cast comes first here, so that libtorch chooses for the dtype in
/// which the layer computes: oneDNN where it can, else products and activations one by one.
///
/// GRU and RNN have no such path in libtorch, and nothing is registered for them.
namespace mantissa::kernels::aten::recurrent {

/// Numerics: outputs and states are in autocast's dtype, as those of oneDNN's and cuDNN's LSTM are.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor& input, at::TensorList states,
                                                    at::TensorList weights, bool has_biases,
                                                    int64_t num_layers, double dropout, bool train,
                                                    bool bidirectional, bool batch_first);

/// The function that libtorch runs where autocast has no kernel of its own: autocast casts inside of the layer.
std::tuple<at::Tensor, at::Tensor, at::Tensor> stock_lstm(const at::Tensor& input, at::TensorList states,
                                                          at::TensorList weights, bool has_biases,
                                                          int64_t num_layers, double dropout, bool train,
                                                          bool bidirectional, bool batch_first);

}  // namespace mantissa::kernels::aten::recurrent
