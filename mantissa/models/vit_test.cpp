#include "mantissa/models/vit.h"

#include <cmath>
#include <functional>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/weight_form.h"

namespace mantissa::vit_test {
namespace {

using testing::HasSubstr;

VitOptions small(VitNames names = VitNames::kTorchvision) {
  return {.image_size = 16,
          .patch_size = 8,
          .num_layers = 2,
          .num_heads = 2,
          .hidden_dim = 8,
          .mlp_dim = 12,
          .num_classes = 3,
          .names = names};
}

std::string error_with(const std::function<void(VitOptions&)>& change) {
  VitOptions options = small();
  change(options);
  return error_of<c10::ValueError>([&] { Vit{options}; });
}

class VitFiles : public InFolder {};

TEST(Vit, PublicSizesHaveTheirNumbersOfParameters) {
  const auto count = [](const VitOptions& o) {
    const int64_t block =
        4 * o.hidden_dim * (o.hidden_dim + 1) + (2 * o.hidden_dim + 1) * o.mlp_dim + 5 * o.hidden_dim;
    const int64_t side = o.image_size / o.patch_size, patch = o.channels * o.patch_size * o.patch_size;
    return o.num_layers * block + (patch + side * side + 5) * o.hidden_dim +
           (o.hidden_dim + 1) * o.num_classes;
  };
  EXPECT_EQ(count(vit_ti_16_options()), 5717416);
  EXPECT_EQ(count(vit_s_16_options()), 22050664);
  EXPECT_EQ(count(vit_b_16_options()), 86567656);
  EXPECT_EQ(count(vit_l_16_options()), 304326632);
  int64_t own = 0;
  for (const at::Tensor& p : Vit(small())->parameters()) own += p.numel();
  EXPECT_EQ(own, count(small())) << "the formula above";
}

TEST_F(VitFiles, HaveTheNamesOfTorchvisionOrTimm) {
  for (const auto& [names, wanted] :
       {std::pair(
            VitNames::kTorchvision,
            std::vector<std::string>{
                "class_token", "conv_proj.bias", "conv_proj.weight",
                "encoder.layers.encoder_layer_1.ln_1.weight", "encoder.layers.encoder_layer_1.ln_2.bias",
                "encoder.layers.encoder_layer_1.mlp.0.weight", "encoder.layers.encoder_layer_1.mlp.3.bias",
                "encoder.layers.encoder_layer_1.self_attention.in_proj_bias",
                "encoder.layers.encoder_layer_1.self_attention.in_proj_weight",
                "encoder.layers.encoder_layer_1.self_attention.out_proj.weight", "encoder.ln.weight",
                "encoder.pos_embedding", "heads.head.bias", "heads.head.weight"}),
        {VitNames::kTimm,
         {"blocks.1.attn.proj.bias", "blocks.1.attn.qkv.bias", "blocks.1.attn.qkv.weight",
          "blocks.1.mlp.fc1.bias", "blocks.1.mlp.fc2.weight", "blocks.1.norm1.weight", "blocks.1.norm2.bias",
          "cls_token", "head.bias", "head.weight", "norm.bias", "patch_embed.proj.weight", "pos_embed"}}}) {
    const Vit model(small(names));
    save_weight_file(*model, folder_ / "vit.safetensors");
    const SafetensorsFile file(folder_ / "vit.safetensors");
    for (const std::string& name : wanted) EXPECT_TRUE(file.entries().contains(name)) << name;
    EXPECT_EQ(file.entries().size(), 8 + 12 * 2U);
  }
}

TEST_F(VitFiles, EitherKindIsReadByEither) {
  torch::manual_seed(1);
  const at::Tensor images = at::randn({2, 3, 16, 16});
  for (const VitNames names : {VitNames::kTorchvision, VitNames::kTimm}) {
    Vit model(small(names)), same(small()), other(small(VitNames::kTimm));
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : model->parameters()) p.normal_();  // the head begins with zeros
    save_weight_file(*model, folder_ / "vit.safetensors");
    for (Vit* reader : {&same, &other}) {
      load_weight_file(**reader, folder_ / "vit.safetensors");
      EXPECT_TRUE(at::equal((*reader)(images), model(images)));
    }
  }
}

TEST_F(VitFiles, TheFirstFilesOfTorchvisionAndCodesAreUnderstood) {
  const Vit model(small());
  EXPECT_EQ(model->own_name("encoder.layers.encoder_layer_11.mlp.linear_1.weight"),
            "blocks.11.mlp.fc1.weight");
  EXPECT_EQ(model->own_name("encoder.layers.encoder_layer_0.mlp.linear_2.bias"), "blocks.0.mlp.fc2.bias");
  const std::string codes = "encoder.layers.encoder_layer_0.self_attention.in_proj_weight.absmax";
  EXPECT_EQ(model->own_name(codes), "blocks.0.attn.qkv.weight.absmax");
  EXPECT_EQ(model->name_in_files(model->own_name(codes)), codes);
  for (const char* unknown : {"encoder.layers.encoder_layer_", "blocks.x", "heads.pre_logits.weight", ""})
    EXPECT_EQ(model->own_name(unknown), unknown);
}

TEST_F(VitFiles, WrongWeightsAreNamedAsInTheFile) {
  Vit model(small());
  auto weights = as_in_files(*model, named_weights(*model));
  weights.erase("encoder.layers.encoder_layer_0.ln_1.weight");
  weights["heads.pre_logits.weight"] = at::ones({2});
  weights["heads.head.weight"] = at::ones({4, 8});
  save_safetensors(folder_ / "wrong.safetensors", weights);
  const std::string error = error_of([&] { load_weight_file(*model, folder_ / "wrong.safetensors"); });
  EXPECT_THAT(error, HasSubstr("3 places"));
  EXPECT_THAT(error, HasSubstr("'encoder.layers.encoder_layer_0.ln_1.weight' is missing in the file"));
  EXPECT_THAT(error, HasSubstr("'heads.pre_logits.weight' is unknown"));
  EXPECT_THAT(error, HasSubstr("'heads.head.weight' has shape [4, 8] in the file, [3, 8] in the module"));
}

TEST(Vit, StartsFromTorchvisionsDistributions) {
  torch::manual_seed(2);
  VitOptions options = small();
  options.hidden_dim = 64, options.mlp_dim = 128;
  for (const auto& item : Vit(options)->named_parameters()) {
    const at::Tensor& p = item.value();
    const std::string& name = item.key();
    if (name.starts_with("head.") || name == "cls_token" || name.ends_with("attn.qkv.bias")) {
      EXPECT_EQ(p.abs().max().item<float>(), 0) << name;
    } else if (name.ends_with("qkv.weight") || name.ends_with("fc1.weight") || name.ends_with("fc2.weight")) {
      const double bound = std::sqrt(6.0 / static_cast<double>(p.size(0) + p.size(1)));
      EXPECT_LE(p.abs().max().item<double>(), bound + 1e-6) << name;
      EXPECT_GE(p.abs().max().item<double>(), 0.99 * bound) << name;
    } else if (name == "patch_embed.proj.weight") {
      EXPECT_NEAR(p.std().item<double>() * std::sqrt(3 * 8 * 8), 1, 0.1);
    } else if (name.ends_with("fc1.bias")) {
      EXPECT_NEAR(p.std().item<double>() * 1e6, 1, 0.3) << name;
    }
  }
}

TEST(Vit, DropoutActsInTrainingOnly) {
  torch::manual_seed(3);
  const at::Tensor images = at::randn({2, 3, 16, 16});
  for (double VitOptions::*only : {&VitOptions::dropout, &VitOptions::attention_dropout}) {
    VitOptions options = small();
    options.*only = 0.5;
    Vit model(options);
    at::NoGradGuard no_grad;
    for (at::Tensor& p : model->parameters()) p.normal_();
    EXPECT_FALSE(at::equal(model(images), model(images)));
    model->eval();
    EXPECT_TRUE(at::equal(model(images), model(images)));
  }
}

TEST(Vit, RefusesWrongSizes) {
  EXPECT_THAT(error_with([](auto& o) { o.image_size = 20; }),
              HasSubstr("image_size 20 is not a multiple of patch_size 8"));
  EXPECT_THAT(error_with([](auto& o) { o.num_heads = 3; }),
              HasSubstr("hidden_dim 8 is not a multiple of num_heads 3"));
  EXPECT_THAT(error_with([](auto& o) { o.image_size = 0; }), HasSubstr("image_size is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.patch_size = 0; }), HasSubstr("patch_size is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.num_layers = 0; }), HasSubstr("num_layers is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.num_heads = 0; }), HasSubstr("num_heads is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.hidden_dim = -8; }), HasSubstr("hidden_dim is -8"));
  EXPECT_THAT(error_with([](auto& o) { o.mlp_dim = 0; }), HasSubstr("mlp_dim is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.num_classes = 0; }), HasSubstr("num_classes is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.channels = 0; }), HasSubstr("channels is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.dropout = 1; }), HasSubstr("dropout is 1"));
  EXPECT_THAT(error_with([](auto& o) { o.attention_dropout = -0.5; }),
              HasSubstr("attention_dropout is -0.5"));
  Vit model(small());
  EXPECT_THAT(error_of<c10::ValueError>([&] {
                model(at::zeros({2, 3, 16, 8}));
              }),
              HasSubstr("expects [N, 3, 16, 16]; got [2, 3, 16, 8]"));
  EXPECT_THROW(model(at::zeros({2, 1, 16, 16})), c10::ValueError);
  EXPECT_THROW(model(at::zeros({3, 16, 16})), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::vit_test
