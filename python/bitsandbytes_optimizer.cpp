#include "bitsandbytes_optimizer.h"

#include <cmath>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/aten/device_kernels.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/kernels/aten/update_factors.h"

namespace mantissa::python {
namespace {

using at::Tensor;
using kernels::DynamicMap;
using kernels::UpdateRule;

/// The arguments of the operator that are numbers.
struct Settings {
  double beta1, beta2, beta3, alpha, eps;
  int64_t step;
  double lr, weight_decay;
};

/// Returns nothing for AdEMAMix. bitsandbytes's CPU kernels treat LAMB as Adam and LARS as SGD with momentum, too.
std::optional<UpdateRule> rule_of(const std::string& name) {
  if (name == "adam" || name == "lamb") return UpdateRule::kAdam;
  if (name == "momentum" || name == "lars") return UpdateRule::kSGD;
  if (name == "lion") return UpdateRule::kLion;
  if (name == "rmsprop") return UpdateRule::kRMSprop;
  if (name == "adagrad") return UpdateRule::kAdagrad;
  TORCH_CHECK_VALUE(name == "ademamix", "optimizer_update_8bit_blockwise: there is no optimizer '", name,
                    "' on the CPU; choose adam, lamb, momentum, lars, lion, rmsprop, adagrad or ademamix");
  return std::nullopt;
}

/// Throws unless the table is bitsandbytes's dynamic map, up to the last bits that depend on its generator.
void check_map(const Tensor& table, const float (&map)[256]) {
  const Tensor values = table.to(at::kFloat).contiguous();
  TORCH_CHECK_VALUE(values.is_cpu() && values.numel() == 256, "optimizer_update_8bit_blockwise: a qmap has ",
                    table.numel(), " values on ", table.device(), "; it has to have 256 on the CPU");
  const float* const its = values.const_data_ptr<float>();
  for (int code = 0; code < 256; ++code)
    TORCH_CHECK_VALUE(std::abs(its[code] - map[code]) <= 1e-6F * std::abs(map[code]),
                      "optimizer_update_8bit_blockwise: value ", code, " of a qmap is ", its[code],
                      ", and bitsandbytes's dynamic map has ", map[code],
                      "; call bitsandbytes_kernels(False) to use other maps");
}

void check_state(const char* name, const Tensor& state, const Tensor& absmax, int64_t count) {
  const int64_t blocks = (count + kernels::kStateBlock - 1) / kernels::kStateBlock;
  TORCH_CHECK_VALUE(state.scalar_type() == at::kByte && state.numel() == count &&
                        absmax.scalar_type() == at::kFloat && absmax.numel() == blocks && state.is_cpu() &&
                        absmax.is_cpu(),
                    "optimizer_update_8bit_blockwise: ", name, " is ", state.scalar_type(), " ",
                    state.sizes(), " with an absmax of ", absmax.scalar_type(), " ", absmax.sizes(), "; ",
                    count, " elements need as many bytes and ", blocks, " float32 scales on the CPU");
}

bool is_kernels_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

kernels::UpdateFactors factors_of(UpdateRule rule, const Settings& s) {
  const bool decouples_decay = rule == UpdateRule::kAdam || rule == UpdateRule::kLion;
  return kernels::update_factors(rule, decouples_decay, {s.lr, s.beta1, s.beta2, s.eps, s.weight_decay},
                                 static_cast<double>(s.step));
}

Tensor decoded(const Tensor& state, const Tensor& absmax, DynamicMap map) {
  const Tensor codes = state.contiguous(), scales = absmax.contiguous();
  Tensor out = at::empty(codes.sizes(), scales.options());
  kernels::aten::device_kernels(at::kCPU).dequantize_blockwise(decoding_of(codes, scales, out, map));
  return out;
}

void encode(const Tensor& values, const Tensor& state, const Tensor& absmax, DynamicMap map) {
  const Operand codes(state), scales(absmax);
  kernels::aten::device_kernels(at::kCPU).quantize_blockwise(
      encoding_of(values.contiguous(), codes.plain, scales.plain, map));
  codes.write_back();
  scales.write_back();
}

/// Pagliardini et al. 2024, arXiv:2409.03137: a fast and a slow average of the gradient, in one tensor each half.
void update_ademamix(const Tensor& gradient, const Tensor& p, const Tensor& state1, const Tensor& state2,
                     const Tensor& absmax1, const Tensor& absmax2, const Settings& s) {
  const Tensor g = gradient.to(at::kFloat), is_finite = g.isfinite();
  const Tensor fast = decoded(state1[0], absmax1[0], DynamicMap::kSigned).mul_(s.beta1).add_(g, 1 - s.beta1),
               slow = decoded(state1[1], absmax1[1], DynamicMap::kSigned).mul_(s.beta3).add_(g, 1 - s.beta3),
               square =
                   decoded(state2, absmax2, DynamicMap::kUnsigned).mul_(s.beta2).addcmul_(g, g, 1 - s.beta2);
  const auto t = static_cast<double>(s.step);
  const double correction1 = 1 - std::pow(s.beta1, t), correction2 = std::sqrt(1 - std::pow(s.beta2, t));
  const Tensor update = (fast / correction1 + slow * s.alpha) / (square.sqrt() / correction2 + s.eps);
  const Tensor before = p.to(at::kFloat);
  // As with the other optimizers, an element whose gradient is inf or nan stays, and its states become 0.
  p.copy_(at::where(is_finite, (before * (1 - s.lr * s.weight_decay)).add_(update, -s.lr), before));
  encode(at::where(is_finite, fast, 0.0), state1[0], absmax1[0], DynamicMap::kSigned);
  encode(at::where(is_finite, slow, 0.0), state1[1], absmax1[1], DynamicMap::kSigned);
  encode(at::where(is_finite, square, 0.0), state2, absmax2, DynamicMap::kUnsigned);
}

void update(UpdateRule rule, const Tensor& g, const Tensor& p, const Tensor& state1, const Tensor& state2,
            const Tensor& absmax1, const Tensor& absmax2, const Settings& s) {
  const at::ScalarType dtype = is_kernels_dtype(p.scalar_type()) ? p.scalar_type() : at::kFloat;
  std::vector<Operand> all = {Operand(p, dtype), Operand(state1), Operand(absmax1)};
  const Operand gradient(g, dtype);
  kernels::BlockwiseUpdate u;
  u.rule = rule;
  u.element = element_of(dtype);
  u.parameter = all[0].plain.mutable_data_ptr();
  u.gradient = gradient.plain.mutable_data_ptr();
  u.state1 = update_state(all[1].plain, all[2].plain);
  if (kernels::has_second_state(rule)) {
    all.insert(all.end(), {Operand(state2), Operand(absmax2)});
    u.state2 = update_state(all[3].plain, all[4].plain);
  }
  u.count = p.numel();
  u.factors = factors_of(rule, s);
  kernels::aten::device_kernels(at::kCPU).update_blockwise({u});
  for (const Operand& each : all) each.write_back();
}

}  // namespace

void optimizer_update_8bit_blockwise(const std::string& optimizer_name, const Tensor& g, const Tensor& p,
                                     const Tensor& state1, const std::optional<Tensor>& state2, double beta1,
                                     double beta2, double beta3, double alpha, double eps, int64_t step,
                                     double lr, const Tensor& qmap1, const std::optional<Tensor>& qmap2,
                                     const Tensor& absmax1, const std::optional<Tensor>& absmax2,
                                     double weight_decay, double gnorm_scale,
                                     bool /*skip_zeros: ignored in bitsandbytes's CPU kernels, too*/) {
  const at::NoGradGuard no_grad;
  const std::optional<UpdateRule> rule = rule_of(optimizer_name);
  const bool has_second = !rule || kernels::has_second_state(*rule);
  TORCH_CHECK_VALUE(g.numel() == p.numel(), "optimizer_update_8bit_blockwise: the parameter has ", p.numel(),
                    " elements, and the gradient has ", g.numel());
  TORCH_CHECK_VALUE(!has_second || (state2 && qmap2 && absmax2),
                    "optimizer_update_8bit_blockwise: ", optimizer_name, " needs state2, qmap2 and absmax2");
  TORCH_CHECK_VALUE(
      rule || (state1.dim() > 0 && state1.size(0) == 2 && absmax1.dim() == 2 && absmax1.size(0) == 2),
      "optimizer_update_8bit_blockwise: ademamix needs two averages in state1 and absmax1; they are ",
      state1.sizes(), " and ", absmax1.sizes());
  check_state("state1", rule ? state1 : state1[0], rule ? absmax1 : absmax1[0], p.numel());
  check_map(qmap1, kDynamicSigned);
  if (has_second) {
    check_state("state2", *state2, *absmax2, p.numel());
    check_map(*qmap2, kDynamicUnsigned);
  }
  const Settings settings{beta1, beta2, beta3, alpha, eps, step, lr, weight_decay};
  const Tensor gradient = gnorm_scale == 1 ? g : g * gnorm_scale;
  const Tensor second = has_second ? *state2 : Tensor(), second_absmax = has_second ? *absmax2 : Tensor();
  if (rule) return update(*rule, gradient, p, state1, second, absmax1, second_absmax, settings);
  update_ademamix(gradient, p, state1, second, absmax1, second_absmax, settings);
}

}  // namespace mantissa::python
