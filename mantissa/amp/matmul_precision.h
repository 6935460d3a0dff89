#pragma once

#include <string>

namespace mantissa {

/// How exactly float32 matrix products are computed, for the whole process; results stay float32.
/// "highest": float32. "high": TF32 on GPUs that have it (Ampere and newer), 10 explicit mantissa bits,
/// several times as fast. "medium": as "high", and oneDNN may use bf16 on CPUs. Convolutions are not touched:
/// TF32 is on for them from the start.
///
/// Threads: one setting for all threads.
/// Errors:  c10::ValueError for any other name, upper case included, where torch only warns (MP-2).
/// Source:  spec section 5.
void set_float32_matmul_precision(const std::string& precision);

/// "highest" (the default), "high" or "medium".
/// Errors: c10::Error from libtorch if the setting was changed through its per-backend interface to something
///         that has no name here.
std::string get_float32_matmul_precision();

/// set_float32_matmul_precision() until the scope ends, also by an exception.
///
/// Threads: the setting is one for the process: do not overlap guards in different threads.
/// Errors:  as the two functions above, before anything is changed.
class Float32MatmulPrecisionGuard {
 public:
  explicit Float32MatmulPrecisionGuard(const std::string& precision);
  ~Float32MatmulPrecisionGuard();
  Float32MatmulPrecisionGuard(const Float32MatmulPrecisionGuard&) = delete;
  Float32MatmulPrecisionGuard& operator=(const Float32MatmulPrecisionGuard&) = delete;

 private:
  std::string previous_;
  // libtorch's own per-backend settings, as text: the name alone cannot tell "never set" from "highest".
  std::string previous_cuda_;
  std::string previous_mkldnn_;
};

}  // namespace mantissa
