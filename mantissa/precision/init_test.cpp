#include "mantissa/precision/init.h"

#include <array>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/precision/registry.h"

namespace mantissa::init_test {
namespace {

TEST(InitModule, IN11_MakesTheModuleInItsDtype) {
  for (const Mode& mode : modes()) {
    const auto precision = make_precision(mode.name, at::kCPU);
    const auto net = init_module(*precision, at::kCPU, [] { return torch::nn::BatchNorm1d(2); });
    const Format wanted =
        mode.traits.frozen_weights ? mode.traits.compute : mode.traits.weights.value_or(Format::kFloat32);
    EXPECT_EQ(format_of(net->weight.scalar_type()), wanted) << mode.name;
    EXPECT_EQ(net->num_batches_tracked.scalar_type(), at::kLong);
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat) << mode.name;
  }
}

TEST(InitModule, RestoresTheDefaultDtypeWhenTheModulesConstructorThrows) {
  const auto precision = make_precision("bf16-true", at::kCPU);
  const auto failing = []() -> torch::nn::Linear { throw std::runtime_error("no such layer"); };
  EXPECT_THROW(init_module(*precision, at::kCPU, failing), std::runtime_error);
  EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat);
}

/// Returns how many bytes init_module() adds to a process's peak resident set while it makes `layers` times
/// Linear(4096, 4096), and the size of the weights; zeros if it fails.
std::array<int64_t, 2> peak_and_weights(const char* mode, int layers) {
  std::array<int64_t, 2> found{};
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return found;
  const pid_t child = fork();
  if (child == 0) {
    at::set_num_threads(1);  // a forked process has none of the other threads
    const auto precision = make_precision(mode, at::kCPU);
    const auto make = [&](int64_t width, int count) {
      auto net = init_module(*precision, at::kCPU, [&] {
        torch::nn::Sequential all;
        for (int i = 0; i < count; ++i) all->push_back(torch::nn::Linear(width, width));
        return all;
      });
      precision->convert_module(*net);  // as Trainer does after configure_model(): nothing is left to convert
      return net;
    };
    make(256, 1);  // the pages of libtorch's code that this reads count as memory, 12 MB on some machines
    const int64_t before = peak_memory_bytes(at::kCPU);
    const auto net = make(4096, layers);
    found[0] = peak_memory_bytes(at::kCPU) - before;
    for (const at::Tensor& parameter : net->parameters())
      found[1] += static_cast<int64_t>(parameter.nbytes());
    _exit(write(ends[1], found.data(), sizeof found) == sizeof found ? 0 : 1);
  }
  close(ends[1]);
  if (read(ends[0], found.data(), sizeof found) != sizeof found) found = {};
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return found;
}

TEST(InitModule, IN11_MakesALargeModuleInNoMoreMemoryThanItsWeights) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory would be measured with it";
#endif
  for (const auto& [mode, layers] : {std::pair{"bf16-true", 15}, {"16-true", 4}, {"32-true", 2}}) {
    const auto [peak, weights] = peak_and_weights(mode, layers);
    ASSERT_GT(weights, layers * 4096 * 4096 * 2) << mode;
    EXPECT_LE(static_cast<double>(peak), 1.1 * static_cast<double>(weights)) << mode;
    EXPECT_GT(static_cast<double>(peak), 0.9 * static_cast<double>(weights)) << mode << ": was it measured?";
    RecordProperty(std::string(mode) + " peak bytes", std::to_string(peak));
    RecordProperty(std::string(mode) + " weight bytes", std::to_string(weights));
  }
}

TEST(InitModule, IN12_AsksTheModuleToMove) {
  struct Moves : torch::nn::Module {
    void to(at::Device device, bool /*non_blocking*/) override { asked = device; }
    std::optional<at::Device> asked;
  };
  const auto precision = make_precision("bf16-true", at::kCPU);
  const auto net =
      init_module(*precision, at::Device(at::kCUDA, 1), [] { return std::make_shared<Moves>(); });
  EXPECT_EQ(net->asked, at::Device(at::kCUDA, 1));
}

TEST(InitModule, IN12_PlacesItOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const auto precision = make_precision("bf16-true", at::kCUDA);
  const auto net = init_module(*precision, at::Device(at::kCUDA, 0), [] { return torch::nn::Linear(2, 2); });
  EXPECT_TRUE(net->weight.is_cuda());
  EXPECT_EQ(net->weight.scalar_type(), at::kBFloat16);
}

TEST(TensorInit, IN02_ExplicitDtypesWinAndScopesEnd) {
  const auto precision = make_precision("64-true", at::kCPU);
  {
    const TensorInit scope(*precision);
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kDouble);
    EXPECT_EQ(torch::ones(1, at::kHalf).scalar_type(), at::kHalf);
    const ModuleInit inner(*make_precision("16-true", at::kCPU));
    EXPECT_EQ(torch::nn::Linear(2, 2)->weight.scalar_type(), at::kHalf);
  }
  EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace mantissa::init_test
