#include <gtest/gtest.h>

#include "mantissa/kernels/aten/overrides.h"
#include "opened.h"

namespace {

/// The program's copy was loaded first.
TEST(AProgramsKernels, StayInChargeOfItsPlugins) {
  for (const char* const name : {"one", "unique"}) {
    SCOPED_TRACE(name);
    mantissa::disable_cpu_kernels();
    {
      const Opened plugin(name);
      EXPECT_FALSE(plugin->is_on());
      plugin->enable_by_default();
      EXPECT_FALSE(mantissa::cpu_kernels_enabled()) << "the program switched them off";
      EXPECT_TRUE(plugin->enable());
      EXPECT_TRUE(mantissa::cpu_kernels_enabled());
      EXPECT_TRUE(is_right(step()));
      mantissa::disable_cpu_kernels();
      EXPECT_FALSE(plugin->is_on());
      EXPECT_TRUE(plugin->enable());
    }
    EXPECT_TRUE(mantissa::cpu_kernels_enabled());
    EXPECT_TRUE(is_right(step()));
  }
  EXPECT_FALSE(Opened::is_loaded("one")) << "none of its kernels is registered";
}

}  // namespace
