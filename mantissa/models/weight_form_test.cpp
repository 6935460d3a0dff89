#include "mantissa/models/weight_form.h"

#include <filesystem>
#include <functional>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/gpt2_files.h"
#include "mantissa/models/llama.h"

namespace mantissa::weight_form_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class WeightForm : public InFolder {
 protected:
  static Gpt2 make() {
    return Gpt2(Gpt2Options{.vocab_size = 10, .n_positions = 8, .n_embd = 16, .n_layer = 1, .n_head = 4});
  }
};

TEST_F(WeightForm, SquareWeightsAreTurnedToo) {
  const Gpt2 model = make();
  save_gpt2(*model, folder_);
  const SafetensorsFile file(folder_ / "model.safetensors");
  const auto own = model->named_parameters();
  for (const char* turned : {"transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight",
                             "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_proj.weight"})
    EXPECT_TRUE(at::equal(file.read(turned), own[turned].t())) << turned;
  for (const char* plain :
       {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight"})
    EXPECT_TRUE(at::equal(file.read(plain), own[plain])) << plain;
  const Gpt2 read = load_gpt2(folder_);
  for (const auto& item : read->named_parameters())
    EXPECT_TRUE(at::equal(item.value(), own[item.key()])) << item.key();
  EXPECT_EQ(read->options(), model->options());
}

TEST_F(WeightForm, BothDirectionsUndoEachOther) {
  const Gpt2 model = make();
  auto weights = named_weights(*model);
  weights["transformer.h.0.mlp.c_fc.weight"] = at::ones({512, 1}, at::kByte);  // codes
  const auto turned = as_in_files(*model, weights);
  EXPECT_EQ(turned.at("transformer.h.0.mlp.c_fc.weight").sizes(), (at::IntArrayRef{512, 1}));
  EXPECT_EQ(turned.at("transformer.h.0.attn.c_attn.weight").sizes(), (at::IntArrayRef{16, 48}));
  const auto back = as_in_model(*model, turned, "f");
  ASSERT_EQ(back.size(), weights.size());
  for (const auto& [name, weight] : weights) EXPECT_TRUE(at::equal(back.at(name), weight)) << name;
}

TEST_F(WeightForm, AWeightWithTwoNamesIsRefused) {
  const Gpt2 model = make();
  auto weights = as_in_files(*model, named_weights(*model));
  weights["wte.weight"] = weights["transformer.wte.weight"];
  EXPECT_THAT(error_of([&] { as_in_model(*model, weights, "f"); }),
              HasSubstr("'transformer.wte.weight' twice"));
  save_safetensors(folder_ / "twice.safetensors", weights);
  EXPECT_THAT(error_of([&] { load_weight_file(*make(), folder_ / "twice.safetensors"); }),
              HasSubstr("'transformer.wte.weight' twice"));
}

TEST_F(WeightForm, OtherModelsAreAsTheyAre) {
  const Llama model(LlamaOptions{.vocab_size = 5,
                                 .hidden_size = 4,
                                 .intermediate_size = 4,
                                 .num_hidden_layers = 1,
                                 .num_attention_heads = 1});
  const auto weights = named_weights(*model);
  for (const auto& [name, weight] : as_in_files(*model, weights))
    EXPECT_TRUE(weight.is_same(weights.at(name)));
  for (const auto& [name, weight] : as_in_model(*model, weights, "f"))
    EXPECT_TRUE(weight.is_same(weights.at(name)));
}

}  // namespace
}  // namespace mantissa::weight_form_test
