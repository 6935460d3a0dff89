#include "mantissa/core/rng_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/device.h"

namespace mantissa::rng_state_test {
namespace {

TEST(RngState, TheNextDrawsAreThoseThatWouldHaveCome) {
  torch::manual_seed(5);
  // One normal draw leaves a second one in the generator, which is part of the state.
  at::randn({1});
  const StateDict state = snapshot(rng_state());
  const at::Tensor normal = at::randn({3}), uniform = at::rand({1000}), order = at::randperm(10);
  torch::manual_seed(99);
  at::randn({17});
  load_rng_state(StateReader(state));
  EXPECT_TRUE(at::equal(at::randn({3}), normal));
  EXPECT_TRUE(at::equal(at::rand({1000}), uniform));
  EXPECT_TRUE(at::equal(at::randperm(10), order));
}

TEST(RngState, RefusesOtherBytesAndChangesNothing) {
  torch::manual_seed(5);
  const at::Tensor before = StateReader(rng_state()).at("cpu").to_tensor().clone();
  const auto error_of = [](const StateDict& state) -> std::string {
    try {
      load_rng_state(StateReader(state, "rng"));
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  EXPECT_THAT(error_of({{"cpu", at::zeros({10}, at::kByte)}}), testing::HasSubstr("rng.cpu: is not a state"));
  EXPECT_THAT(error_of({{"cpu", before.to(at::kFloat)}}), testing::HasSubstr("rng.cpu: is not a state"));
  // It has the right length, but is not a state of a Mersenne twister.
  EXPECT_THAT(error_of({{"cpu", at::full_like(before, 255)}}), testing::HasSubstr("rng.cpu: is not a state"));
  EXPECT_EQ(error_of({{"cpu", 3}}), "rng.cpu: is a whole number; a tensor was expected");
  EXPECT_EQ(error_of({}), "rng: 'cpu' is missing; there is nothing");
  if (cuda_device_count() > 0) {
    torch::manual_seed(6);
    const at::Tensor other = StateReader(rng_state()).at("cpu").to_tensor().clone();
    torch::manual_seed(5);
    EXPECT_THAT(error_of({{"cpu", other}, {"cuda", StateList{at::zeros({3}, at::kByte)}}}),
                testing::HasSubstr("rng.cuda.0: is not a state"));
  }
  EXPECT_TRUE(at::equal(StateReader(rng_state()).at("cpu").to_tensor(), before));
}

TEST(RngState, NamesTheGeneratorsThatAreLeftAlone) {
  StateDict state = snapshot(rng_state());
  EXPECT_THAT(load_rng_state(StateReader(state)), testing::IsEmpty());
  const auto devices = static_cast<size_t>(cuda_device_count());
  StateList cuda(devices + 1, at::zeros({16}, at::kByte));
  for (size_t i = 0; i < devices; ++i) cuda[i] = StateReader(state).at("cuda").at(i).to_tensor();
  state["cuda"] = cuda;
  EXPECT_THAT(load_rng_state(StateReader(state)), testing::ElementsAre("cuda:" + std::to_string(devices)));
}

TEST(RngState, TheNextDrawsOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const StateDict state = snapshot(rng_state());
  const at::Tensor want = at::rand({100}, at::kCUDA);
  at::rand({100}, at::kCUDA);
  load_rng_state(StateReader(state));
  EXPECT_TRUE(at::equal(at::rand({100}, at::kCUDA), want));
}

}  // namespace
}  // namespace mantissa::rng_state_test
