#include "mantissa/io/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/sharded.h"

namespace mantissa::weights_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class Weights : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mantissa-weights-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ / "w.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  static torch::nn::Sequential net(int64_t hidden = 3) {
    return torch::nn::Sequential(torch::nn::Linear(2, hidden), torch::nn::BatchNorm1d(hidden));
  }
  static std::map<std::string, at::Tensor> copy(const torch::nn::Module& module) {
    std::map<std::string, at::Tensor> out;
    for (const auto& [name, weight] : named_weights(module)) out.emplace(name, weight.detach().clone());
    return out;
  }
  std::string load_error(torch::nn::Module& module) const {
    try {
      load_weights(module, path_);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

  fs::path folder_, path_;
};

TEST_F(Weights, EveryMisfitInOneMessageAndNothingChanged) {
  auto module = net();
  auto tensors = copy(*module);
  for (auto& [name, tensor] : tensors) tensor += 1;
  tensors.erase("0.bias");
  tensors["0.bais"] = at::ones({3});
  tensors["0.weight"] = at::ones({3, 4});
  tensors["1.num_batches_tracked"] = at::ones({}, at::kFloat);
  tensors["1.running_mean"] = at::ones({3}, at::kComplexFloat);
  save_safetensors(path_, tensors);
  const auto before = copy(*module);
  EXPECT_THAT(
      load_error(*module),
      AllOf(HasSubstr(path_.string()), HasSubstr("in 5 places"),
            HasSubstr("'0.bias' is missing in the file; did you mean '0.bais'?"),
            HasSubstr("'0.weight' has shape [3, 4] in the file, [3, 2] in the module"),
            HasSubstr("'1.num_batches_tracked' is Float in the file, which cannot become the module's Long"),
            HasSubstr("'1.running_mean' is ComplexFloat"), HasSubstr("'0.bais' is unknown to the module")));
  for (const auto& [name, weight] : named_weights(*module))
    EXPECT_TRUE(at::equal(weight, before.at(name))) << name;
}

TEST_F(Weights, LongListsAreCutAndCounted) {
  std::map<std::string, at::Tensor> tensors;
  for (int i = 0; i < 30; ++i) tensors[std::to_string(i)] = at::ones({1});
  save_safetensors(path_, tensors);
  auto module = net();
  EXPECT_THAT(load_error(*module), AllOf(HasSubstr("in 37 places"), HasSubstr("and 29 more")));
}

TEST_F(Weights, AModelInShardsIsLoadedFromItsIndexOrFolder) {
  auto saved = net();
  const auto weights = copy(*saved);
  SafetensorsHeader header;
  for (const auto& [name, tensor] : weights)
    header.tensors[name] = {tensor.scalar_type(), tensor.sizes().vec(), 0, 0};
  const SafetensorsLayout layout = lay_out_safetensors(folder_ / "shards", header, /*max_shard_bytes=*/16);
  ASSERT_GT(layout.files.size(), 1U);
  write_safetensors_files(layout,
                          [&](const std::string& name, const TakeElements& take) { take(weights.at(name)); });
  for (const fs::path& path : {folder_ / "shards", layout.index}) {
    auto loaded = net();
    load_weights(*loaded, path);
    for (const auto& [name, weight] : named_weights(*loaded))
      EXPECT_TRUE(at::equal(weight, weights.at(name))) << path;
  }
  fs::remove(layout.files[1].path);
  auto loaded = net();
  EXPECT_THAT(error_of([&] { load_weights(*loaded, folder_ / "shards"); }),
              AllOf(HasSubstr("names the shard"), HasSubstr("which is not there")));
}

TEST_F(Weights, AFileThatIsAnAdapterIsNamedAsSuch) {
  save_safetensors(path_, {{"base_model.model.0.lora_A.weight", at::ones({2, 2})},
                           {"base_model.model.0.lora_B.weight", at::ones({2, 2})}});
  EXPECT_THAT(load_error(*net()), AllOf(HasSubstr("is an adapter without the weights of its model"),
                                        HasSubstr("mantissa fit --adapter")));
}

TEST_F(Weights, AFileWithAnAdapterIsNamedAsSuch) {
  auto module = net();
  auto tensors = copy(*module);
  for (int i = 0; i < 20; ++i) tensors["0.lora_A.adapter" + std::to_string(i) + ".weight"] = at::ones({2, 2});
  save_safetensors(path_, tensors);
  EXPECT_THAT(load_error(*module),
              AllOf(HasSubstr("has 20 tensors of an adapter, such as '0.lora_A.adapter0.weight'"),
                    HasSubstr("mantissa merge"), testing::Not(HasSubstr("adapter1"))));
  tensors["other"] = at::ones({2});
  save_safetensors(path_, tensors);
  EXPECT_THAT(load_error(*module), HasSubstr("does not fit the module in 21 places"))
      << "it is another model";
}

TEST_F(Weights, TheProblemsAreCounted) {
  const auto error = [&](int extra) {
    auto module = net();
    auto tensors = named_weights(*module);
    for (int i = 0; i < extra; ++i) tensors["x" + std::to_string(i)] = at::ones({1});
    save_safetensors(path_, tensors);
    return load_error(*module);
  };
  EXPECT_EQ(error(0), "no error");
  EXPECT_THAT(error(1), HasSubstr("does not fit the module in 1 place: 'x0' is unknown to the module; it"));
  EXPECT_THAT(error(2), HasSubstr("in 2 places: 'x0' is unknown to the module, 'x1'"));
  EXPECT_THAT(error(8),
              AllOf(HasSubstr("'x7' is unknown to the module; it"), testing::Not(HasSubstr("more"))));
  EXPECT_THAT(error(9), HasSubstr("'x7' is unknown to the module, and 1 more; it"));
}

TEST_F(Weights, AFileOfQuantizedWeightsIsNamedAsSuch) {
  for (const std::string part : {"0.weight.quant_state.bitsandbytes__nf4", "0.SCB", "SCB"}) {
    auto module = net();
    auto tensors = named_weights(*module);
    tensors[part] = at::ones({1});
    save_safetensors(path_, tensors);
    EXPECT_THAT(load_error(*module), AllOf(HasSubstr(part == "SCB" ? "has 'weight' in 4 or 8 bits"
                                                                   : "has '0.weight' in 4 or 8 bits"),
                                           HasSubstr("dequantize_stored(), or dequantize_plain()")))
        << part;
  }
}

// A tensor with the key of a packed weight; the room `weights` makes real ones.
TEST_F(Weights, NumbersForAPackedWeightAreRefusedBeforeAnythingIsLoaded) {
  torch::nn::Module module;
  const at::Tensor first = module.register_buffer("a", at::zeros({2}));
  const at::Tensor packed =
      at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(c10::DispatchKey::PrivateUse2),
                                               caffe2::TypeMeta::Make<float>(), at::Device(at::kCPU));
  packed.unsafeGetTensorImpl()->set_sizes_contiguous({2});
  module.register_buffer("b", packed);
  save_safetensors(path_, {{"a", at::ones({2})}, {"b", at::ones({2})}});
  EXPECT_THAT(load_error(module), HasSubstr("'b' is packed in the module"));
  EXPECT_TRUE(at::equal(first, at::zeros({2})));
}

TEST_F(Weights, NamesOutOfAFileDoNotFillTheScreen) {
  save_safetensors(path_, {{"line\n\x1b[2J" + std::string(1 << 20, 'x'), at::ones({1})}});
  auto module = net();
  const std::string error = load_error(*module);
  EXPECT_THAT(error, HasSubstr("'line??[2Jxxx"));
  EXPECT_LT(error.size(), 2000u);
}

// A missing weight is compared with all names of the file only if the error lists it.
TEST_F(Weights, ManyMismatchesAreReportedAtOnce) {
  struct Many : torch::nn::Module {
    Many() {
      for (int i = 0; i < 3000; ++i) register_buffer("of_the_module_" + std::to_string(i), at::zeros({1}));
    }
  } module;
  std::map<std::string, at::Tensor> tensors;
  const at::Tensor one = at::ones({1});
  for (int i = 0; i < 100'000; ++i) tensors.emplace("of_the_other_" + std::to_string(i), one);
  EXPECT_THAT(error_of([&] { load_weights(module, tensors, "file"); }),
              AllOf(HasSubstr("in 103000 places"), HasSubstr("and 102992 more")));
}

TEST_F(Weights, MetaModuleIsRefused) {
  struct Meta : torch::nn::Module {
    Meta() { register_parameter("w", at::empty({2}, at::kMeta)); }
  } module;
  save_safetensors(path_, {{"w", at::ones({2})}});
  EXPECT_THAT(load_error(module), HasSubstr("'w' is on the meta device; materialise"));
  EXPECT_THROW(save_weights(module, folder_ / "meta"), c10::ValueError);
}

TEST_F(Weights, WhatAModuleDoesWithoutIsLeftOut) {
  const torch::nn::BatchNorm1d norm(
      torch::nn::BatchNorm1dOptions(3).affine(false).track_running_stats(false));
  const torch::nn::Linear linear(torch::nn::LinearOptions(2, 3).bias(false));
  EXPECT_TRUE(named_weights(*norm).empty());
  EXPECT_EQ(named_weights(*linear).size(), 1U);
}

TEST_F(Weights, RoundTripThroughTheNamesOfPyTorch) {
  auto saved = net(), loaded = net();
  saved->forward(at::randn({4, 2}));
  save_weights(*saved, path_, {{"format", "pt"}});
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.entries().size(), 7u);
  EXPECT_TRUE(file.entries().contains("1.running_var"));
  const void* storage = loaded->parameters()[0].data_ptr();
  load_weights(*loaded, path_);
  EXPECT_EQ(loaded->parameters()[0].data_ptr(), storage);  // an optimizer still refers to the same tensors
  for (const auto& [name, weight] : named_weights(*saved)) {
    EXPECT_TRUE(at::equal(named_weights(*loaded).at(name), weight)) << name;
  }
  EXPECT_TRUE(loaded->parameters()[0].requires_grad());
}

TEST_F(Weights, OutOfMemoryAreCopiedByName) {
  auto saved = net(), loaded = net();
  load_weights(*loaded, copy(*saved), "memory");
  for (const auto& [name, weight] : named_weights(*saved))
    EXPECT_TRUE(at::equal(named_weights(*loaded).at(name), weight)) << name;
}

TEST_F(Weights, AFilesNamesMayBeTranslatedOrLeftOut) {
  const at::Tensor weight = at::arange(1, 3);
  save_safetensors(path_, {{"theirs", weight}, {"unneeded", at::ones({1})}});
  const std::map<std::string, at::Tensor> own{{"ours", at::zeros({2})}};
  load_weights(own, path_,
               [](const std::string& name) { return std::string(name == "theirs" ? "ours" : ""); });
  EXPECT_TRUE(at::equal(own.at("ours"), weight.to(at::kFloat)));
  EXPECT_THAT(error_of([&] { load_weights(own, path_, [](const std::string& /*name*/) { return "ours"; }); }),
              HasSubstr("has the weight 'ours' twice, as 'theirs' and 'unneeded'; remove one of them"));
}

TEST_F(Weights, TheModulesDtypeStays) {
  auto saved = net(), loaded = net();
  loaded->to(at::kDouble);
  save_weights(*saved, path_);
  load_weights(*loaded, path_);
  EXPECT_EQ(loaded->parameters()[0].scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(loaded->parameters()[0], saved->parameters()[0].to(at::kDouble)));
  auto half = net();
  half->to(at::kBFloat16);
  load_weights(*half, path_);
  EXPECT_TRUE(at::equal(half->parameters()[0], saved->parameters()[0].to(at::kBFloat16)));
}

}  // namespace
}  // namespace mantissa::weights_test
