#include "mantissa/weights/packed_weight.h"

#include <sstream>
#include <thread>

#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::packed_weight_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PackedWeight : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
  at::Tensor weight_ = pack(torch::randn({4, 8}));
};

TEST_F(PackedWeight, APlainLinearComputesWithIt) {
  torch::nn::Linear layer(8, 4), plain(8, 4);
  const at::Tensor x = torch::randn({3, 8});
  replace_weight(*layer, "weight", pack(layer->weight));
  torch::NoGradGuard no_grad;
  plain->weight.copy_(mantissa::dequantize(layer->weight));
  plain->bias.copy_(layer->bias);
  EXPECT_TRUE(at::equal(layer(x), plain(x)));
  EXPECT_EQ(rows_of(layer->weight).products, 1) << "the format's own product";
}

TEST_F(PackedWeight, HasTheFactsOfAPlainTensor) {
  EXPECT_EQ(weight_.sizes(), at::IntArrayRef({4, 8}));
  EXPECT_EQ(weight_.strides(), at::IntArrayRef({8, 1}));
  EXPECT_EQ(weight_.numel(), 32);
  EXPECT_EQ(weight_.dim(), 2);
  EXPECT_TRUE(weight_.is_contiguous());
  EXPECT_TRUE(weight_.is_cpu());
  EXPECT_TRUE(weight_.is_floating_point());
  EXPECT_TRUE(weight_.is_leaf());
  EXPECT_FALSE(weight_.is_view());
  EXPECT_FALSE(weight_.requires_grad());
  EXPECT_FALSE(weight_.is_inference());
  EXPECT_EQ(weight_.options().device(), at::kCPU);
  EXPECT_EQ(weight_.scalar_type(), at::kFloat);
  EXPECT_EQ(weight_.layout(), at::kStrided);
  EXPECT_EQ(weight_.element_size(), 4) << "of the nominal dtype";
}

TEST_F(PackedWeight, ItsStorageHasTheBytesOfTheParts) {
  EXPECT_EQ(packed_data(weight_)->nbytes(), 4u * 8 + 4 * 4);
  EXPECT_EQ(weight_.storage().nbytes(), packed_data(weight_)->nbytes());
  EXPECT_TRUE(weight_.is_alias_of(weight_.t()));
}

TEST_F(PackedWeight, IsToldFromOtherTensors) {
  EXPECT_TRUE(is_packed(weight_));
  EXPECT_TRUE(is_packed(weight_.t()));
  EXPECT_FALSE(is_packed(torch::ones({2})));
  EXPECT_FALSE(is_packed(at::Tensor()));
  EXPECT_FALSE(is_packed(torch::ones({2}).to_sparse()));
  EXPECT_EQ(packed_data(weight_.t()), packed_data(weight_));
  EXPECT_THAT(error_of([] { packed_data(torch::ones({2})); }), HasSubstr("not packed"));
  EXPECT_THAT(error_of([] { packed_data(at::Tensor()); }), HasSubstr("undefined"));
}

TEST_F(PackedWeight, RefusesNoDataAndOtherDtypes) {
  EXPECT_THROW(make_packed_weight(nullptr), c10::ValueError);
  for (const auto dtype : {at::kDouble, at::kLong, at::kFloat8_e4m3fn}) {
    EXPECT_THROW(make_packed_weight(packed_data(weight_), dtype), c10::ValueError) << dtype;
  }
  EXPECT_THAT(error_of([&] { make_packed_weight(packed_data(weight_), at::kDouble); }),
              AllOf(HasSubstr("int8 per row"), HasSubstr("Double")));
}

TEST_F(PackedWeight, DequantizesToItsNominalDtype) {
  const at::Tensor values = packed_data(weight_)->dequantize(at::kFloat);
  EXPECT_TRUE(at::equal(mantissa::dequantize(weight_), values));
  EXPECT_TRUE(at::equal(weight_.dequantize(), values)) << "libtorch's own name for it";
  EXPECT_TRUE(at::equal(mantissa::dequantize(weight_.t()), values.t()));
  EXPECT_EQ(mantissa::dequantize(weight_.to(at::kHalf)).scalar_type(), at::kHalf);
  const at::Tensor plain = torch::ones({2});
  EXPECT_TRUE(mantissa::dequantize(plain).is_same(plain));
}

TEST_F(PackedWeight, CastsChangeTheNominalDtypeOnly) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    const at::Tensor cast = weight_.to(dtype);
    EXPECT_TRUE(is_packed(cast));
    EXPECT_EQ(cast.scalar_type(), dtype);
    EXPECT_EQ(packed_data(cast), packed_data(weight_)) << "nothing is copied";
  }
  EXPECT_EQ(weight_.t().to(at::kHalf).sizes(), at::IntArrayRef({8, 4}));
  EXPECT_THAT(error_of([&] { weight_.to(at::kLong); }), AllOf(HasSubstr("Long"), HasSubstr("dequantize")));
}

TEST_F(PackedWeight, AsFloat64ItIsAPlainTensor) {
  const at::Tensor values = weight_.to(at::kDouble);
  EXPECT_FALSE(is_packed(values));
  EXPECT_TRUE(at::equal(values, packed_data(weight_)->dequantize(at::kDouble)));
}

TEST_F(PackedWeight, MovesItsPartsToADevice) {
  // The dispatcher takes to(kMeta) elsewhere; the kernel itself can move parts there.
  const auto move = [](const at::Tensor& weight) {
    return packed::to_copy(weight, {}, {}, at::Device(at::kMeta), {}, false, {});
  };
  const at::Tensor moved = move(weight_);
  ASSERT_TRUE(is_packed(moved));
  EXPECT_TRUE(moved.is_meta());
  EXPECT_EQ(moved.sizes(), weight_.sizes());
  for (const auto& [name, part] : packed_data(moved)->parts()) EXPECT_TRUE(part.is_meta()) << name;
  EXPECT_EQ(move(weight_.t()).strides(), weight_.t().strides());
  EXPECT_FALSE(is_packed(weight_.to(at::kMeta)));
  EXPECT_EQ(weight_.to(at::kMeta).sizes(), weight_.sizes());
}

TEST_F(PackedWeight, CopiesShareTheData) {
  for (const at::Tensor& copy : {weight_.clone(), weight_.detach(), weight_.data(), weight_.alias(),
                                 weight_.variable_data(), weight_.to(at::kFloat, false, /*copy=*/true)}) {
    EXPECT_EQ(packed_data(copy), packed_data(weight_));
    EXPECT_EQ(copy.sizes(), weight_.sizes());
    EXPECT_FALSE(copy.is_same(weight_));
    EXPECT_FALSE(copy.requires_grad());
  }
}

TEST_F(PackedWeight, FreesItsDataWithTheLastTensor) {
  const std::weak_ptr<const PackedData> data = packed_data(weight_);
  at::Tensor view = weight_.t();
  weight_ = at::Tensor();
  EXPECT_FALSE(data.expired());
  view = at::Tensor();
  EXPECT_TRUE(data.expired());
}

TEST_F(PackedWeight, PrintsItsValues) {
  std::ostringstream packed, plain;
  packed << weight_;
  plain << packed_data(weight_)->dequantize(at::kFloat);
  EXPECT_EQ(packed.str(), plain.str());
}

TEST_F(PackedWeight, ItsBytesCannotBeReadAsNumbers) {
  const auto says_why = AllOf(HasSubstr("int8 per row"), HasSubstr("dequantize"), HasSubstr("named_parts"));
  EXPECT_THAT(error_of([&] { weight_.data_ptr(); }), says_why);
  EXPECT_THAT(error_of([&] { weight_.const_data_ptr<float>(); }), says_why);
  EXPECT_THAT(error_of([&] { weight_.mutable_data_ptr<float>(); }), says_why);
  EXPECT_THAT(error_of([&] { weight_.storage().data(); }), says_why);
  EXPECT_THAT(error_of([&] { torch::empty({0}).set_(weight_.storage()).sum(); }), says_why);
}

TEST_F(PackedWeight, StockSavingThrowsInsteadOfWritingSomethingWrong) {
  std::ostringstream out;
  EXPECT_THAT(error_of([&] { torch::save(weight_, out); }), HasSubstr("named_parts"));
  EXPECT_THAT(error_of([&] { torch::pickle_save(weight_); }), HasSubstr("named_parts"));
  torch::nn::Linear layer(8, 4);
  replace_weight(*layer, "weight", weight_);
  EXPECT_THAT(error_of([&] { torch::save(layer, out); }), HasSubstr("named_parts"));
}

TEST_F(PackedWeight, AProductRefusesAWeightThatRequiresAGradient) {
  weight_.set_requires_grad(true);
  EXPECT_THAT(error_of([&] {
                torch::linear(torch::ones({1, 8}), weight_);
              }),
              AllOf(HasSubstr("linear"), HasSubstr("frozen"), HasSubstr("set_requires_grad(false)")));
  EXPECT_THROW(torch::matmul(torch::ones({1, 8}), weight_.t()), c10::ValueError) << "through a view";
  EXPECT_THROW(torch::embedding(weight_, torch::zeros({1}, at::kLong)), c10::ValueError);
  EXPECT_THROW(torch::einsum("bi,oi->bo", {torch::ones({1, 8}), weight_}), c10::ValueError);
  weight_.set_requires_grad(false);
  EXPECT_NO_THROW(torch::linear(torch::ones({1, 8}), weight_));
}

TEST_F(PackedWeight, MayBeMadeAndUsedInInferenceMode) {
  const at::Tensor x = torch::randn({2, 8});
  const at::Tensor expected = torch::linear(x, weight_.dequantize());
  at::Tensor made;
  {
    const c10::InferenceMode mode;
    made = make_packed_weight(packed_data(weight_));
    EXPECT_TRUE(made.is_inference());
    EXPECT_TRUE(at::equal(torch::linear(x, made), expected));
    EXPECT_TRUE(at::equal(torch::matmul(x, made.t()), expected));
    EXPECT_TRUE(at::equal(torch::linear(x, weight_), expected)) << "a weight from outside";
    EXPECT_TRUE(at::equal(torch::matmul(x, weight_.t()), expected));
    EXPECT_TRUE(is_packed(weight_.to(at::kHalf)));
    EXPECT_TRUE(is_packed(weight_.detach()));
  }
  EXPECT_TRUE(at::equal(torch::linear(x, made), expected));
}

TEST_F(PackedWeight, ServesSeveralThreads) {
  const at::Tensor x = torch::randn({5, 8});
  const at::Tensor expected = torch::linear(x, weight_.dequantize());
  constexpr int kThreads = 4, kRounds = 50;
  std::vector<std::thread> threads;
  std::atomic<int> equal = 0;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        at::Tensor leaf = x.clone().set_requires_grad(true);
        const at::Tensor y = torch::linear(leaf, weight_);
        y.sum().backward();
        equal += at::equal(y, expected) && leaf.grad().defined();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, kThreads * kRounds);
  EXPECT_EQ(rows_of(weight_).products, kThreads * kRounds);
}

}  // namespace
}  // namespace mantissa::packed_weight_test
