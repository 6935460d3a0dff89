#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

/// The LSTM kernel that registration.cpp registers for autocast on the CPU. libtorch's autocast has no kernel
/// for a whole recurrent layer.
///
/// libtorch decides whether to use oneDNN's LSTM by the dtype of the layer's input, which is float32;
/// autocast casts only inside the layer. oneDNN then gets a dtype in which it cannot train on this CPU, and
/// throws: fp16 on every CPU, bf16 on CPUs without AVX-512. This kernel casts first, so that libtorch decides
/// by the dtype in which the layer computes: it uses oneDNN where possible, and separate products and
/// activations otherwise.
///
/// GRU and RNN have no such path in libtorch, so nothing is registered for them.
namespace mantissa::kernels::aten::recurrent {

/// Numerics: outputs and states have autocast's dtype, as with oneDNN's and cuDNN's LSTM.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor& input, at::TensorList states,
                                                    at::TensorList weights, bool has_biases,
                                                    int64_t num_layers, double dropout, bool train,
                                                    bool bidirectional, bool batch_first);

/// The function that libtorch runs where autocast has no kernel; autocast then casts inside the layer.
std::tuple<at::Tensor, at::Tensor, at::Tensor> stock_lstm(const at::Tensor& input, at::TensorList states,
                                                          at::TensorList weights, bool has_biases,
                                                          int64_t num_layers, double dropout, bool train,
                                                          bool bidirectional, bool batch_first);

}  // namespace mantissa::kernels::aten::recurrent
