#include "mantissa/core/default_dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <latch>
#include <stdexcept>
#include <thread>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::default_dtype_test {
namespace {

TEST(DefaultDtypeGuard, IN03_RestoresWhenTheBodyThrows) {
  const auto before = torch::get_default_dtype();
  try {
    DefaultDtypeGuard guard(at::kBFloat16);
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kBFloat16);
    throw std::runtime_error("body");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(torch::get_default_dtype(), before);
}

TEST(DefaultDtypeGuard, NestsAndCapturesOnEntry) {
  DefaultDtypeGuard outer(at::kDouble);
  {
    DefaultDtypeGuard inner(at::kHalf);
    EXPECT_EQ(torch::nn::Linear(2, 2)->weight.scalar_type(), at::kHalf);
  }
  EXPECT_EQ(torch::ones(1).scalar_type(), at::kDouble);
}

TEST(DefaultDtypeGuard, RefusesIntegersAndChangesNothing) {
  const auto before = torch::get_default_dtype();
  EXPECT_THROW(DefaultDtypeGuard guard(at::kInt), c10::ValueError);
  EXPECT_EQ(torch::get_default_dtype(), before);
}

TEST(DefaultDtypeGuard, IN04_OtherThreadsSeeIt) {
  const DefaultDtypeGuard guard(at::kDouble);
  at::ScalarType seen{};
  std::thread([&] { seen = torch::ones(1).scalar_type(); }).join();
  EXPECT_EQ(seen, at::kDouble);
}

/// Holds a scope in a thread of its own.
class ThreadWithScope {
 public:
  explicit ThreadWithScope(at::ScalarType dtype)
      : thread_([this, dtype] {
          const DefaultDtypeGuard guard(dtype);
          began_.count_down();
          ends_.wait();
        }) {
    began_.wait();
  }
  ~ThreadWithScope() { end(); }
  void end() {
    if (!thread_.joinable()) return;
    ends_.count_down();
    thread_.join();
  }

 private:
  std::latch began_{1}, ends_{1};
  std::thread thread_;
};

TEST(DefaultDtypeGuard, ScopesOfTwoThreadsMayEndInAnyOrder) {
  const auto before = torch::get_default_dtype();
  for (const bool the_first_ends_first : {true, false}) {
    ThreadWithScope first(at::kBFloat16), second(at::kBFloat16);
    (the_first_ends_first ? first : second).end();
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kBFloat16) << "the other has not ended";
    (the_first_ends_first ? second : first).end();
    EXPECT_EQ(torch::get_default_dtype(), before) << the_first_ends_first;
  }
}

TEST(DefaultDtypeGuard, ManyScopesOfTwoThreadsLeaveTheDtypeOfBefore) {
  const auto before = torch::get_default_dtype();
  const auto open_scopes = [] {
    for (int i = 0; i < 1000; ++i) {
      const DefaultDtypeGuard outer(at::kHalf), inner(at::kHalf);
      EXPECT_EQ(torch::get_default_dtype(), caffe2::TypeMeta::Make<at::Half>());
    }
  };
  std::thread other(open_scopes);
  open_scopes();
  other.join();
  EXPECT_EQ(torch::get_default_dtype(), before);
}

TEST(DefaultDtypeGuard, RefusesAnotherDtypeThanThatOfAnotherThread) {
  const auto before = torch::get_default_dtype();
  ThreadWithScope other(at::kBFloat16);
  EXPECT_THAT(error_of([] { const DefaultDtypeGuard guard(at::kHalf); }),
              testing::HasSubstr("Half cannot become the default dtype, because another thread has made it "
                                 "BFloat16"));
  EXPECT_EQ(torch::ones(1).scalar_type(), at::kBFloat16);
  other.end();
  EXPECT_EQ(torch::get_default_dtype(), before);
  EXPECT_NO_THROW(const DefaultDtypeGuard guard(at::kHalf));
}

TEST(DefaultDtypeGuard, IN05_LiteralsFactoriesAndLayersFollow) {
  const DefaultDtypeGuard guard(at::kBFloat16);
  EXPECT_EQ(torch::tensor({0.5}).scalar_type(), at::kBFloat16);
  EXPECT_EQ(torch::tensor({1}).scalar_type(), at::kLong);
  EXPECT_EQ(torch::nn::Linear(1, 1)->weight.scalar_type(), at::kBFloat16);
  const torch::nn::BatchNorm1d norm(1);
  EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);
  EXPECT_EQ(norm->num_batches_tracked.scalar_type(), at::kLong);
}

TEST(DefaultDtypeGuard, IN02_ExplicitDtypesWin) {
  DefaultDtypeGuard guard(at::kHalf);
  EXPECT_EQ(torch::ones(1, at::kFloat).scalar_type(), at::kFloat);
  EXPECT_EQ(torch::nn::BatchNorm1d(2)->num_batches_tracked.scalar_type(), at::kLong);
}

}  // namespace
}  // namespace mantissa::default_dtype_test
