#include "mantissa/amp/matmul_precision.h"

#include <vector>

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

using at::Float32Backend;
using at::Float32Op;

const std::vector<std::string>& precision_names() {
  static const std::vector<std::string> names = {"highest", "high", "medium"};
  return names;
}

/// Returns the backend's own setting for `op`, or "none" if it inherits its parent's: writing it back
/// restores the setting.
std::string restorable_setting(Float32Backend backend, Float32Op op) {
  const auto& context = at::globalContext();
  const auto precision = context.float32Precision(backend, op);
  // Reading resolves inheritance, so a value that equals the parent's is restored as inherited. It reads the
  // same.
  const auto parent = context.float32Precision(backend, Float32Op::ALL);
  return at::precision2str(precision == parent ? at::Float32Precision::NONE : precision);
}

void restore_setting(Float32Backend backend, Float32Op op, const std::string& precision) {
  at::globalContext().setFloat32Precision(backend, op, at::str2precision(precision));
}

}  // namespace

void check_float32_matmul_precision(const std::string& precision) {
  for (const auto& name : precision_names()) {
    if (name == precision) return;
  }
  TORCH_CHECK_VALUE(false, "set_float32_matmul_precision: '", precision, "' is not one of ",
                    join_names(precision_names()), did_you_mean(precision, precision_names()));
}

void set_float32_matmul_precision(const std::string& precision) {
  check_float32_matmul_precision(precision);
  at::globalContext().setFloat32MatmulPrecision(precision);
}

std::string get_float32_matmul_precision() {
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      return "highest";
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
  }
  TORCH_INTERNAL_ASSERT(false,
                        "get_float32_matmul_precision: libtorch has a precision unknown to this version");
}

Float32MatmulPrecisionGuard::Float32MatmulPrecisionGuard(const std::string& precision)
    : previous_(get_float32_matmul_precision()),
      previous_cuda_(restorable_setting(Float32Backend::CUDA, Float32Op::MATMUL)),
      previous_mkldnn_(restorable_setting(Float32Backend::MKLDNN, Float32Op::MATMUL)) {
  set_float32_matmul_precision(precision);
}

Float32MatmulPrecisionGuard::~Float32MatmulPrecisionGuard() {
  at::globalContext().setFloat32MatmulPrecision(previous_);
  restore_setting(Float32Backend::CUDA, Float32Op::MATMUL, previous_cuda_);
  restore_setting(Float32Backend::MKLDNN, Float32Op::MATMUL, previous_mkldnn_);
}

void set_tf32_convolutions(bool allow) { at::globalContext().setAllowTF32CuDNN(allow); }

bool tf32_convolutions() {
  return at::globalContext().float32Precision(Float32Backend::CUDA, Float32Op::CONV) ==
         at::Float32Precision::TF32;
}

Tf32ConvolutionsGuard::Tf32ConvolutionsGuard(bool allow)
    : previous_(at::globalContext().allowTF32CuDNN()),
      previous_conv_(restorable_setting(Float32Backend::CUDA, Float32Op::CONV)),
      previous_rnn_(restorable_setting(Float32Backend::CUDA, Float32Op::RNN)) {
  set_tf32_convolutions(allow);
}

Tf32ConvolutionsGuard::~Tf32ConvolutionsGuard() {
  set_tf32_convolutions(previous_);
  restore_setting(Float32Backend::CUDA, Float32Op::CONV, previous_conv_);
  restore_setting(Float32Backend::CUDA, Float32Op::RNN, previous_rnn_);
}

}  // namespace mantissa
