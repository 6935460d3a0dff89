#include <array>
#include <string_view>

#include "mantissa/models/vit_names_internal.h"

namespace mantissa {
namespace {

struct Pair {
  std::string_view torchvision, timm;
};

/// The beginnings of names.
constexpr std::array kOutside{Pair{"class_token", "cls_token"}, Pair{"encoder.pos_embedding", "pos_embed"},
                              Pair{"conv_proj.", "patch_embed.proj."}, Pair{"encoder.ln.", "norm."},
                              Pair{"heads.head.", "head."}};
constexpr Pair kBlocks{"encoder.layers.encoder_layer_", "blocks."};
/// The same inside a block. The first of two rows is the one that is written; the second is that of torchvision 0.12.
constexpr std::array kInside{Pair{"ln_1.", "norm1."},
                             Pair{"ln_2.", "norm2."},
                             Pair{"self_attention.in_proj_weight", "attn.qkv.weight"},
                             Pair{"self_attention.in_proj_bias", "attn.qkv.bias"},
                             Pair{"self_attention.out_proj.", "attn.proj."},
                             Pair{"mlp.0.", "mlp.fc1."},
                             Pair{"mlp.3.", "mlp.fc2."},
                             Pair{"mlp.linear_1.", "mlp.fc1."},
                             Pair{"mlp.linear_2.", "mlp.fc2."}};

template <typename Pairs>
std::string replaced(const std::string& name, const Pairs& pairs, std::string_view Pair::*from,
                     std::string_view Pair::*to) {
  for (const Pair& pair : pairs)
    if (name.starts_with(pair.*from)) return std::string(pair.*to) + name.substr((pair.*from).size());
  return name;
}

std::string translated(const std::string& name, std::string_view Pair::*from, std::string_view Pair::*to) {
  const std::string_view block = kBlocks.*from;
  const size_t dot = name.starts_with(block) ? name.find('.', block.size()) : std::string::npos;
  if (dot == std::string::npos) return replaced(name, kOutside, from, to);
  const std::string number = name.substr(block.size(), dot + 1 - block.size());
  return std::string(kBlocks.*to) + number + replaced(name.substr(dot + 1), kInside, from, to);
}

}  // namespace

std::string vit_name_of_timm(const std::string& torchvision) {
  return translated(torchvision, &Pair::torchvision, &Pair::timm);
}

std::string vit_name_of_torchvision(const std::string& timm) {
  return translated(timm, &Pair::timm, &Pair::torchvision);
}

}  // namespace mantissa
