// Where ONEDNN_MAX_CPU_ISA simulates a smaller CPU, at::_scaled_mm() would throw: libtorch asks the CPU itself whether oneDNN can
// use its AMX, and oneDNN then refuses. Without oneDNN it computes as on that smaller CPU.
#include <cstdlib>
#include <gtest/gtest.h>

#include <ATen/Context.h>

namespace mantissa {
namespace {

class LimitedOneDnn final : public testing::Environment {
 public:
  void SetUp() override {
    if (std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr) at::globalContext().setUserEnabledMkldnn(false);
  }
};

[[maybe_unused]] const testing::Environment* const environment = testing::AddGlobalTestEnvironment(
    new LimitedOneDnn);  // NOLINT(cppcoreguidelines-owning-memory): gtest owns it

}  // namespace
}  // namespace mantissa
