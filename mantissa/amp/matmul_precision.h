#pragma once

#include <string>

namespace mantissa {

/// Sets how exactly float32 matrix products are computed, for the whole process; results stay float32.
/// "highest": float32. "high": TF32 on GPUs that have it (Ampere and newer), with 10 explicit mantissa bits,
/// several times as fast; oneDNN may use TF32 on CPUs with AMX-FP16. "medium": as "high", and oneDNN may use
/// bf16 on CPUs, and may change the rounding of float32 products on CPUs with AVX-512. Convolutions do not
/// follow it (see set_tf32_convolutions()). The setting changes nothing on other GPUs; "high" changes nothing
/// on CPUs without AMX-FP16, and "medium" on CPUs without AVX-512.
///
/// Threads: one setting for all threads.
/// Errors:  c10::ValueError for any other name, upper case included, for which torch only warns.
/// Source:  torch.set_float32_matmul_precision.
void set_float32_matmul_precision(const std::string& precision);

/// Errors: c10::ValueError for a name that set_float32_matmul_precision() does not accept.
void check_float32_matmul_precision(const std::string& precision);

/// Returns "highest" (the default), "high" or "medium".
/// Errors: c10::Error from libtorch if its per-backend interface has changed the setting to a value without a
///         name here.
std::string get_float32_matmul_precision();

/// Calls set_float32_matmul_precision() and restores the setting when the scope ends, also after an
/// exception.
///
/// Threads: the setting belongs to the process: do not overlap guards in different threads.
/// Errors:  those of the two functions above, before anything is changed.
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

/// Sets whether CUDA's convolutions and recurrent layers (cuDNN) compute float32 in TF32, for the whole
/// process. Unlike for matrix products, the default is on. If off, they compute in float32, unless libtorch's
/// setting for all of CUDA says tf32.
///
/// Threads: one setting for all threads.
/// Source:  torch.backends.cudnn.allow_tf32.
void set_tf32_convolutions(bool allow);

/// Whether convolutions use TF32 now.
bool tf32_convolutions();

/// Calls set_tf32_convolutions() and restores the setting when the scope ends, also after an exception.
///
/// Threads: as Float32MatmulPrecisionGuard.
/// Errors:  c10::Error from libtorch, before anything is changed, if its per-operation interface has given
///          convolutions and recurrent layers different settings.
class Tf32ConvolutionsGuard {
 public:
  explicit Tf32ConvolutionsGuard(bool allow);
  ~Tf32ConvolutionsGuard();
  Tf32ConvolutionsGuard(const Tf32ConvolutionsGuard&) = delete;
  Tf32ConvolutionsGuard& operator=(const Tf32ConvolutionsGuard&) = delete;

 private:
  bool previous_;
  // Stored as text, for the reason above; "off" may be "ieee" or inherited.
  std::string previous_conv_;
  std::string previous_rnn_;
};

}  // namespace mantissa
