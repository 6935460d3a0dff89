#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <limits>
#include <omp.h>
#include <thread>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/record_function.h>

#include "mantissa/core/clock_internal.h"
#include "mantissa/core/parallel_internal.h"
#include "mantissa/core/signals_blocked_internal.h"
#include "mantissa/kernels/aten/activation_internal.h"
#include "mantissa/kernels/aten/attention_internal.h"
#include "mantissa/kernels/aten/calibration_internal.h"
#include "mantissa/kernels/aten/convolution_internal.h"
#include "mantissa/kernels/aten/low_bit_internal.h"
#include "mantissa/kernels/aten/matmul_internal.h"
#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/aten/unscale_internal.h"

namespace mantissa {
namespace {

namespace aten = kernels::aten;

using at::Tensor;
using Call = std::function<void()>;

/// Returns numbers from -1 to 1. They are not random, so the program's generators do not advance.
Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype) {
  const int64_t count = c10::multiply_integers(sizes);
  return at::linspace(-1, 1, count, at::kFloat).to(dtype).view(sizes);
}

Call product_call(int64_t m, int64_t k, int64_t n, at::ScalarType dtype) {
  const Tensor a = numbers({m, k}, dtype), b = numbers({k, n}, dtype);
  return [=] { aten::matmul::mm(a, b); };
}

Call batched_call(int64_t batch, int64_t m, int64_t k, int64_t n, at::ScalarType dtype) {
  const Tensor a = numbers({batch, m, k}, dtype), b = numbers({batch, k, n}, dtype);
  return [=] { aten::matmul::bmm(a, b); };
}

struct Images {
  int64_t batch, channels, size, groups = 1, stride = 1;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

/// Returns a 3 x 3 convolution with a padding of 1.
Call convolution_call(const Images& images, ConvolutionPass pass, at::ScalarType dtype) {
  const auto [batch, channels, size, groups, stride, format] = images;
  const int64_t out = (size - 1) / stride + 1;
  const auto laid_out = [&, form = format](at::IntArrayRef sizes) {
    return numbers(sizes, dtype).contiguous(form);
  };
  const Tensor x = laid_out({batch, channels, size, size}), w = laid_out({channels, channels / groups, 3, 3}),
               g = laid_out({batch, channels, out, out});
  const std::array<int64_t, 2> strides = {stride, stride}, ones = {1, 1}, zeros = {0, 0};
  if (pass == ConvolutionPass::kForward)
    return [=, groups = groups] {
      aten::convolution::forward(x, w, std::nullopt, strides, ones, ones, false, zeros, groups, false, false,
                                 false, false);
    };
  return [=, groups = groups] {
    aten::convolution::backward(
        g, x, w, at::OptionalIntArrayRef(), strides, ones, ones, false, zeros, groups,
        {pass == ConvolutionPass::kByInput, pass == ConvolutionPass::kByWeight, false});
  };
}

/// kSmall is a call that all kernels can be tried on; kFourSmall has four times as many rows, images or heads; kTypical is a
/// typical call. They are the same where the small call is large enough to judge by.
enum class Size : uint8_t { kSmall, kFourSmall, kTypical };

/// Returns images for the kind of convolution that `family` belongs to.
Images images_of(KernelFamily family, Size size) {
  const auto last = at::MemoryFormat::ChannelsLast, first = at::MemoryFormat::Contiguous;
  const bool typical = size == Size::kTypical;
  const int64_t images = size == Size::kFourSmall ? 4 : 1;
  const auto depthwise = [&](int64_t stride, at::MemoryFormat format) {
    return typical ? Images{4, 64, 32, 64, stride, format} : Images{images, 32, 20, 32, stride, format};
  };
  const auto grouped = [&](at::MemoryFormat format) {
    return typical ? Images{4, 64, 20, 16, 1, format} : Images{images, 32, 12, 8, 1, format};
  };
  const int kind = (static_cast<int>(family) - static_cast<int>(KernelFamily::kConvolution)) / 3;
  switch (static_cast<KernelFamily>(static_cast<int>(KernelFamily::kConvolution) + 3 * kind)) {
    case KernelFamily::kConvolution:
      return typical ? Images{4, 64, 16} : Images{images, 32, 12};
    case KernelFamily::kSmallConvolution:
      return {images, 32, 12};
    case KernelFamily::kGroupedConvolution:
      return grouped(first);
    case KernelFamily::kGroupedConvolutionLast:
      return grouped(last);
    case KernelFamily::kDepthwise:
      return depthwise(1, first);
    case KernelFamily::kStridedDepthwise:
      return depthwise(2, first);
    case KernelFamily::kDepthwiseLast:
      return depthwise(1, last);
    case KernelFamily::kLargeDepthwiseLast:
      return typical ? Images{3, 64, 56, 64, 1, last} : depthwise(1, last);
    default:
      return depthwise(2, last);
  }
}

/// True for large products with 4-bit weights in float32. There tiles and AVX-512 take about the same time while another
/// program uses the core's other hyperthread, and tiles two thirds of it otherwise.
bool is_close_between_tiers(KernelFamily family, at::ScalarType dtype) {
  return dtype == at::kFloat &&
         (family == KernelFamily::kLargeProduct4Bit || family == KernelFamily::kLargeGradient4Bit);
}

/// True if a small call says too little: it measures mostly overhead, and libtorch's kernels have more of it.
bool has_two_sizes(KernelFamily family, at::ScalarType dtype) {
  switch (family) {
    case KernelFamily::kSmallProduct:
    case KernelFamily::kFewRows:
    case KernelFamily::kDot:
    case KernelFamily::kSmallConvolution:
    case KernelFamily::kSmallConvolutionByInput:
    case KernelFamily::kSmallConvolutionByWeight:
    case KernelFamily::kGelu:
    case KernelFamily::kGeluBackward:
    case KernelFamily::kUnscale:
    case KernelFamily::kFewRows4Bit:
      return false;
    default:
      return !is_close_between_tiers(family, dtype);
  }
}

Call attention_call(int64_t heads, int64_t tokens, int64_t width, bool backward, at::ScalarType dtype) {
  const Tensor q = numbers({1, heads, tokens, width}, dtype);
  if (!backward) return [=] { aten::attention::forward(q, q, q, 0, true, std::nullopt, std::nullopt); };
  const auto [out, logsumexp] = aten::attention::forward(q, q, q, 0, true, std::nullopt, std::nullopt);
  const Tensor y = out, sums = logsumexp;
  return [=] { aten::attention::backward(q, q, q, q, y, sums, 0, true, std::nullopt, std::nullopt); };
}

/// The factor keeps the gradients from vanishing or growing, however often they are multiplied by it.
Call unscale_call(at::ScalarType dtype) {
  const std::vector<Tensor> gradients = {numbers({1 << 14}, dtype), numbers({1 << 14}, dtype)};
  const Tensor found = at::full({1}, 0, at::kFloat), factor = at::full({1}, -1, at::kFloat);
  return [=] {
    Tensor flag = found;
    aten::unscale::non_finite_check_and_unscale_(gradients, flag, factor);
  };
}

struct Shape {
  int64_t rows, out, in;
};

Shape shape_of_low_bit(KernelFamily family, at::ScalarType dtype, Size size) {
  if (family == KernelFamily::kFewRows4Bit) return {1, 1024, 1024};
  if (family == KernelFamily::kProduct4Bit || family == KernelFamily::kGradient4Bit) {
    if (size == Size::kTypical) return {32, 512, 512};
    return {size == Size::kSmall ? 32 : 128, 128, 128};
  }
  // As many rows as in training: what it costs to decode or to split the weight is spread over them. Where tiers are close,
  // there are also enough columns to spread the splitting of the activations.
  if (is_close_between_tiers(family, dtype)) return {320, 256, 256};
  if (size == Size::kTypical) return {256, 512, 256};
  return {size == Size::kSmall ? 256 : 1024, 128, 128};
}

/// Codes and scales do not matter for the time.
Call product4_call(const Shape& s, bool transposed, at::ScalarType dtype) {
  constexpr int64_t kBlock = 64;
  const Tensor codes = at::full({s.out * s.in / 2}, 0x5A, at::kByte),
               scales = at::full({s.out * s.in / kBlock}, 1, at::kFloat);
  const int64_t from = transposed ? s.in : s.out, to = transposed ? s.out : s.in;
  const Tensor a = numbers({s.rows, from}, dtype), out = at::full({s.rows, to}, 0, dtype);
  kernels::Product4 p;
  p.m = s.rows;
  p.a = matrix(a.const_data_ptr(), a);
  p.weight = {codes.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(), s.out, s.in, kBlock};
  p.transposed = transposed;
  p.out = matrix(out.mutable_data_ptr(), out);
  return [p, memory = std::vector{codes, scales, a, out}] { aten::low_bit::product4(p); };
}

Call product_int8_call(const Shape& s, at::ScalarType dtype) {
  const Tensor a = at::full({s.rows, s.in}, 3, at::kChar), b = at::full({s.out, s.in}, 5, at::kChar),
               scales = at::full({std::max(s.rows, s.out)}, 1, at::kFloat),
               out = at::full({s.rows, s.out}, 0, dtype);
  kernels::ProductInt8 p = product_of_codes(a, b);
  p.a_scales = p.b_scales = scales.const_data_ptr<float>();
  p.out = matrix(out.mutable_data_ptr(), out);
  return [p, memory = std::vector{a, b, scales, out}] { aten::low_bit::product_int8(p); };
}

Call low_bit_call(KernelFamily family, at::ScalarType dtype, Size size) {
  const Shape shape = shape_of_low_bit(family, dtype, size);
  if (family == KernelFamily::kProductInt8) return product_int8_call(shape, dtype);
  return product4_call(shape, /*transposed=*/family < KernelFamily::kGradient4Bit, dtype);
}

bool is_low_bit(KernelFamily family) { return family >= KernelFamily::kFewRows4Bit; }

Call call_of(KernelFamily family, at::ScalarType dtype, Size size) {
  // The analyzer does not see that std::function frees what it holds.
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
  if (is_low_bit(family)) return low_bit_call(family, dtype, size);
  const bool typical = size == Size::kTypical;
  const int64_t times = size == Size::kFourSmall ? 4 : 1;
  if (family >= KernelFamily::kConvolution && family < KernelFamily::kLargeAttention) {
    const int pass = (static_cast<int>(family) - static_cast<int>(KernelFamily::kConvolution)) % 3;
    return convolution_call(images_of(family, size), static_cast<ConvolutionPass>(pass), dtype);
  }
  const Tensor line = numbers({1 << 14}, dtype);
  switch (family) {
    case KernelFamily::kLargeProduct:
      return typical ? product_call(256, 384, 384, dtype) : product_call(times * 64, 64, 64, dtype);
    case KernelFamily::kProduct:
      return typical ? product_call(96, 192, 192, dtype) : product_call(times * 64, 64, 64, dtype);
    case KernelFamily::kSmallProduct:
      return product_call(64, 64, 64, dtype);
    case KernelFamily::kLargeBatchedProduct:
      return typical ? batched_call(8, 128, 128, 128, dtype) : batched_call(times * 2, 64, 32, 64, dtype);
    case KernelFamily::kFewRows:
      return product_call(1, 512, 512, dtype);
    case KernelFamily::kBatchedProduct:
      return typical ? batched_call(8, 64, 64, 96, dtype) : batched_call(times * 2, 64, 32, 64, dtype);
    case KernelFamily::kDot:
      return [line = numbers({1 << 12}, dtype)] { aten::matmul::dot(line, line); };
    case KernelFamily::kLargeAttention:
      if (typical) return attention_call(1, 768, 64, false, dtype);
      [[fallthrough]];
    case KernelFamily::kAttention:
    case KernelFamily::kAttentionBackward: {
      const bool backward = family == KernelFamily::kAttentionBackward;
      return typical ? attention_call(2, 96, 64, backward, dtype)
                     : attention_call(times, 64, 32, backward, dtype);
    }
    case KernelFamily::kGelu:
      return [=] { aten::activation::gelu(line, "none"); };
    case KernelFamily::kGeluBackward:
      return [=] { aten::activation::gelu_backward(line, line, "none"); };
    default:
      return unscale_call(dtype);
  }
}

constexpr double kInfiniteTime = std::numeric_limits<double>::infinity();

/// Returns the time of one call, the mean of `repeats` calls.
double seconds_per_call(const Call& call, int64_t repeats = 1) {
  try {
    const double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (int64_t i = 0; i < repeats; ++i) call();
    return (seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin) / static_cast<double>(repeats);
  } catch (const std::exception&) {
    return kInfiniteTime;  // what cannot be computed, such as fp16 on some CPUs, is slowest
  }
}

double seconds_per_call(const Call& call, KernelFamily family, Kernel kernel, int64_t repeats = 1) {
  const ForcedKernel force(family, kernel);
  return seconds_per_call(call, repeats);
}

/// Returns how many calls make the time of reading the clock negligible.
int64_t repeats_for(double seconds) {
  constexpr double kMinTimedSeconds = 30e-6;
  return seconds < kMinTimedSeconds ? 1 + static_cast<int64_t>(kMinTimedSeconds / std::max(seconds, 1e-8))
                                    : 1;
}

/// Returns a call of `family`. The preparation may itself run one of our kernels, as a gradient needs a
/// forward pass.
Call make_call(KernelFamily family, at::ScalarType dtype, Size size) {
  const ForcedKernel force(family, kLibtorchs);
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): std::function owns what it captures
  return call_of(family, dtype, size);
}

/// Returns the call of make_call() in float32. For a weight in 4 or 8 bits it is the product with a float32 weight.
Call make_wide_call(KernelFamily family, at::ScalarType dtype, Size size) {
  if (!is_low_bit(family)) return make_call(family, at::kFloat, size);
  const auto [rows, out, in] = shape_of_low_bit(family, dtype, size);
  return product_call(rows, in, out, at::kFloat);
}

/// Returns the least time of several calls for each kernel, with the kernels in turn. A first, untimed call
/// allocates scratch memory or compiles code. A kernel that takes longer than `max_seconds` is not called
/// again.
std::vector<double> least_times(const Call& call, KernelFamily family, const std::vector<Kernel>& kernels,
                                double max_seconds = kInfiniteTime, int rounds = 2) {
  std::vector<double> least(kernels.size(), kInfiniteTime);
  for (const Kernel& kernel : kernels) seconds_per_call(call, family, kernel);
  std::vector<int64_t> repeats(kernels.size(), 1);
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < kernels.size(); ++i) {
      if (round > 0 && least[i] > max_seconds) continue;
      least[i] = std::min(least[i], seconds_per_call(call, family, kernels[i], repeats[i]));
      repeats[i] = repeats_for(least[i]);
    }
  return least;
}

size_t least_of(const std::vector<double>& times) {
  return static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
}

/// Our tiers compete on a small call. libtorch's kernel and the best tier then compete on a typical one, unless libtorch
/// cannot win there.
std::vector<KernelTiming> time_here(const Contest& contest) {
  constexpr double kShortCall = 2e-3;
  constexpr int kTypicalRounds = 3;  // in turn: another program may slow one round down
  const auto& [family, dtype, kernels] = contest;
  const std::vector<Kernel> ours(kernels.begin(), kernels.end() - 1);
  const Call small = make_call(family, dtype, Size::kSmall);
  const int rounds = is_close_between_tiers(family, dtype) ? 3 : 2;  // a third chance of an idle core
  std::vector<double> times = least_times(small, family, ours, kInfiniteTime, rounds);
  const size_t best = least_of(times), stock = times.size();
  // A single call may be slow by chance, so libtorch's always gets both rounds if it is short.
  const double max_seconds = std::max(5 * times[best], kShortCall);
  times.push_back(least_times(small, family, {kLibtorchs}, max_seconds)[0]);
  if (has_two_sizes(family, dtype)) {
    const double wide = least_times(make_wide_call(family, dtype, Size::kSmall), family, {kLibtorchs})[0];
    const auto four_times = [family = family, dtype = dtype] {
      return least_times(make_call(family, dtype, Size::kFourSmall), family, {kLibtorchs})[0];
    };
    if (can_win_typical_call({times[best], times[stock], wide, four_times})) {
      const Call typical = make_call(family, dtype, Size::kTypical);
      const std::vector<double> both =
          least_times(typical, family, {kernels[best], kLibtorchs}, kInfiniteTime, kTypicalRounds);
      const double scale = both[0] / times[best];
      for (double& time : times) time *= scale;
      times[stock] = both[1];
    }
  }
  std::vector<KernelTiming> timings;
  for (size_t i = 0; i < kernels.size(); ++i) timings.push_back({kernel_name(kernels[i]), times[i]});
  return timings;
}

/// Runs `f` on a new thread with default state: no autocast, no gradients, one OpenMP thread, no signals.
void on_a_thread(const std::function<void()>& f) {
  const SignalsBlocked none;
  std::exception_ptr error;
  std::thread thread([&] {
    try {
      at::get_num_threads();  // sets the number of threads at a thread's first call
      omp_set_num_threads(1);
      const at::NoGradGuard no_grad;
      const at::DisableRecordFunctionGuard no_profile;
      f();
    } catch (...) {
      error = std::current_exception();
    }
  });
  thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace

bool can_win_typical_call(const SmallCalls& small) {
  constexpr double kMaxSlowdown = 2, kLongestStart = 300e-6, kMaxGrowth = 3;
  if (small.libtorch < kMaxSlowdown * std::max(small.libtorch_float32, small.ours)) return true;
  return small.libtorch < small.ours + kLongestStart &&
         small.libtorch_four_times() < kMaxGrowth * small.libtorch;
}

std::string kernel_name(Kernel kernel) { return kernel.tier ? tier_name(*kernel.tier) : "libtorch"; }

std::vector<std::vector<KernelTiming>> time_kernels(const std::vector<Contest>& contests, double& budget) {
  std::vector<std::vector<KernelTiming>> timings(contests.size());
  on_a_thread([&] {
    for (size_t i = 0; i < contests.size() && budget > 0; ++i) {
      const double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      try {
        timings[i] = time_here(contests[i]);
      } catch (const std::exception&) {
        // The call cannot be prepared here, perhaps for lack of memory. The user's own call will report that.
      }
      budget -= seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin;
    }
  });
  return timings;
}

double over_float32(KernelFamily family, at::ScalarType dtype, Kernel kernel) {
  double ratio = 0;
  on_a_thread([&] {
    const Call narrow = make_call(family, dtype, Size::kTypical),
               wide = make_wide_call(family, dtype, Size::kTypical);
    ratio = least_times(narrow, family, {kernel})[0] / least_times(wide, family, {kLibtorchs})[0];
  });
  return ratio;
}

size_t fastest(const std::vector<KernelTiming>& timings) {
  size_t best = 0;
  for (size_t i = 1; i < timings.size(); ++i)
    if (timings[i].seconds < kClearlyFaster * timings[best].seconds) best = i;
  return best;
}

}  // namespace mantissa
