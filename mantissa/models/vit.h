#pragma once

#include <cstdint>
#include <string>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "mantissa/core/activation_checkpointing.h"
#include "mantissa/models/public_model.h"
#include "mantissa/weights/attention.h"

namespace mantissa {

/// The names of a Vision Transformer's weights in files.
enum class VitNames {
  kTorchvision,  ///< encoder.layers.encoder_layer_0.self_attention.in_proj_weight
  kTimm,         ///< blocks.0.attn.qkv.weight
};

/// The members have the names of torchvision's VisionTransformer. The defaults are those of ViT-B/16.
struct VitOptions {
  /// The height and the width of the images; a multiple of patch_size.
  int64_t image_size = 224;
  int64_t patch_size = 16;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  /// The size of a patch's vector; a multiple of num_heads.
  int64_t hidden_dim = 768;
  int64_t mlp_dim = 3072;
  int64_t num_classes = 1000;
  int64_t channels = 3;
  /// Dropout in training: of the embeddings and of what a block adds, and of the probabilities of attention.
  double dropout = 0, attention_dropout = 0;
  /// Files with either names are read. These are written.
  VitNames names = VitNames::kTorchvision;
};

/// The options of ViT-Ti/16 (5.7 million parameters), ViT-S/16 (22.1), ViT-B/16 (86.6) and ViT-L/16 (304.3).
VitOptions vit_ti_16_options();
VitOptions vit_s_16_options();
VitOptions vit_b_16_options();
VitOptions vit_l_16_options();

/// Each patch attends to all patches.
///
/// Shapes: [N, T, hidden_dim] -> the same.
class VitAttentionImpl final : public torch::nn::Module, public HasAttention {
 public:
  explicit VitAttentionImpl(const VitOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t heads_;
  double dropout_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
};
TORCH_MODULE(VitAttention);

/// Two layers with exact GELU between them.
class VitMlpImpl final : public torch::nn::Module {
 public:
  explicit VitMlpImpl(const VitOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  double dropout_;
  torch::nn::Linear fc1_{nullptr}, fc2_{nullptr};
};
TORCH_MODULE(VitMlp);

/// Computes x + attn(norm1(x)), then x + mlp(norm2(x)).
class VitBlockImpl final : public torch::nn::Module {
 public:
  explicit VitBlockImpl(const VitOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  double dropout_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  VitAttention attn_{nullptr};
  VitMlp mlp_{nullptr};
};
TORCH_MODULE(VitBlock);

/// Cuts images into patches: the convolution "proj".
class VitPatchesImpl final : public torch::nn::Module {
 public:
  explicit VitPatchesImpl(const VitOptions& options);
  /// Shapes: [N, channels, image_size, image_size] -> [N, patches, hidden_dim].
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d proj_{nullptr};
};
TORCH_MODULE(VitPatches);

/// The Vision Transformer of torchvision (VisionTransformer) and timm (vit_base_patch16_224), which are the same network
/// with other names. Parameters have timm's names, such as "blocks.0.attn.qkv.weight", because all products are then linear layers,
/// which every mode and adapter knows. Files have the names of VitOptions::names.
///
/// Shapes:   [N, channels, image_size, image_size] -> [N, num_classes], not normalized.
/// Units:    weights start from torchvision's distributions, drawn from the global generator: those of the head from 0.
/// Numerics: logits and gradients equal those of timm bit for bit on the same CPU, and those of torchvision, which sums over
///           patches in another order, within 1e-5 of the largest value.
/// Errors:   c10::ValueError for options out of range, and from forward() for other shapes.
/// Source:   Dosovitskiy et al. 2021, arXiv:2010.11929.
/// Example:  vit_test.cpp, VitFiles.EitherKindIsReadByEither
class VitImpl final : public PublicModel, public HasActivationCheckpointing {
 public:
  explicit VitImpl(const VitOptions& options);
  at::Tensor forward(const at::Tensor& images) override;
  std::string own_name(const std::string& name) const override;
  std::string name_in_files(const std::string& name) const override;
  const VitOptions& options() const { return options_; }

 private:
  void initialize_weights();

  VitOptions options_;
  at::Tensor cls_token_, pos_embed_;
  VitPatches patch_embed_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Vit);

}  // namespace mantissa
