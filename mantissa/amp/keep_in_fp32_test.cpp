#include "mantissa/amp/keep_in_fp32.h"

#include <atomic>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/autocast_mode.h>

#include "mantissa/amp/kept_weights_internal.h"
#include "mantissa/amp/test_support_internal.h"
#include "mantissa/core/device.h"

namespace mantissa::keep_in_fp32_test {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("body", body);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    hidden = body(x);
    normed = norm(hidden);
    return head(torch::relu(normed));
  }
  torch::nn::Linear body{8, 8};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({8})};
  torch::nn::Linear head{8, 4};
  at::Tensor hidden, normed;
};
TORCH_MODULE(Net);

class KeepInFp32 : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
};

at::Tensor low(const at::Tensor& t) { return t.to(at::kBFloat16); }

TEST_F(KeepInFp32, HeadRunsInFloat32InsideARegion) {
  Net net;
  const auto x = torch::randn({3, 8});
  EXPECT_EQ(keep_in_fp32(*net->head), 2u);
  const Autocast region(at::kCPU);
  const auto y = net(x);
  EXPECT_EQ(net->hidden.scalar_type(), at::kBFloat16);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  const auto inputs = torch::relu(net->normed).to(at::kFloat);
  const Autocast off(at::kCPU, {.enabled = false});
  EXPECT_TRUE(at::equal(y, net->head(inputs)));
}

TEST_F(KeepInFp32, TheOutermostRegionEndsTheWatch) {
  Net net;
  keep_in_fp32(*net->head);
  {
    const Autocast outer(at::kCPU);
    { const Autocast inner(at::kCPU); }
    EXPECT_FALSE(kept_weights::begin_watch()) << "the outer region's continues";
  }
  EXPECT_TRUE(kept_weights::begin_watch());
  kept_weights::end_watch();
}

TEST_F(KeepInFp32, UnmarkedWeightsGiveTheBitsTheyGaveBefore) {
  Net net;
  torch::nn::Conv2d conv(2, 3, 3);
  const auto x = torch::randn({2, 5, 8}), image = torch::randn({1, 2, 6, 6});
  const auto run = [&] {
    const Autocast region(at::kCPU);
    return std::vector<at::Tensor>{net->body(x),
                                   net->norm(low(x)),
                                   conv(image),
                                   at::mm(x[0], x[1].t()),
                                   at::einsum("bij,bkj->bik", {x, x}),
                                   at::cat({x, low(x)})};
  };
  const auto before = run();
  keep_in_fp32(*net->head);
  const auto after = run();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i].scalar_type(), after[i].scalar_type()) << i;
    EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  }
}

TEST_F(KeepInFp32, CastsOfUnmarkedWeightsAreStillCached) {
  Net net;
  keep_in_fp32(*net->head);
  const Autocast region(at::kCPU);
  const auto w = net->body->weight;
  const auto cast = [&] { return at::mm(w, torch::eye(8)).grad_fn()->next_edge(0).function.get(); };
  const auto first = at::mm(w, torch::eye(8));
  EXPECT_EQ(first.grad_fn()->next_edge(0).function.get(), cast());
}

TEST_F(KeepInFp32, BackwardGivesTheGradientsOfFloat32) {
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  const auto gradients = [&](bool in_region) {
    layer->zero_grad();
    const auto leaf = low(torch::ones({3, 8})).requires_grad_();
    at::Tensor loss;
    {
      const Autocast region(at::kCPU, {.enabled = in_region});
      loss = layer(in_region ? leaf : leaf.to(at::kFloat)).pow(2).sum();
    }
    loss.backward();
    EXPECT_EQ(leaf.grad().scalar_type(), at::kBFloat16);
    return std::vector<at::Tensor>{layer->weight.grad().clone(), layer->bias.grad().clone(), leaf.grad()};
  };
  const auto kept = gradients(true), exact = gradients(false);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], exact[i])) << i;
  EXPECT_EQ(kept[0].scalar_type(), at::kFloat);
}

TEST_F(KeepInFp32, BackwardInsideARegionGivesFloat32GradientsToo) {
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  const Autocast region(at::kCPU);
  layer(low(torch::ones({3, 8}))).sum().backward();
  EXPECT_EQ(layer->weight.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(layer->weight.grad(), torch::full({4, 8}, 3.f)));
}

TEST_F(KeepInFp32, NoGradInferenceModeNestedAndDisabledRegions) {
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  const auto x = torch::randn({3, 8});
  const Autocast region(at::kCPU);
  {
    const at::NoGradGuard no_grad;
    EXPECT_EQ(layer(low(x)).scalar_type(), at::kFloat);
  }
  {
    const c10::InferenceMode inference;
    EXPECT_EQ(layer(low(x)).scalar_type(), at::kFloat);
  }
  {
    const Autocast half(at::kCPU, {.dtype = at::kHalf});
    EXPECT_EQ(layer(x.to(at::kHalf)).scalar_type(), at::kFloat);
    EXPECT_EQ(at::mm(x, x.t()).scalar_type(), at::kHalf);
  }
  {
    const Autocast off(at::kCPU, {.enabled = false});
    EXPECT_THROW(layer(low(x)), c10::Error);  // as without autocast: operations run in the dtypes given
    const Autocast on(at::kCPU);
    EXPECT_EQ(layer(low(x)).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(layer(low(x)).scalar_type(), at::kFloat);
  EXPECT_EQ(at::mm(x, x.t()).scalar_type(), at::kBFloat16);
}

TEST_F(KeepInFp32, Float64InputsRaiseAsTheyDoWithout) {
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  const Autocast region(at::kCPU);
  EXPECT_THROW(layer(torch::ones({3, 8}, at::kDouble)), c10::Error);
  EXPECT_EQ(layer(torch::ones({3, 8})).scalar_type(), at::kFloat);  // and the throw left nothing switched off
  EXPECT_EQ(at::mm(torch::eye(2), torch::eye(2)).scalar_type(), at::kBFloat16);
}

TEST_F(KeepInFp32, OutsideOfRegionsNothingChanges) {
  torch::nn::Linear layer(8, 4);
  const auto x = torch::randn({3, 8});
  const auto want = layer(x);
  keep_in_fp32(*layer);
  EXPECT_TRUE(at::equal(layer(x), want));
  EXPECT_THROW(layer(low(x)), c10::Error);
  { const Autocast region(at::kCPU); }
  EXPECT_THROW(layer(low(x)), c10::Error);  // the region's end leaves nothing behind
}

TEST_F(KeepInFp32, AnExceptionInTheRegionLeavesNothingBehind) {
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  EXPECT_THROW(
      {
        const Autocast region(at::kCPU);
        throw std::runtime_error("body");
      },
      std::runtime_error);
  EXPECT_THROW(layer(low(torch::ones({1, 8}))), c10::Error);
}

TEST_F(KeepInFp32, UndoReturnsTheModuleToAutocast) {
  torch::nn::Linear layer(8, 4), other(8, 4);
  keep_in_fp32(*layer);
  EXPECT_EQ(undo_keep_in_fp32(*other), 0u);
  EXPECT_EQ(undo_keep_in_fp32(*layer), 2u);
  EXPECT_EQ(undo_keep_in_fp32(*layer), 0u);
  const Autocast region(at::kCPU);
  EXPECT_EQ(layer(torch::ones({1, 8})).scalar_type(), at::kBFloat16);
}

TEST_F(KeepInFp32, UndoInsideARegionIsSeenAndMarkingTwiceCountsOnce) {
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  keep_in_fp32(*layer);
  const Autocast region(at::kCPU);
  EXPECT_EQ(layer(torch::ones({1, 8})).scalar_type(), at::kFloat);
  EXPECT_EQ(undo_keep_in_fp32(*layer), 2u);
  EXPECT_EQ(layer(torch::ones({1, 8})).scalar_type(), at::kBFloat16);
}

TEST_F(KeepInFp32, FollowsOptimizerStepsSetDataAndConversion) {
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  torch::optim::AdamW optimizer(layer->parameters(), 0.1);
  const auto x = low(torch::randn({3, 8}));
  const auto dtype = [&] {
    const Autocast region(at::kCPU);
    return layer(x).scalar_type();
  };
  {
    const Autocast region(at::kCPU);
    layer(x).sum().backward();
  }
  optimizer.step();
  EXPECT_EQ(dtype(), at::kFloat);
  layer->to(at::kDouble);
  layer->to(at::kFloat);  // gives the same parameter a new storage twice
  EXPECT_EQ(dtype(), at::kFloat);
  layer->weight.set_data(torch::zeros({4, 8}));
  EXPECT_EQ(dtype(), at::kFloat);
  layer->to(at::kBFloat16);  // a 16-bit weight is cast up as well
  EXPECT_EQ(dtype(), at::kFloat);
}

TEST_F(KeepInFp32, ClonesAreUnmarked) {
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer->clone());
  const Autocast region(at::kCPU);
  EXPECT_EQ(copy->forward(torch::ones({1, 8})).scalar_type(), at::kBFloat16);
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    register_module("embedding", embedding);
    weight = register_parameter("weight", embedding->weight);
  }
  at::Tensor forward(const at::Tensor& ids) { return at::linear(embedding(ids), weight); }
  torch::nn::Embedding embedding{5, 8};
  at::Tensor weight;
};
TORCH_MODULE(Tied);

TEST_F(KeepInFp32, TiedWeightsAreKeptInBothPlaces) {
  for (const char* pattern : {"embedding", "weight", "*weight"}) {
    Tied net;
    EXPECT_EQ(keep_in_fp32(*net, pattern), 1u) << pattern;
    const Autocast region(at::kCPU);
    EXPECT_EQ(net(torch::tensor({1, 4})).scalar_type(), at::kFloat) << pattern;
  }
}

// Flat buffers put many weights into one storage; only the bytes of the marked weight are kept.
TEST_F(KeepInFp32, NeighboursInOneStorageAreNotKept) {
  torch::nn::Linear a(8, 4), b(8, 4);
  const auto flat = torch::randn({64});
  a->weight.set_data(flat.slice(0, 0, 32).view({4, 8}));
  b->weight.set_data(flat.slice(0, 32, 64).view({4, 8}));
  keep_in_fp32(*a);
  const Autocast region(at::kCPU);
  EXPECT_EQ(a(torch::ones({1, 8})).scalar_type(), at::kFloat);
  EXPECT_EQ(b(torch::ones({1, 8})).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::mm(flat.view({8, 8}), torch::eye(8)).scalar_type(), at::kBFloat16);
}

// It has no bytes, so it is no part of the weight at whose end it lies, nor of the next one in the storage.
TEST_F(KeepInFp32, AnEmptySliceIsNotKept) {
  torch::nn::Linear a(8, 4);
  keep_in_fp32(*a);
  const Autocast region(at::kCPU);
  const at::Tensor x = torch::ones({1, 4});
  EXPECT_EQ(at::mm(x, a->weight.slice(1, 0, 2)).scalar_type(), at::kFloat);
  for (const int64_t place : {0, 3, 8})
    EXPECT_EQ(at::mm(x, a->weight.slice(1, place, place)).scalar_type(), at::kBFloat16) << place;
}

TEST_F(KeepInFp32, PatternsNameWeightsAndModules) {
  Net net;
  EXPECT_EQ(keep_in_fp32(*net, "head"), 2u);
  EXPECT_EQ(keep_in_fp32(*net, "h??d"), 2u);
  EXPECT_EQ(keep_in_fp32(*net, "*.bias"), 3u);
  EXPECT_EQ(keep_in_fp32(*net, "*"), 6u);
  EXPECT_EQ(undo_keep_in_fp32(*net), 6u);
  EXPECT_EQ(keep_in_fp32(*net, "head.*"), 2u);
  EXPECT_EQ(undo_keep_in_fp32(*net), 2u);
  const char* pattern = "body.weight";  // a char pointer must not convert to bool
  EXPECT_EQ(keep_in_fp32(*net, pattern), 1u);
  const Autocast region(at::kCPU);
  EXPECT_EQ(net->body(torch::ones({1, 8})).scalar_type(), at::kFloat);
  EXPECT_EQ(net->head(torch::ones({1, 8})).scalar_type(), at::kBFloat16);
}

TEST_F(KeepInFp32, NoMatchIsAnErrorWithTheNearestName) {
  Net net;
  expect_error<c10::ValueError>([&] { keep_in_fp32(*net, "heads"); }, "did you mean 'head'?");
  expect_error<c10::ValueError>([&] { keep_in_fp32(*net, ""); }, "'' is the name of no weight");
  expect_error<c10::ValueError>([&] { keep_in_fp32(*net, "hea"); }, "no weight of");
  torch::nn::Softmax softmax(1);
  expect_error<c10::ValueError>([&] { keep_in_fp32(*softmax); }, "wrap its call in in_fp32(...)");
}

TEST_F(KeepInFp32, FilesOfAMarkedModuleAreStock) {
  Net net;
  const auto bytes = [&] {
    std::ostringstream out;
    torch::save(net, out);
    return out.str();
  };
  const auto before = bytes();
  keep_in_fp32(*net);
  const Autocast region(at::kCPU);
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(net->head->weight.toString(), "CPUFloatType");
  Net loaded;
  std::istringstream in(before);
  torch::load(loaded, in);
  EXPECT_TRUE(at::equal(loaded->head->weight, net->head->weight));
  EXPECT_EQ(loaded->head(torch::ones({1, 8})).scalar_type(), at::kBFloat16);
}

TEST_F(KeepInFp32, LoadingIntoAMarkedModuleKeepsTheMark) {
  Net net, other;
  keep_in_fp32(*net->head);
  std::stringstream file;
  torch::save(other, file);
  torch::load(net, file);
  const Autocast region(at::kCPU);
  EXPECT_EQ(net->head(torch::ones({1, 8})).scalar_type(), at::kFloat);
}

TEST_F(KeepInFp32, DeadWeightsAreForgotten) {
  c10::weak_intrusive_ptr<c10::TensorImpl> weight(c10::intrusive_ptr<c10::TensorImpl>{});
  {
    torch::nn::Linear layer(8, 4);
    keep_in_fp32(*layer);
    weight = c10::weak_intrusive_ptr<c10::TensorImpl>(layer->weight.getIntrusivePtr());
  }
  EXPECT_TRUE(weight.expired());
  EXPECT_GE(weight.weak_use_count(), 2u);
  EXPECT_FALSE(kept_weights::begin_watch()) << "nothing is left to watch for";
  EXPECT_EQ(weight.weak_use_count(), 1u);
}

TEST_F(KeepInFp32, EveryThreadsRegionsSeeIt) {
  torch::nn::Linear kept(8, 4), other(8, 4);
  keep_in_fp32(*kept);
  const auto x = low(torch::randn({3, 8}));
  const auto want = kept(x.to(at::kFloat));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) {
        torch::nn::Linear own(8, 4);
        keep_in_fp32(*own);  // marks come and go while other threads look
        const Autocast region(at::kCPU);
        wrong += !at::equal(kept(x), want);
        wrong += own(x).scalar_type() != at::kFloat;
        wrong += other(x).scalar_type() != at::kBFloat16;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(KeepInFp32, TrainsWithAScalerAndAccumulation) {
  Net net;
  keep_in_fp32(*net, "head");
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  GradScaler scaler(at::kCPU, {.init_scale = 1024});
  const auto x = torch::randn({8, 8}), y = torch::randn({8, 4});
  std::vector<float> losses;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    for (int part = 0; part < 2; ++part) {
      at::Tensor loss;
      {
        const Autocast region(at::kCPU, {.dtype = at::kHalf});
        loss = torch::mse_loss(net(x), y);
      }
      losses.push_back(loss.item<float>());
      scaler.scale(loss / 2).backward();
    }
    EXPECT_EQ(net->head->weight.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
  }
  EXPECT_GT(losses.front(), losses.back());
}

TEST_F(KeepInFp32, RegistrationWarnsOfNothing) {
  Warnings warnings;
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  const Autocast region(at::kCPU);
  layer(torch::ones({1, 8}));
  EXPECT_THAT(warnings.texts, testing::IsEmpty());
}

TEST_F(KeepInFp32, OnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  Net net;
  keep_in_fp32(*net, "head");
  net->to(at::kCUDA);
  const auto x = torch::randn({3, 8}, at::kCUDA).requires_grad_();
  at::Tensor y;
  {
    const Autocast region(at::kCUDA);
    y = net(x);
    EXPECT_EQ(net->hidden.scalar_type(), at::kHalf);
    const Autocast cpu(at::kCPU, {.enabled = false});
    EXPECT_EQ(net(x).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  y.sum().backward();  // on autograd's thread of the device
  EXPECT_EQ(net->head->weight.grad().scalar_type(), at::kFloat);
}

TEST(InFp32, CastsTreesAndSwitchesAutocastOff) {
  const auto x = torch::randn({2, 2}, at::kBFloat16), mask = torch::ones({2}, at::kBool);
  const auto check = [&](at::ScalarType products) {
    const auto out = in_fp32(
        [&](const std::vector<at::Tensor>& list, const at::Tensor& d, int64_t n) {
          EXPECT_EQ(list[0].scalar_type(), at::kFloat);
          EXPECT_EQ(list[1].scalar_type(), at::kBool);
          EXPECT_EQ(d.scalar_type(), at::kDouble);
          return at::mm(list[0], list[0]) * n;
        },
        std::vector<at::Tensor>{x, mask}, torch::ones({1}, at::kDouble), int64_t{2});
    EXPECT_EQ(out.scalar_type(), at::kFloat);
    EXPECT_EQ(at::mm(x.to(at::kFloat), x.to(at::kFloat)).scalar_type(), products);
  };
  check(at::kFloat);
  const Autocast region(at::kCPU);
  check(at::kBFloat16);
  EXPECT_EQ(x.scalar_type(), at::kBFloat16);
}

TEST(InFp32, CarriesGradientsAndRestoresAfterAThrow) {
  const auto x = torch::ones({2, 2}, at::kBFloat16).requires_grad_();
  const Autocast region(at::kCPU);
  in_fp32([](const at::Tensor& t) { return t.softmax(-1); }, x).select(1, 0).sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_THROW(in_fp32([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("body"); }, x),
               std::runtime_error);
  EXPECT_EQ(at::mm(x, x.to(at::kFloat)).scalar_type(), at::kBFloat16);
}

TEST_F(KeepInFp32, AFunctionInFp32RunsWithoutAutocastOfEitherDevice) {
  for (const auto device : {at::kCPU, at::kCUDA}) at::autocast::set_autocast_enabled(device, true);
  const bool any_inside = in_fp32([] {
    return at::autocast::is_autocast_enabled(at::kCPU) || at::autocast::is_autocast_enabled(at::kCUDA);
  });
  EXPECT_FALSE(any_inside);
  for (const auto device : {at::kCPU, at::kCUDA}) {
    EXPECT_TRUE(at::autocast::is_autocast_enabled(device));
    at::autocast::set_autocast_enabled(device, false);
  }
}

TEST_F(KeepInFp32, APieceThatBeginsBeforeTheWeightIsNotKept) {
  torch::nn::Linear layer(torch::nn::LinearOptions(3, 1).bias(false));
  const auto flat = torch::randn({8});
  layer->weight.set_data(flat.slice(0, 5, 8).view({1, 3}));
  keep_in_fp32(*layer);
  const Autocast region(at::kCPU);
  EXPECT_EQ(layer(torch::ones({1, 3})).scalar_type(), at::kFloat);
  EXPECT_EQ(at::mm(torch::ones({1, 4}), flat.slice(0, 4, 8).view({4, 1})).scalar_type(), at::kBFloat16);
}

TEST_F(KeepInFp32, TheFormerStorageOfAWeightIsNotKept) {
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  const Autocast region(at::kCPU);
  const at::Tensor former = layer->weight.detach();
  layer->weight.set_data(layer->weight.detach().clone());
  EXPECT_EQ(at::linear(torch::ones({1, 8}), former).scalar_type(), at::kBFloat16);
}

TEST_F(KeepInFp32, IntegerBuffersAreNotCounted) {
  torch::nn::BatchNorm1d norm(4);
  EXPECT_EQ(keep_in_fp32(*norm), 4u) << "weight, bias, mean and variance, and not the number of batches";
}

}  // namespace
}  // namespace mantissa::keep_in_fp32_test
