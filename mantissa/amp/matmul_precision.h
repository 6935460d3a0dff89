#pragma once

#include <string>

namespace mantissa {

/// How exactly float32 matrix products are computed, for the whole process; results stay float32.
/// "highest": float32. "high": TF32 on GPUs that have it (Ampere and newer), 10 explicit mantissa bits,
/// several times as fast. "medium": as "high", and oneDNN may use bf16 on CPUs. Convolutions are not touched:
/// see set_tf32_convolutions(). On other devices, such as CPUs without AMX, the setting changes nothing.
///
/// Threads: one setting for all threads.
/// Errors:  c10::ValueError for any other name, upper case included, where torch only warns (MP-2).
/// Source:  spec section 5.
void set_float32_matmul_precision(const std::string& precision);

/// Errors: c10::ValueError for a name that set_float32_matmul_precision() does not take.
void check_float32_matmul_precision(const std::string& precision);

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

/// Whether CUDA's convolutions and recurrent layers (cuDNN) compute float32 in TF32, for the whole process;
/// on from the start, unlike matrix products. Off: in float32, unless libtorch's setting for all of CUDA says
/// tf32.
///
/// Threads: one setting for all threads.
/// Source:  spec MP-3; torch.backends.cudnn.allow_tf32.
void set_tf32_convolutions(bool allow);

/// Whether convolutions use TF32 now.
bool tf32_convolutions();

/// set_tf32_convolutions() until the scope ends, also by an exception.
///
/// Threads: as Float32MatmulPrecisionGuard.
/// Errors:  c10::Error from libtorch, before anything is changed, if convolutions and recurrent layers were
///          set apart through its per-operation interface.
class Tf32ConvolutionsGuard {
 public:
  explicit Tf32ConvolutionsGuard(bool allow);
  ~Tf32ConvolutionsGuard();
  Tf32ConvolutionsGuard(const Tf32ConvolutionsGuard&) = delete;
  Tf32ConvolutionsGuard& operator=(const Tf32ConvolutionsGuard&) = delete;

 private:
  bool previous_;
  // As text, for the reason above; off may be "ieee" or inherited.
  std::string previous_conv_;
  std::string previous_rnn_;
};

}  // namespace mantissa
