#include <atomic>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

#include <torch/library.h>

#include "opened.h"

// Each suite is a separate process, because what a plug-in registers stays for the rest of the process.

namespace {

struct Collect final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
  std::vector<std::string> messages;
};

/// The step runs in a thread that ends. A thread that stays would keep its thread-local objects, and these
/// would keep the plug-in loaded.
void expect_that_a_step_is_right() {
  std::thread([] { EXPECT_TRUE(is_right(step())); }).join();
}

void open_and_close_twice(const std::string& name) {
  for (int time = 0; time < 2; ++time) {
    SCOPED_TRACE(time);
    {
      const Opened plugin(name);
      EXPECT_EQ(plugin->is_on(), time == 1) << "as it was left";
      expect_that_a_step_is_right();
      ASSERT_TRUE(plugin->enable());
      expect_that_a_step_is_right();
    }
    EXPECT_TRUE(Opened::is_loaded(name)) << "the dispatcher has its kernels";
    expect_that_a_step_is_right();
  }
}

TEST(AClosedPlugin, LeavesKernelsThatCanBeCalled) { open_and_close_twice("one"); }

TEST(AClosedPluginWithUniqueSymbols, LeavesKernelsThatCanBeCalled) { open_and_close_twice("unique"); }

/// The graph was recorded while the plug-in was open.
TEST(AClosedPluginsGraph, IsWalkedAfterwards) {
  const at::Tensor x = at::ones({16, 16}).requires_grad_(), weight = at::ones({16, 16}).requires_grad_();
  at::Tensor product;
  {
    const Opened plugin("one");
    ASSERT_TRUE(plugin->enable());
    const Region region;
    product = at::linear(x, weight);
  }
  product.sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({16, 16}, 16)));
  EXPECT_TRUE(at::equal(x.grad(), at::full({16, 16}, 16)));
}

TEST(TwoPlugins, ShareOneSwitch) {
  const Opened first("one");
  ASSERT_TRUE(first->enable());
  const bool is_mixed = casts_no_weight();  // not on every CPU
  {
    const Opened second("two");
    EXPECT_TRUE(second->is_on());
    second->disable();
    EXPECT_FALSE(first->is_on());
    EXPECT_FALSE(casts_no_weight());
    first->enable_by_default();
    second->enable_by_default();
    EXPECT_FALSE(first->is_on()) << "it was switched off by a call";
    EXPECT_TRUE(second->enable());
    EXPECT_TRUE(first->is_on());
    EXPECT_TRUE(is_right(step()));
    EXPECT_EQ(casts_no_weight(), is_mixed);
    bool is_mixed_there = true;
    second->with_separate_casts([](void* result) { *static_cast<bool*>(result) = casts_no_weight(); },
                                &is_mixed_there);
    EXPECT_FALSE(is_mixed_there) << "the first one's kernels heed the second one's SeparateCasts";
  }
  EXPECT_FALSE(Opened::is_loaded("two")) << "none of its kernels is registered";
  EXPECT_TRUE(first->is_on());
  EXPECT_TRUE(is_right(step()));
  EXPECT_EQ(casts_no_weight(), is_mixed);
}

TEST(TwoPlugins, ShareTheChoiceOfKernels) {
  const Opened first("one"), second("two");
  ASSERT_TRUE(first->enable());
  second->pin("generic");
  step();
  EXPECT_THAT(first->choices(), testing::HasSubstr("product=generic"));
  EXPECT_EQ(second->choices(), first->choices());
}

TEST(TheFirstOfTwoPlugins, StaysInChargeWhenItIsClosed) {
  { const Opened first("one"); }
  const Opened second("two");
  EXPECT_TRUE(second->enable());
  EXPECT_TRUE(is_right(step()));
  second->disable();
  EXPECT_FALSE(second->is_on());
  EXPECT_TRUE(is_right(step()));
}

/// The weights belong to formats in two plug-ins, and one set of kernels computes with both.
TEST(PackedWeightsOfTwoPlugins, ShareTheirKernelsAndOutliveThePlugins) {
  at::Tensor one, two;
  {
    const Opened first("one"), second("two");
    one = first->pack_ones();
    two = second->pack_ones();
    EXPECT_TRUE(second->is_packed(one));
    EXPECT_TRUE(first->is_packed(two));
    EXPECT_FALSE(first->is_packed(at::ones({4, 3})));
  }
  const at::Tensor x = at::ones({2, 3}).requires_grad_();
  (at::linear(x, one) + at::linear(x, two)).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({2, 3}, 8)));
  EXPECT_THROW(two.sum(), c10::NotImplementedError);
}

/// The default of one copy does not override a decision made through another copy.
TEST(ALaterPluginsDefault, DoesNotUndoDisable) {
  const Opened first("one"), second("two");
  first->disable();
  second->enable_by_default();
  EXPECT_FALSE(second->is_on());
}

/// The entries of the dispatcher's table that autocast, its gradients and the CPU kernels read are consistent
/// at every moment.
TEST(APluginOpenedBesideThreads, DisturbsNoneOfThem) {
  std::atomic<bool> stop = false;
  std::atomic<int> rounds = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      at::set_num_threads(1);
      while (!stop) {
        if (!is_right(step())) ++wrong;
        ++rounds;
      }
    });
  const auto wait_for = [&](int more) {
    for (const int until = rounds + more; rounds < until;) std::this_thread::yield();
  };
  wait_for(10);
  {
    const Opened plugin("one");
    wait_for(10);
    for (int time = 0; time < 1000; ++time) {
      plugin->enable();
      plugin->disable();
    }
    plugin->enable();
    wait_for(10);
  }
  wait_for(10);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

at::Tensor another_product(const at::Tensor& self, const at::Tensor&) { return at::zeros_like(self); }

/// The dispatcher's warning about the first replaced kernel is kept for other code.
TEST(APluginThatIsOpened, WarnsOfNothingAndUsesNoWarningUp) {
  Collect handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  testing::internal::CaptureStderr();
  {
    const Opened plugin("one");
    plugin->enable();
    plugin->disable();
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(handler.messages, testing::IsEmpty());
  torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  own.impl("mm", TORCH_FN(another_product));
  EXPECT_THAT(handler.messages,
              testing::ElementsAre(testing::HasSubstr("Overriding a previously registered kernel")));
}

}  // namespace
