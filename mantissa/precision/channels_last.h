#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Changes the layout of `module`'s 4-D parameters and buffers to channels last, and of 5-D ones to
/// torch.channels_last_3d, in place; gradients follow. Other tensors stay as they are. Shapes, values and
/// names do not change, so optimizers made earlier stay valid and checkpoints are the same.
///
/// Memory:  a second copy of one tensor at a time.
/// Source:  torch's model.to(memory_format=torch.channels_last), which refuses a module with a 5-D tensor.
/// Example: channels_last_test.cpp, ChannelsLast.ComputesWhatAnotherLayoutComputes.
void set_channels_last(torch::nn::Module& module);

/// Returns a 4-D or 5-D dense input tensor with its channels last, and any other tensor as it is.
at::Tensor channels_last(const at::Tensor& tensor);

}  // namespace mantissa
