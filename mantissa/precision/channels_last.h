#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Lays out, in place, the 4-D parameters and buffers of `module` with the channels last, and 5-D ones as
/// torch.channels_last_3d; gradients follow. Others stay as they are. Shapes, values and names do not change,
/// so that optimizers made earlier follow and checkpoints are the same.
///
/// Memory:  one tensor at a time, twice.
/// Source:  torch's model.to(memory_format=torch.channels_last), which refuses a module with a 5-D tensor.
/// Example: channels_last_test.cpp, ChannelsLast.ComputesWhatAnotherLayoutComputes.
void set_channels_last(torch::nn::Module& module);

/// The same for what a model reads: a 4-D or 5-D dense tensor with its channels last, any other as it is.
at::Tensor channels_last(const at::Tensor& tensor);

}  // namespace mantissa
