#include <functional>
#include <thread>

#include <ATen/autocast_mode.h>

#include "mantissa/weights/marked_test_support_internal.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::marked_weight_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MarkedWeight : public testing::Test {
 protected:
  void SetUp() override {
    torch::manual_seed(0);
    weight_ = torch::randn({4, 6}).set_requires_grad(true);
    x_ = torch::randn({3, 6});
    rule_ = mark(weight_);
    values_ = rounded(weight_);
    unmark_weight(values_);
  }

  at::Tensor weight_, x_, values_;
  std::shared_ptr<const RoundingRule> rule_;
};

// The two sides sum the same products in other orders.
void expect_close(const at::Tensor& got, const at::Tensor& expected) {
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(got, expected, 1e-5, 1e-5)) << got << expected;
}

TEST_F(MarkedWeight, APlainLinearComputesWithTheRule) {
  torch::nn::Linear layer(6, 4), flat(torch::nn::LinearOptions(6, 4).bias(false));
  const auto rule = mark(layer->weight), flat_rule = mark(flat->weight);
  const at::Tensor values = rounded(layer->weight);
  expect_close(layer(x_), x_.matmul(values.t()) + layer->bias);
  const at::Tensor deep = torch::randn({2, 3, 6});
  expect_close(layer(deep), deep.matmul(values.t()) + layer->bias);
  expect_close(layer(x_[0]), x_[0].matmul(values.t()) + layer->bias);
  EXPECT_EQ(rule->products, 3);
  flat(x_);
  flat(deep);
  EXPECT_EQ(flat_rule->products, 2);
}

TEST_F(MarkedWeight, EveryProductAppliesTheRule) {
  const at::Tensor tall = torch::randn({4, 3}), bias = torch::randn({4}), deep = torch::randn({2, 6, 5});
  const at::Tensor table = torch::randn({2, 3});
  const std::vector<std::pair<at::Tensor, at::Tensor>> cases = {
      {torch::linear(x_, weight_, bias), x_.matmul(values_.t()) + bias},
      {torch::linear(x_, weight_), x_.matmul(values_.t())},
      {x_.matmul(weight_.t()), x_.matmul(values_.t())},
      {x_[0].matmul(weight_.t()), x_[0].matmul(values_.t())},
      {tall.t().matmul(weight_), tall.t().matmul(values_)},
      {weight_.matmul(x_.t()), values_.matmul(x_.t())},
      {weight_.matmul(deep), values_.matmul(deep)},
      {weight_.matmul(x_[0]), values_.matmul(x_[0])},
      {weight_.t().matmul(tall), values_.t().matmul(tall)},
      {torch::mm(x_, weight_.t()), x_.mm(values_.t())},
      {torch::mm(weight_, x_.t()), values_.mm(x_.t())},
      {torch::mv(weight_, x_[0]), values_.mv(x_[0])},
      {torch::addmm(bias, x_, weight_.t()), x_.mm(values_.t()) + bias},
      {torch::addmm(table[0], weight_, x_.t(), 0.5, 2), table[0] * 0.5 + values_.mm(x_.t()) * 2},
      {torch::addmm(torch::full({1}, NAN), x_, weight_.t(), 0, 1), x_.mm(values_.t())},
      {torch::addmv(bias, weight_, x_[0], 2, 3), bias * 2 + values_.mv(x_[0]) * 3},
      {torch::einsum("bi,oi->bo", {x_, weight_}), x_.mm(values_.t())},
      {torch::einsum("oi,...i->...o", {weight_, x_}), x_.mm(values_.t())},
      {torch::linear(x_, weight_.slice(0, 1, 3)), x_.mm(values_.slice(0, 1, 3).t())},
      {torch::linear(x_, weight_.detach()), x_.mm(values_.t())},
      {torch::linear(x_, weight_.clone()), x_.mm(values_.t())},
      {torch::linear(x_, weight_.t().contiguous().t()), x_.mm(values_.t())},
      {torch::tensordot(x_, weight_, {1}, {1}), x_.mm(values_.t())},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    expect_close(cases[i].first, cases[i].second);
  }
}

TEST_F(MarkedWeight, OtherOperationsSeePlainValues) {
  const int before = rule_->products;
  const at::Tensor plain = weight_.detach().to(at::kDouble).to(at::kFloat);
  EXPECT_FALSE(is_marked(plain));
  EXPECT_TRUE(at::equal(weight_ + 0, plain));
  EXPECT_FALSE(is_marked(weight_ + 0));
  expect_close(weight_.sum(), plain.sum());
  expect_close(torch::bmm(x_.unsqueeze(0), weight_.t().unsqueeze(0)), x_.mm(plain.t()).unsqueeze(0));
  expect_close(torch::einsum("bi,oi->boi", {x_, weight_}), x_.unsqueeze(1) * plain);
  expect_close(x_.matmul(weight_[0]), x_.matmul(plain[0]));
  expect_close(torch::linear(x_, weight_.to(at::kDouble).to(at::kFloat)), x_.mm(plain.t()));
  EXPECT_TRUE(at::equal(torch::embedding(weight_, torch::tensor({3, 1})),
                        plain.index_select(0, torch::tensor({3, 1}))));
  at::Tensor out = torch::empty({3, 4});
  {
    const torch::NoGradGuard no_grad;
    torch::mm_out(out, x_, weight_.t());
  }
  expect_close(out, x_.mm(plain.t()));
  EXPECT_EQ(rule_->products, before);
}

TEST_F(MarkedWeight, GradientsReachTheLeafAndTheInput) {
  at::Tensor x = x_.clone().set_requires_grad(true), bias = torch::randn({4}).set_requires_grad(true);
  const at::Tensor g = torch::randn({3, 4});
  torch::addmm(bias, x, weight_.t()).backward(g);
  expect_close(weight_.grad(), g.t().mm(x_));
  expect_close(x.grad(), g.mm(values_));
  expect_close(bias.grad(), g.sum(0));
  EXPECT_FALSE(is_marked(weight_.grad()));
  weight_.mutable_grad() = at::Tensor();
  weight_.matmul(x_.t()).backward(g.t());  // from the left
  expect_close(weight_.grad(), g.t().mm(x_));
}

TEST_F(MarkedWeight, TheBackwardPassOfPlainOperationsIsPlain) {
  const int before = rule_->products;
  at::Tensor x = x_.clone().set_requires_grad(true);
  const at::Tensor plain = weight_.detach().to(at::kDouble).to(at::kFloat);
  torch::bmm(x.unsqueeze(0), weight_.t().unsqueeze(0)).sum().backward();
  expect_close(x.grad(), torch::ones({3, 4}).mm(plain));
  x.mutable_grad() = at::Tensor();
  torch::einsum("bi,oi->boi", {x, weight_}).sum().backward();
  expect_close(x.grad(), plain.sum(0).expand({3, 6}));
  EXPECT_EQ(rule_->products, before);
}

TEST_F(MarkedWeight, WithoutGradAndInInferenceModeTheRuleApplies) {
  const at::Tensor expected = x_.mm(values_.t());
  {
    const torch::NoGradGuard no_grad;
    expect_close(torch::linear(x_, weight_), expected);
    expect_close(x_.matmul(weight_.t()), expected);
  }
  const c10::InferenceMode inference;
  expect_close(torch::linear(x_, weight_), expected);
  expect_close(x_.matmul(weight_.t()), expected);
}

TEST_F(MarkedWeight, AutocastCastsTheInputAndKeepsTheRule) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor y = torch::linear(x_, weight_), z = x_.matmul(weight_.t()),
                   unlisted = torch::bmm(x_.unsqueeze(0), weight_.t().unsqueeze(0));
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(unlisted.scalar_type(), at::kBFloat16) << "a plain operation under autocast";
  EXPECT_EQ(rule_->products, 2);
  const at::Tensor expected = x_.to(at::kBFloat16).matmul(values_.to(at::kBFloat16).t());
  EXPECT_TRUE(at::equal(y, expected));
  EXPECT_TRUE(at::equal(z, expected));
}

TEST_F(MarkedWeight, TwoMarkedFactorsUseTheSecondOnesRule) {
  const at::Tensor left = torch::randn({3, 6});
  const auto left_rule = mark(left);
  expect_close(left.matmul(weight_.t()), left.detach().to(at::kDouble).to(at::kFloat).mm(values_.t()));
  EXPECT_EQ(left_rule->products, 0);
  EXPECT_EQ(rule_->products, 1);
}

TEST_F(MarkedWeight, EmptyInputsReachTheRule) {
  const at::Tensor y = torch::linear(torch::empty({0, 6}), weight_);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 4}));
  y.sum().backward();
  EXPECT_TRUE(at::equal(weight_.grad(), torch::zeros({4, 6})));
}

TEST_F(MarkedWeight, ShapesThatDoNotFitNameTheRule) {
  for (const auto& run : std::vector<std::function<void()>>{[&] {
                                                              torch::linear(torch::ones({2, 5}), weight_);
                                                            },
                                                            [&] {
                                                              torch::ones({2, 5}).matmul(weight_.t());
                                                            },
                                                            [&] { weight_.matmul(torch::ones({5})); },
                                                            [&] { torch::linear(torch::ones({}), weight_); }})
    EXPECT_THAT(error_of(run), AllOf(HasSubstr("quarters"), HasSubstr("[4, 6]"), HasSubstr("must be 6")));
  EXPECT_THROW(torch::mm(torch::ones({6}), weight_.t()), c10::Error) << "libtorch's own error";
}

TEST_F(MarkedWeight, WhatCannotBeMarkedIsRefused) {
  const auto rule = std::make_shared<RoundingRule>();
  EXPECT_THAT(error_of([&] { mark_weight({}, rule); }), HasSubstr("an undefined tensor"));
  EXPECT_THAT(error_of([&] { mark_weight(torch::ones({2, 2}), nullptr); }), HasSubstr("no rule"));
  EXPECT_THAT(error_of([&] { mark_weight(torch::ones({2}), rule); }), HasSubstr("only strided matrices"));
  EXPECT_THAT(error_of([&] { mark_weight(torch::ones({2, 2}).to_sparse(), rule); }), HasSubstr("Sparse"));
  EXPECT_THROW(mark_weight(torch::ones({2, 2}, at::kInt), rule), c10::TypeError);
  EXPECT_THAT(error_of([&] { mark_weight(pack(torch::ones({2, 2})), rule); }), HasSubstr("packed"));
}

TEST_F(MarkedWeight, UnmarkingMakesItPlain) {
  unmark_weight(weight_);
  EXPECT_FALSE(is_marked(weight_));
  EXPECT_EQ(weight_rule(weight_), nullptr);
  torch::linear(x_, weight_);
  EXPECT_EQ(rule_->products, 0);
  unmark_weight(weight_);
  unmark_weight({});
}

TEST_F(MarkedWeight, ASecondMarkReplacesTheFirst) {
  const auto second = mark(weight_);
  torch::linear(x_, weight_);
  EXPECT_EQ(rule_->products, 0);
  EXPECT_EQ(second->products, 1);
}

TEST_F(MarkedWeight, WeightsOfOneBufferHaveTheirOwnRules) {
  const at::Tensor buffer = torch::randn({2, 4, 6});
  const at::Tensor first = buffer[0], second = buffer[1];
  const auto first_rule = mark(first), second_rule = mark(second);
  torch::linear(x_, second);
  torch::linear(x_, second.slice(0, 1, 2));
  torch::linear(x_, first);
  EXPECT_EQ(first_rule->products, 1);
  EXPECT_EQ(second_rule->products, 2);
  EXPECT_FALSE(is_marked(buffer));
}

TEST_F(MarkedWeight, OperationsThatChangeItsMemoryKeepTheRule) {
  at::Tensor weight = torch::randn({4, 6});
  const auto rule = mark(weight);
  const at::Tensor other = torch::randn({4, 6});
  weight.set_(other);
  EXPECT_FALSE(is_marked(other));
  torch::linear(x_, weight);
  weight.set_(torch::randn({30}).storage(), 6, {4, 6}, {6, 1});
  torch::linear(x_, weight);
  weight.resize_({8, 6});
  EXPECT_EQ(torch::linear(x_, weight).size(1), 8);
  EXPECT_EQ(rule->products, 3);
  EXPECT_EQ(weight_rule(weight), rule);
  at::Tensor plain = torch::empty({4, 6});
  plain.set_(weight);
  EXPECT_FALSE(is_marked(plain));
}

TEST_F(MarkedWeight, MemoryFromElsewhereIsAnErrorAndNotASilentProduct) {
  at::Tensor weight = torch::randn({4, 6});
  mark(weight);
  weight.unsafeGetTensorImpl()->set_storage_keep_dtype(torch::randn({4, 6}).storage());
  EXPECT_THAT(error_of([&] { torch::linear(x_, weight); }),
              AllOf(HasSubstr("[4, 6]"), HasSubstr("mark it again")));
  mark(weight);
  EXPECT_NO_THROW(torch::linear(x_, weight));
}

TEST_F(MarkedWeight, AWeightThatAViewSharesOutlivesItsTensor) {
  at::Tensor view;
  {
    const at::Tensor weight = torch::randn({4, 6});
    mark(weight);
    view = weight.t();
  }
  EXPECT_NO_THROW(x_.matmul(view));
}

TEST_F(MarkedWeight, TheRuleOfADeadWeightIsFreed) {
  std::weak_ptr<const WeightRule> rule;
  {
    const at::Tensor weight = torch::randn({4, 6});
    rule = mark(weight);
    EXPECT_FALSE(rule.expired());
  }
  mark(torch::randn({4, 6}));
  EXPECT_TRUE(rule.expired());
}

TEST_F(MarkedWeight, ThreadsMayUseIt) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) torch::linear(x_, weight_).sum().item<float>();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(rule_->products, 200);
}

/// A rule that computes only with factors of more than one row.
class RowsRule final : public WeightRule {
 public:
  std::string description() const override { return "rows"; }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const override {
    return at::linear(x, weight, bias) + 100;
  }
  bool computes(const at::Tensor& factor, const at::Tensor& weight) const override {
    EXPECT_FALSE(is_marked(weight) || is_marked(factor));
    return factor.dim() == 2 && factor.size(0) > 1 && factor.size(1) > 1;
  }
  WeightRulePtr for_copy() const override { return std::make_shared<RowsRule>(); }
};

TEST_F(MarkedWeight, ARuleMayLeaveAProductToLibtorch) {
  const at::Tensor plain = torch::randn({4, 3}), weight = plain.clone(), bias = torch::randn(4);
  mark_weight(weight, std::make_shared<RowsRule>());
  const at::Tensor one = torch::randn({1, 3}), vector = one[0], two = torch::randn({2, 3});
  const auto check = [&](const char* name, const auto& product) {
    EXPECT_TRUE(at::equal(product(weight, one), product(plain, one))) << name;
    EXPECT_TRUE(at::allclose(product(weight, two), product(plain, two) + 100)) << name;
  };
  check("linear", [&](const at::Tensor& w, const at::Tensor& x) { return at::linear(x, w, bias); });
  check("matmul", [](const at::Tensor& w, const at::Tensor& x) { return at::matmul(x, w.t()); });
  check("mm", [](const at::Tensor& w, const at::Tensor& x) { return at::mm(w, x.t()); });
  check("addmm", [&](const at::Tensor& w, const at::Tensor& x) { return at::addmm(bias, x, w.t()); });
  check("einsum", [](const at::Tensor& w, const at::Tensor& x) { return at::einsum("bi,oi->bo", {x, w}); });
  EXPECT_TRUE(at::equal(at::mv(weight, vector), at::mv(plain, vector)));
  EXPECT_TRUE(at::equal(at::addmv(bias, weight, vector), at::addmv(bias, plain, vector)));
  // With autocast off for the weight alone, the result would be float32.
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = at::linear(one, weight);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace mantissa::marked_weight_test
