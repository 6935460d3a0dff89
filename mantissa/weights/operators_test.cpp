#include <functional>

#include "mantissa/weights/test_support_internal.h"

namespace mantissa::operators_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Operation {
  std::string name;
  std::function<void(const at::Tensor&)> run;
};

class PackedOperators : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
  at::Tensor weight_ = pack(torch::randn({4, 4}));
};

TEST_F(PackedOperators, OthersNameThemselvesAndTheCure) {
  const std::vector<Operation> operations = {
      {"add", [](const auto& w) { w + 1; }},
      {"add",
       [](const auto& w) {
         torch::ones({4, 4}) + w;
       }},
      {"mul", [](const auto& w) { w* w; }},
      {"sub", [](const auto& w) { w - w; }},
      {"div", [](const auto& w) { w / 2; }},
      {"relu", [](const auto& w) { torch::relu(w); }},
      {"sum", [](const auto& w) { w.sum(); }},
      {"mean", [](const auto& w) { w.mean(); }},
      {"cat",
       [](const auto& w) {
         torch::cat({torch::ones({4, 4}), w});
       }},
      {"stack",
       [](const auto& w) {
         torch::stack({w, w});
       }},
      {"slice", [](const auto& w) { w.slice(0, 0, 2); }},
      {"select", [](const auto& w) { w[0]; }},
      {"index", [](const auto& w) { w.index({torch::zeros({1}, at::kLong)}); }},
      {"chunk", [](const auto& w) { w.chunk(2); }},
      {"unsqueeze", [](const auto& w) { w.unsqueeze(0); }},
      {"view", [](const auto& w) { w.view({16}); }},
      {"view", [](const auto& w) { w.reshape_as(torch::ones({16})); }},
      {"view",
       [](const auto& w) {
         w.reshape({2, 8});
       }},
      {"expand",
       [](const auto& w) {
         w.expand({2, 4, 4});
       }},
      {"permute",
       [](const auto& w) {
         pack(torch::ones({2, 3, 4})).permute({2, 0, 1}), w.numel();
       }},
      {"transpose",
       [](const auto& w) {
         pack(torch::ones({2, 3, 4})).transpose(0, 1), w.numel();
       }},
      {"bmm",
       [](const auto& w) {
         torch::bmm(torch::ones({2, 1, 3}), pack(torch::ones({2, 3, 4}))), w.numel();
       }},
      {"equal", [](const auto& w) { at::equal(w, w); }},
      {"allclose", [](const auto& w) { at::allclose(w, w); }},
      {"isfinite", [](const auto& w) { at::isfinite(w); }},
      {"copy_",
       [](const auto& w) {
         torch::ones({4, 4}).copy_(w);
       }},
      {"contiguous", [](const auto& w) { w.t().contiguous(); }},
  };
  for (const Operation& operation : operations) {
    EXPECT_THAT(error_of([&] { operation.run(weight_); }),
                AllOf(HasSubstr(operation.name), HasSubstr("int8 per row"), HasSubstr("dequantize(weight)")));
    const torch::NoGradGuard no_grad;
    EXPECT_THROW(operation.run(weight_), c10::NotImplementedError) << operation.name;
    const c10::InferenceMode inference;
    EXPECT_THROW(operation.run(weight_), c10::NotImplementedError) << operation.name;
  }
}

TEST_F(PackedOperators, ChangesInPlaceNameReplaceWeight) {
  const at::Tensor before = weight_.dequantize();
  const torch::NoGradGuard no_grad;
  const std::vector<Operation> operations = {
      {"zero_", [](at::Tensor w) { w.zero_(); }},
      {"copy_",
       [](at::Tensor w) {
         w.copy_(torch::ones({4, 4}));
       }},
      {"copy_", [](at::Tensor w) { w.copy_(w); }},
      {"lerp_",
       [](at::Tensor w) {
         w.lerp_(torch::ones({4, 4}), 0.5);
       }},
      {"add_", [](at::Tensor w) { w.add_(1); }},
      {"uniform_", [](at::Tensor w) { torch::nn::init::kaiming_uniform_(w); }},
      {"resize_", [](at::Tensor w) { w.resize_({2}); }},
      {"set_", [](at::Tensor w) { w.set_(torch::ones({2})); }},
      {"index_put_", [](at::Tensor w) { w.index_put_({torch::zeros({1}, at::kLong)}, torch::ones({4})); }},
  };
  for (const Operation& operation : operations) {
    EXPECT_THAT(error_of([&] { operation.run(weight_); }),
                AllOf(HasSubstr(operation.name), HasSubstr("int8 per row"), HasSubstr("replace_weight()")));
  }
  EXPECT_TRUE(at::equal(weight_.dequantize(), before));
}

TEST_F(PackedOperators, ListsAndOutputsAreFoundToo) {
  EXPECT_THROW(torch::cat({weight_, weight_}), c10::NotImplementedError);
  at::Tensor out = torch::empty({4, 4});
  EXPECT_THROW(torch::add_out(out, weight_, weight_), c10::NotImplementedError);
  EXPECT_THROW(torch::mm_out(out, out, weight_), c10::NotImplementedError);
  EXPECT_THROW(at::_foreach_add({weight_}, 1), c10::NotImplementedError);
  EXPECT_THROW(at::_foreach_norm({torch::ones({2}), weight_}), c10::NotImplementedError);
  EXPECT_THROW(torch::mm_out(weight_, out, out), c10::NotImplementedError);
}

TEST_F(PackedOperators, WhatReadsOnlySizesGivesPlainTensors) {
  for (const at::Tensor& made :
       {torch::zeros_like(weight_), torch::empty_like(weight_), torch::ones_like(weight_),
        torch::rand_like(weight_), weight_.new_zeros({4, 4})}) {
    EXPECT_FALSE(is_packed(made));
    EXPECT_EQ(made.sizes(), weight_.sizes());
    EXPECT_EQ(made.scalar_type(), at::kFloat);
    EXPECT_NO_THROW(made.sum().item<float>());
  }
}

TEST_F(PackedOperators, ViewsThatChangeNothingWork) {
  const at::Tensor wide = pack(torch::randn({2, 6}));
  for (const at::Tensor& view :
       {wide.view({2, 6}), wide.view({-1, 6}), wide.reshape({2, -1}), wide.view_as(wide), wide.expand({2, 6}),
        wide.expand({-1, -1}), wide.expand_as(wide), wide.permute({0, 1}), wide.permute({-2, -1}),
        wide.transpose(1, 1), wide.contiguous(), wide.t().t(), wide.flatten(0, 0), wide.reshape_as(wide)}) {
    EXPECT_TRUE(is_packed(view));
    EXPECT_EQ(view.sizes(), wide.sizes());
    EXPECT_EQ(view.strides(), wide.strides());
    EXPECT_TRUE(at::equal(view.dequantize(), wide.dequantize()));
  }
}

TEST_F(PackedOperators, ASquareMatrixKnowsItsTranspose) {
  EXPECT_EQ(weight_.t().sizes(), weight_.sizes());
  EXPECT_FALSE(weight_.t().is_contiguous());
  EXPECT_TRUE(at::equal(weight_.t().dequantize(), weight_.dequantize().t()));
  EXPECT_TRUE(at::equal(weight_.t().t().dequantize(), weight_.dequantize()));
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{1, 1}, {1, 3}, {3, 1}}) {
    const at::Tensor thin = pack(torch::randn(sizes));
    EXPECT_TRUE(at::equal(thin.t().dequantize(), thin.dequantize().t())) << at::IntArrayRef(sizes);
  }
}

TEST_F(PackedOperators, SetDataTurnsAPlainTensorIntoAPackedOne) {
  at::Tensor plain = torch::ones({4, 4}).set_requires_grad(true);
  const at::Tensor other = plain;
  plain.set_data(weight_);
  EXPECT_TRUE(is_packed(other)) << "every handle of the tensor";
  EXPECT_FALSE(plain.requires_grad());
  plain.set_data(pack(torch::ones({4, 4})));
  EXPECT_TRUE(at::equal(plain.dequantize(), torch::ones({4, 4})));
  EXPECT_THAT(error_of([&] {
                plain.set_data(torch::zeros({4, 4}));
              }),
              AllOf(HasSubstr("int8 per row"), HasSubstr("replace_weight()")));
  EXPECT_TRUE(is_packed(plain));
  at::Tensor computed = torch::ones({4, 4}).set_requires_grad(true) * 2;
  EXPECT_THROW(computed.set_data(weight_), c10::ValueError);
}

TEST_F(PackedOperators, PlainTensorsAreUntouched) {
  at::Tensor a = torch::ones({2}), b = torch::zeros({2});
  a.set_data(b);
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_THROW(a.set_data(torch::ones({2}).to_sparse()), c10::Error) << "libtorch's own check";
}

}  // namespace
}  // namespace mantissa::operators_test
