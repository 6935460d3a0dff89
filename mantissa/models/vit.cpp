#include "mantissa/models/vit.h"

#include <cmath>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "mantissa/models/linear_internal.h"
#include "mantissa/models/vit_names_internal.h"

namespace mantissa {
namespace {

torch::nn::LayerNorm vit_norm(const VitOptions& o) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden_dim}).eps(1e-6));
}

void check_options(const VitOptions& o) {
  for (const auto& [name, size] : {std::pair("image_size", o.image_size),
                                   {"patch_size", o.patch_size},
                                   {"num_layers", o.num_layers},
                                   {"num_heads", o.num_heads},
                                   {"hidden_dim", o.hidden_dim},
                                   {"mlp_dim", o.mlp_dim},
                                   {"num_classes", o.num_classes},
                                   {"channels", o.channels}})
    TORCH_CHECK_VALUE(size > 0, "Vit: ", name, " is ", size, "; give a number above 0");
  TORCH_CHECK_VALUE(o.image_size % o.patch_size == 0, "Vit: image_size ", o.image_size,
                    " is not a multiple of patch_size ", o.patch_size,
                    "; resize the images, or change the patches");
  TORCH_CHECK_VALUE(o.hidden_dim % o.num_heads == 0, "Vit: hidden_dim ", o.hidden_dim,
                    " is not a multiple of num_heads ", o.num_heads, "; change one of them");
  for (const auto& [name, share] :
       {std::pair("dropout", o.dropout), {"attention_dropout", o.attention_dropout}})
    TORCH_CHECK_VALUE(share >= 0 && share < 1, "Vit: ", name, " is ", share,
                      "; give a probability from 0 to below 1");
}

void xavier_uniform(const at::Tensor& weight) {
  const double bound = std::sqrt(6.0 / static_cast<double>(weight.size(0) + weight.size(1)));
  weight.uniform_(-bound, bound);
}

}  // namespace

VitOptions vit_ti_16_options() { return {.num_heads = 3, .hidden_dim = 192, .mlp_dim = 768}; }

VitOptions vit_s_16_options() { return {.num_heads = 6, .hidden_dim = 384, .mlp_dim = 1536}; }

VitOptions vit_b_16_options() { return {}; }

VitOptions vit_l_16_options() {
  return {.num_layers = 24, .num_heads = 16, .hidden_dim = 1024, .mlp_dim = 4096};
}

VitAttentionImpl::VitAttentionImpl(const VitOptions& o) : heads_(o.num_heads), dropout_(o.attention_dropout) {
  qkv_ = register_module("qkv", torch::nn::Linear(o.hidden_dim, 3 * o.hidden_dim));
  proj_ = register_module("proj", torch::nn::Linear(o.hidden_dim, o.hidden_dim));
}

at::Tensor VitAttentionImpl::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  const std::vector<at::Tensor> parts = linear(qkv_, x)
                                            .reshape({batch, length, 3, heads_, width / heads_})
                                            .permute({2, 0, 3, 1, 4})
                                            .unbind(0);  // [N, heads, T, width / heads]
  const AttentionCall call{
      .query = parts[0], .key = parts[1], .value = parts[2], .dropout = is_training() ? dropout_ : 0};
  return linear(proj_, attend(call).transpose(1, 2).reshape({batch, length, width}));
}

VitMlpImpl::VitMlpImpl(const VitOptions& o) : dropout_(o.dropout) {
  fc1_ = register_module("fc1", torch::nn::Linear(o.hidden_dim, o.mlp_dim));
  fc2_ = register_module("fc2", torch::nn::Linear(o.mlp_dim, o.hidden_dim));
}

at::Tensor VitMlpImpl::forward(const at::Tensor& x) {
  const at::Tensor hidden = at::dropout(at::gelu(linear(fc1_, x)), dropout_, is_training());
  return at::dropout(linear(fc2_, hidden), dropout_, is_training());
}

VitBlockImpl::VitBlockImpl(const VitOptions& o) : dropout_(o.dropout) {
  norm1_ = register_module("norm1", vit_norm(o));
  attn_ = register_module("attn", VitAttention(o));
  norm2_ = register_module("norm2", vit_norm(o));
  mlp_ = register_module("mlp", VitMlp(o));
}

at::Tensor VitBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = x + at::dropout(attn_(norm1_(x)), dropout_, is_training());
  return y + mlp_(norm2_(y));
}

VitPatchesImpl::VitPatchesImpl(const VitOptions& o) {
  proj_ = register_module(
      "proj", torch::nn::Conv2d(
                  torch::nn::Conv2dOptions(o.channels, o.hidden_dim, o.patch_size).stride(o.patch_size)));
}

at::Tensor VitPatchesImpl::forward(const at::Tensor& images) {
  return proj_(images).flatten(2).transpose(1, 2);
}

VitImpl::VitImpl(const VitOptions& options) : options_(options) {
  check_options(options);
  const int64_t side = options.image_size / options.patch_size;
  cls_token_ = register_parameter("cls_token", at::zeros({1, 1, options.hidden_dim}));
  pos_embed_ = register_parameter("pos_embed", at::zeros({1, side * side + 1, options.hidden_dim}));
  patch_embed_ = register_module("patch_embed", VitPatches(options));
  register_module("blocks", blocks_);
  for (int64_t i = 0; i < options.num_layers; ++i) blocks_->push_back(VitBlock(options));
  norm_ = register_module("norm", vit_norm(options));
  head_ = register_module("head", torch::nn::Linear(options.hidden_dim, options.num_classes));
  initialize_weights();
}

void VitImpl::initialize_weights() {
  const at::NoGradGuard no_grad;
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    at::Tensor& p = item.value();
    if (name == "pos_embed") {
      p.normal_(0, 0.02);
    } else if (name == "patch_embed.proj.weight") {
      // torchvision cuts this distribution off at 2, which is more than 10 standard deviations.
      p.normal_(0, std::sqrt(1.0 / static_cast<double>(p[0].numel())));
    } else if (name.ends_with(".attn.qkv.weight") || name.ends_with(".fc1.weight") ||
               name.ends_with(".fc2.weight")) {
      xavier_uniform(p);
    } else if (name.ends_with(".fc1.bias") || name.ends_with(".fc2.bias")) {
      p.normal_(0, 1e-6);
    } else if (name.starts_with("head.") || name.ends_with(".bias")) {
      p.zero_();
    }  // Others, such as attn.proj.weight, keep the values that libtorch's layers begin with.
  }
}

at::Tensor VitImpl::forward(const at::Tensor& images) {
  const int64_t size = options_.image_size;
  TORCH_CHECK_VALUE(images.dim() == 4 && images.size(1) == options_.channels && images.size(2) == size &&
                        images.size(3) == size,
                    "Vit: expects [N, ", options_.channels, ", ", size, ", ", size, "]; got ", images.sizes(),
                    "; resize the images, or make it with their size and channels");
  const at::Tensor patches = patch_embed_(images);
  at::Tensor x = at::cat({cls_token_.expand({images.size(0), -1, -1}), patches}, 1) + pos_embed_;
  x = at::dropout(x, options_.dropout, is_training());
  for (size_t i = 0; i < blocks_->size(); ++i)
    x = checkpointed([its = blocks_->ptr<VitBlockImpl>(i)](const at::Tensor& h) { return its->forward(h); },
                     x);
  return linear(head_, norm_(x).select(1, 0));
}

std::string VitImpl::own_name(const std::string& name) const { return vit_name_of_timm(name); }

std::string VitImpl::name_in_files(const std::string& name) const {
  return options_.names == VitNames::kTimm ? name : vit_name_of_torchvision(name);
}

}  // namespace mantissa
