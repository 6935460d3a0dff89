#include "mantissa/layers/transformer_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mantissa/layers/test_support_internal.h"

namespace mantissa::layers_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const TransformerLayerOptions kSmall{.hidden_size = 24,
                                     .ffn_hidden_size = 40,
                                     .num_attention_heads = 6,
                                     .hidden_dropout = 0,
                                     .attention_dropout = 0};

TransformerLayerOptions grouped() {
  TransformerLayerOptions options = kSmall;
  options.num_gqa_groups = 2;
  return options;
}

TransformerLayerOptions fused(bool interleaved) {
  TransformerLayerOptions options = grouped();
  options.fuse_qkv_params = true;
  options.qkv_weight_interleaved = interleaved;
  return options;
}

/// Attention by its formula: query [S, B, heads, c], key and value [S, B, groups, c].
torch::Tensor attention(const torch::Tensor& query, torch::Tensor key, torch::Tensor value, bool causal) {
  const int64_t length = query.size(0), repeat = query.size(2) / key.size(2);
  key = key.repeat_interleave(repeat, 2), value = value.repeat_interleave(repeat, 2);
  torch::Tensor scores = torch::einsum("sbhc,tbhc->bhst", {query, key}) / std::sqrt(query.size(3));
  if (causal) scores = scores + torch::full({length, length}, -INFINITY, scores.options()).triu(1);
  return torch::einsum("bhst,tbhc->sbhc", {scores.softmax(-1), value}).flatten(2);
}

/// The layer by its formula, from its parameters under Transformer Engine's names.
torch::Tensor reference(const TransformerLayer& layer, const torch::Tensor& x, bool causal = true) {
  const auto p = [&](const std::string& name) { return parameter(*layer, name); };
  const auto norm = [&](const std::string& of, const torch::Tensor& input) {
    return torch::layer_norm(input, {24}, p(of + ".layer_norm_weight"), p(of + ".layer_norm_bias"));
  };
  const std::string qkv = "self_attention.layernorm_qkv";
  const torch::Tensor normalized = norm(qkv, x);
  const auto part = [&](const std::string& name) {
    const torch::Tensor y =
        torch::linear(normalized, p(qkv + "." + name + "_weight"), p(qkv + "." + name + "_bias"));
    return y.view({y.size(0), y.size(1), -1, 4});
  };
  const torch::Tensor attended =
      torch::linear(attention(part("query"), part("key"), part("value"), causal),
                    p("self_attention.proj.weight"), p("self_attention.proj.bias"));
  const torch::Tensor y = x + attended;
  const torch::Tensor hidden =
      torch::linear(norm("layernorm_mlp", y), p("layernorm_mlp.fc1_weight"), p("layernorm_mlp.fc1_bias"));
  return y + torch::linear(torch::gelu(hidden, "tanh"), p("layernorm_mlp.fc2_weight"),
                           p("layernorm_mlp.fc2_bias"));
}

TEST(TransformerLayer, HasTransformerEnginesParameters) {
  EXPECT_THAT(
      parameter_names(*TransformerLayer(grouped())),
      ElementsAre("self_attention.layernorm_qkv.layer_norm_weight",
                  "self_attention.layernorm_qkv.layer_norm_bias", "self_attention.layernorm_qkv.query_weight",
                  "self_attention.layernorm_qkv.query_bias", "self_attention.layernorm_qkv.key_weight",
                  "self_attention.layernorm_qkv.key_bias", "self_attention.layernorm_qkv.value_weight",
                  "self_attention.layernorm_qkv.value_bias", "self_attention.proj.weight",
                  "self_attention.proj.bias", "layernorm_mlp.layer_norm_weight",
                  "layernorm_mlp.layer_norm_bias", "layernorm_mlp.fc1_weight", "layernorm_mlp.fc1_bias",
                  "layernorm_mlp.fc2_weight", "layernorm_mlp.fc2_bias"));
  TransformerLayer layer(fused(true));
  EXPECT_EQ(parameter(*layer, "self_attention.layernorm_qkv.weight").sizes(), (std::vector<int64_t>{40, 24}));
  EXPECT_LT(parameter(*layer, "self_attention.proj.weight").std().item<double>(), 0.05);
}

TEST(TransformerLayer, EqualsItsFormula) {
  for (const TransformerLayerOptions& options : {kSmall, grouped()}) {
    TransformerLayer layer(options);
    randomize(*layer);
    const torch::Tensor x = torch::randn({7, 2, 24});
    EXPECT_TRUE(torch::allclose(layer->forward(x), reference(layer, x), 1e-4, 1e-5));
  }
  TransformerLayerOptions both = grouped();
  both.self_attn_mask_type = AttnMaskType::kNoMask;
  TransformerLayer layer(both);
  randomize(*layer);
  const torch::Tensor x = torch::randn({7, 2, 24});
  EXPECT_TRUE(torch::allclose(layer->forward(x), reference(layer, x, /*causal=*/false), 1e-4, 1e-5));
  EXPECT_FALSE(torch::allclose(layer->forward(x), reference(layer, x, /*causal=*/true), 1e-2, 1e-2));
}

TEST(TransformerLayer, AFusedWeightHasItsRowsInEitherOrder) {
  TransformerLayer split(grouped());  // 6 heads of 4 channels, 2 groups
  randomize(*split);
  const torch::Tensor x = torch::randn({7, 2, 24}), y = split->forward(x);
  for (const bool interleaved : {true, false}) {
    TransformerLayer whole(fused(interleaved));
    torch::NoGradGuard no_grad;
    for (const auto& item : whole->named_parameters()) {
      if (const torch::Tensor* const same = split->named_parameters().find(item.key()))
        item.value().copy_(*same);
    }
    const std::string qkv = "self_attention.layernorm_qkv.";
    for (const std::string kind : {"weight", "bias"}) {
      const torch::Tensor q = parameter(*split, qkv + "query_" + kind),
                          k = parameter(*split, qkv + "key_" + kind),
                          v = parameter(*split, qkv + "value_" + kind);
      const torch::Tensor rows = interleaved
                                     ? torch::cat({q.narrow(0, 0, 12), k.narrow(0, 0, 4), v.narrow(0, 0, 4),
                                                   q.narrow(0, 12, 12), k.narrow(0, 4, 4), v.narrow(0, 4, 4)})
                                     : torch::cat({q, k, v});
      parameter(*whole, qkv + kind).copy_(rows);
    }
    EXPECT_TRUE(torch::allclose(whole->forward(x), y, 1e-4, 1e-5)) << interleaved;
  }
}

TEST(TransformerLayer, BatchFirstIsTheTransposed) {
  TransformerLayerOptions batch_first = kSmall;
  batch_first.attn_input_format = AttnInputFormat::kBshd;
  TransformerLayer layer(kSmall), other(batch_first);
  randomize(*layer);
  {
    torch::NoGradGuard no_grad;
    for (const auto& item : other->named_parameters()) item.value().copy_(parameter(*layer, item.key()));
  }
  const torch::Tensor x = torch::randn({7, 2, 24});
  EXPECT_TRUE(
      torch::allclose(other->forward(x.transpose(0, 1)).transpose(0, 1), layer->forward(x), 1e-5, 1e-5));
}

TEST(TransformerLayer, AMaskSaysWhatIsMaskedOut) {
  TransformerLayerOptions options = kSmall;
  options.self_attn_mask_type = AttnMaskType::kArbitrary;
  TransformerLayer layer(options);
  randomize(*layer);
  const torch::Tensor x = torch::randn({7, 2, 24});
  const torch::Tensor later = torch::ones({7, 7}, at::kBool).triu(1);
  EXPECT_TRUE(torch::allclose(layer->forward(x, later), reference(layer, x), 1e-4, 1e-5));
  EXPECT_THAT(error_of([&] { layer->forward(x); }), HasSubstr("no attention_mask was given"));
  EXPECT_THAT(error_of([&] { TransformerLayer(kSmall)->forward(x, later); }),
              HasSubstr("which only attn_mask_type kArbitrary uses"));
}

TEST(TransformerLayer, TheResidualsAreChosen) {
  const torch::Tensor x = torch::randn({7, 2, 24});
  TransformerLayerOptions options = kSmall;
  options.parallel_attention_mlp = true;
  TransformerLayer parallel(options);
  randomize(*parallel);
  const auto attention = std::dynamic_pointer_cast<MultiheadAttentionImpl>(parallel->children()[0]);
  const auto mlp = std::dynamic_pointer_cast<LayerNormMLPImpl>(parallel->children()[1]);
  EXPECT_TRUE(at::equal(parallel->forward(x), x + (attention->forward(x) + mlp->forward(x))));

  options.parallel_attention_mlp = false;
  options.apply_residual_connection_post_layernorm = true;
  TransformerLayer post(options);
  randomize(*post);
  const auto post_attention = std::dynamic_pointer_cast<MultiheadAttentionImpl>(post->children()[0]);
  const auto post_mlp = std::dynamic_pointer_cast<LayerNormMLPImpl>(post->children()[1]);
  const auto [attended, normalized] = post_attention->forward_with_norm(x);
  const torch::Tensor y = normalized + attended;
  const auto [expanded, normalized_y] = post_mlp->forward_with_norm(y);
  EXPECT_TRUE(at::equal(post->forward(x), normalized_y + expanded));
}

TEST(TransformerLayer, DropoutIsForTrainingOnly) {
  TransformerLayerOptions options = kSmall;
  options.hidden_dropout = options.attention_dropout = 0.5;
  TransformerLayer layer(options);
  randomize(*layer);
  const torch::Tensor x = torch::randn({7, 2, 24});
  EXPECT_FALSE(at::equal(layer->forward(x), layer->forward(x)));
  layer->eval();
  EXPECT_TRUE(torch::allclose(layer->forward(x), reference(layer, x), 1e-4, 1e-5));
}

TEST(TransformerLayer, ACloneTrainsOnItsOwn) {
  TransformerLayer layer(grouped());
  randomize(*layer);
  const auto copy = std::dynamic_pointer_cast<TransformerLayerImpl>(layer->clone());
  const torch::Tensor x = torch::randn({7, 2, 24}), y = layer->forward(x);
  EXPECT_TRUE(at::equal(copy->forward(x), y));
  copy->forward(x).sum().backward();
  for (const auto& item : copy->named_parameters()) EXPECT_TRUE(item.value().grad().defined()) << item.key();
  randomize(*copy);
  EXPECT_TRUE(at::equal(layer->forward(x), y));
}

TEST(TransformerLayer, BadOptionsAreErrors) {
  const auto error = [](const std::function<void(TransformerLayerOptions&)>& change) {
    TransformerLayerOptions options = kSmall;
    change(options);
    return error_of([&] { TransformerLayer{options}; });
  };
  EXPECT_THAT(error([](auto& o) { o.num_gqa_groups = 4; }),
              HasSubstr("num_attention_heads 6 is not a multiple of num_gqa_groups 4"));
  EXPECT_THAT(error([](auto& o) { o.hidden_size = 25; }),
              HasSubstr("hidden_size 25 is not a multiple of num_attention_heads 6"));
  EXPECT_EQ(error([](auto& o) { o.hidden_size = 25, o.kv_channels = 4; }), "no error");
  EXPECT_THAT(error([](auto& o) { o.kv_channels = 0; }), HasSubstr("kv_channels is 0"));
  EXPECT_THAT(error([](auto& o) { o.num_attention_heads = 0; }), HasSubstr("num_attention_heads is 0"));
  EXPECT_THAT(error([](auto& o) { o.attention_dropout = 1; }), HasSubstr("attention_dropout is 1"));
  EXPECT_THAT(error([](auto& o) { o.hidden_dropout = -0.1; }), HasSubstr("hidden_dropout is -0.1"));
  EXPECT_THAT(
      error([](auto& o) { o.parallel_attention_mlp = o.apply_residual_connection_post_layernorm = true; }),
      HasSubstr("choose one of them"));
  EXPECT_THAT(error_of([] {
                TransformerLayer(kSmall)->forward(torch::zeros({7, 24}));
              }),
              HasSubstr("expects [sequence, batch, 24]; got [7, 24]"));
}

}  // namespace
}  // namespace mantissa::layers_test
