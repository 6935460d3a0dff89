#include "mantissa/optim/fused_optimizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <c10/util/Exception.h>

#include "mantissa/core/parallel_internal.h"
#include "mantissa/optim/fused_optimizer_internal.h"
#include "mantissa/optim/optimizer_internal.h"
#include "mantissa/optim/stochastic_round.h"

namespace mantissa {
namespace {

bool is_16_bit(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

/// A contiguous range of elements of one slot's memory.
struct Piece {
  size_t slot;
  int64_t begin, count;
};

/// Splits all `numels` into pieces and groups them into bundles of up to `most` elements. The contents of a
/// piece depend on nothing else.
std::vector<std::vector<Piece>> bundles_of(const std::vector<int64_t>& numels, int64_t most) {
  std::vector<std::vector<Piece>> bundles;
  int64_t room = 0;
  for (size_t slot = 0; slot < numels.size(); ++slot) {
    for (int64_t begin = 0; begin < numels[slot]; begin += most) {
      const Piece piece{slot, begin, std::min(most, numels[slot] - begin)};
      if (piece.count > room) {
        bundles.emplace_back();
        room = most;
      }
      bundles.back().push_back(piece);
      room -= piece.count;
    }
  }
  return bundles;
}

at::Tensor row(const at::Tensor& tensor, const Piece& piece) {
  return tensor.as_strided({piece.count}, {1}, tensor.storage_offset() + piece.begin);
}

/// Returns `gradient` in the memory order of `parameter`.
at::Tensor in_order_of(const at::Tensor& parameter, const at::Tensor& gradient) {
  return gradient.strides() == parameter.strides() ? gradient : at::empty_like(parameter).copy_(gradient);
}

std::optional<at::Tensor> scalar_on(at::Device device, const at::Tensor& value) {
  if (!value.defined()) return std::nullopt;
  // The host reads a value on the CPU at once, so a copy to the CPU must be waited for.
  return value.detach().reshape({}).to(device, at::kFloat, /*non_blocking=*/!device.is_cpu());
}

}  // namespace

void FusedOptimizer::Batch::add(const at::Tensor& parameter, const at::Tensor& gradient,
                                const std::vector<at::Tensor>& its_states, const at::Tensor& step) {
  parameters.push_back(parameter);
  gradients.push_back(gradient);
  states.resize(its_states.size());
  for (size_t i = 0; i < its_states.size(); ++i) states[i].push_back(its_states[i]);
  if (step.defined()) steps.push_back(step);
}

FusedOptimizer::FusedOptimizer(const char* name, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                               const FusedOptions& options)
    : Optimizer(unique_parameters(name, groups), std::move(defaults)),
      name_(name),
      stochastic_rounding_(options.stochastic_rounding),
      seed_(options.seed.value_or(0)) {
  keep_options(groups, param_groups_);
  if (stochastic_rounding_ && !options.seed) {
    seed_ = static_cast<uint64_t>(
        at::randint(std::numeric_limits<int64_t>::max(), {}, at::kLong).item<int64_t>());
  }
}

void FusedOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  keep_options({group}, param_groups_);
}

void FusedOptimizer::finish(const std::vector<Slot>& /*slots*/, const Batch& /*batch*/) {}
bool FusedOptimizer::needs_float32(const at::Tensor& /*parameter*/) const { return false; }

const FusedOptimizer::Dtypes& FusedOptimizer::dtypes() const {
  static const Dtypes dtypes = {{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16},
                                "float64, float32, float16 and bfloat16"};
  return dtypes;
}

bool FusedOptimizer::rounds_stochastically(const at::Tensor& parameter) const {
  return stochastic_rounding_ && is_16_bit(parameter);
}

void FusedOptimizer::check() const {
  for (const auto& group : param_groups_) {
    checked_options(group);
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      TORCH_CHECK(!gradient.is_sparse(), name_, ": a parameter of shape ", parameter.sizes(),
                  " has a sparse gradient; build its Embedding with sparse(false) or use SGD");
      const auto& [taken, names] = dtypes();
      const at::ScalarType dtype = parameter.scalar_type();
      TORCH_CHECK_TYPE(std::find(taken.begin(), taken.end(), dtype) != taken.end(), name_,
                       ": a parameter of shape ", parameter.sizes(), " is ", dtype,
                       ", and fused kernels take ", names, "; keep it in an unfused optimizer");
      TORCH_CHECK_VALUE(parameter.is_non_overlapping_and_dense(), name_, ": a parameter of shape ",
                        parameter.sizes(), " and strides ", parameter.strides(),
                        " has gaps in memory; make it contiguous() or keep it in an unfused optimizer");
    }
  }
}

at::Tensor FusedOptimizer::step(LossClosure closure) {
  const at::Tensor loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  keep_each_parameter_once(name_, param_groups_);
  check();
  // The kernels know only 0 and 1, and the counters are decremented by the flag; the sum over several devices
  // can be more.
  const at::Tensor dropped = found_inf.defined() ? found_inf.ne(0) : found_inf;
  struct Scalars {
    at::Device device;
    std::optional<at::Tensor> grad_scale, found_inf;
  };
  std::vector<Scalars> scalars;
  uint64_t draws = 0;
  // All states are made, and checked, before any parameter changes.
  std::vector<std::pair<const torch::optim::OptimizerOptions*, std::vector<std::vector<Slot>>>> groups;
  for (const auto& group : param_groups_) {
    const auto& options = checked_options(group);
    groups.emplace_back(&options, batches(group, options, draws));
  }
  for (const auto& [options, its_batches] : groups) {
    for (const std::vector<Slot>& slots : its_batches) {
      const at::Tensor& model = slots.front().parameter;
      auto here = std::find_if(scalars.begin(), scalars.end(),
                               [&](const Scalars& known) { return known.device == model.device(); });
      if (here == scalars.end()) {
        here = scalars.insert(here, {model.device(), scalar_on(model.device(), grad_scale),
                                     scalar_on(model.device(), dropped)});
      }
      Batch batch;
      batch.first = slots.front().first;
      batch.is_buffer_empty = slots.front().is_buffer_empty;
      batch.grad_scale = here->grad_scale;
      batch.found_inf = here->found_inf;
      for (const Slot& slot : slots) {
        batch.add(slot.parameter, in_order_of(slot.parameter, slot.gradient), slot.states, slot.step);
      }
      if (!batch.steps.empty()) at::_foreach_add_(batch.steps, 1);
      update(slots, batch, *options);
      if (batch.found_inf && !batch.steps.empty()) {
        at::_foreach_sub_(batch.steps, std::vector<at::Tensor>(batch.steps.size(), *batch.found_inf));
      }
      for (size_t i = 0; batch.grad_scale && i < slots.size(); ++i) {
        if (!batch.gradients[i].is_same(slots[i].gradient)) slots[i].gradient.copy_(batch.gradients[i]);
      }
      finish(slots, batch);
    }
  }
  count_step();
  return loss;
}

const at::Tensor& FusedOptimizer::stream_on(at::Device device) {
  for (const auto& [known, stream] : streams_) {
    if (known == device) return stream;
  }
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  return streams_.emplace_back(device, at::full({}, static_cast<int64_t>(stream_), options)).second;
}

void FusedOptimizer::count_step() {
  ++stream_;
  for (const auto& [device, stream] : streams_) stream.add_(1);
}

std::vector<std::vector<FusedOptimizer::Slot>> FusedOptimizer::batches(
    const torch::optim::OptimizerParamGroup& group, const torch::optim::OptimizerOptions& options,
    uint64_t& draws) {
  std::vector<std::vector<Slot>> result;
  for (const at::Tensor& parameter : group.params()) {
    Slot slot;
    slot.parameter = parameter;
    slot.gradient = parameter.grad();
    slot.first_draw = draws;
    // Draws are counted in whole blocks of the generator, and also for parameters without a gradient, so that
    // the draws of the other parameters do not change.
    draws += (static_cast<uint64_t>(parameter.numel()) + 7) / 8 * 8;
    if (!slot.gradient.defined()) continue;
    add_state(slot, options, rounds_stochastically(parameter) ? at::kFloat : parameter.scalar_type());
    auto same = std::find_if(result.begin(), result.end(), [&](const std::vector<Slot>& slots) {
      const Slot& other = slots.front();
      return other.parameter.device() == parameter.device() &&
             other.parameter.scalar_type() == parameter.scalar_type() && other.first == slot.first &&
             other.is_buffer_empty.is_same(slot.is_buffer_empty);
    });
    if (same == result.end()) same = result.insert(same, std::vector<Slot>());
    same->push_back(std::move(slot));
  }
  return result;
}

void FusedOptimizer::update(const std::vector<Slot>& slots, const Batch& batch,
                            const torch::optim::OptimizerOptions& options) {
  const at::Tensor& model = slots.front().parameter;
  if (rounds_stochastically(model) || needs_float32(model)) {
    update_in_float32(slots, batch, options);
  } else {
    call_kernel(batch, options);
  }
}

// Works in pieces, so that the float32 copies stay small: in a core's cache on the CPU, 64 MB each elsewhere.
void FusedOptimizer::update_in_float32(const std::vector<Slot>& slots, const Batch& batch,
                                       const torch::optim::OptimizerOptions& options) {
  const bool on_cpu = batch.parameters.front().is_cpu();
  std::vector<int64_t> numels;
  for (const at::Tensor& parameter : batch.parameters) numels.push_back(parameter.numel());
  const auto bundles = bundles_of(numels, on_cpu ? 1 << 14 : 1 << 24);

  const auto update = [&](const std::vector<Piece>& bundle) {
    Batch wide;
    wide.first = batch.first;
    wide.is_buffer_empty = batch.is_buffer_empty;
    wide.grad_scale = batch.grad_scale;
    wide.found_inf = batch.found_inf;
    for (const auto& piece : bundle) {
      std::vector<at::Tensor> states;
      for (const auto& state : batch.states) states.push_back(row(state[piece.slot], piece).to(at::kFloat));
      wide.add(row(batch.parameters[piece.slot], piece).to(at::kFloat),
               row(batch.gradients[piece.slot], piece).to(at::kFloat), states, slots[piece.slot].step);
    }
    call_kernel(wide, options);
    for (size_t i = 0; i < bundle.size(); ++i) {
      const Piece& piece = bundle[i];
      const at::Tensor parameter = row(batch.parameters[piece.slot], piece);
      if (stochastic_rounding_) {
        const uint64_t first_draw = slots[piece.slot].first_draw + static_cast<uint64_t>(piece.begin);
        if (on_cpu) {
          stochastic_round_(parameter, wide.parameters[i], seed_, stream_, first_draw);
        } else {
          stochastic_round_(parameter, wide.parameters[i], seed_, stream_on(parameter.device()), first_draw);
        }
      } else {
        parameter.copy_(wide.parameters[i]);
      }
      if (batch.grad_scale) row(batch.gradients[piece.slot], piece).copy_(wide.gradients[i]);
      for (size_t k = 0; k < batch.states.size(); ++k) {
        const at::Tensor& state = batch.states[k][piece.slot];
        if (state.scalar_type() != at::kFloat) row(state, piece).copy_(wide.states[k][i]);
      }
    }
  };
  if (!on_cpu) {
    for (const auto& bundle : bundles) update(bundle);
    return;
  }
  // Parallel over bundles rather than inside the kernels, so that a core works on data in its cache.
  const at::ThreadLocalState state;
  at::parallel_for(0, static_cast<int64_t>(bundles.size()), 1, [&](int64_t begin, int64_t end) {
    const at::ThreadLocalStateGuard guard(state);
    for (int64_t i = begin; i < end; ++i) update(bundles[static_cast<size_t>(i)]);
  });
}

void FusedOptimizer::save_draws(torch::serialize::OutputArchive& archive) const {
  if (!stochastic_rounding_) return;
  archive.write("stochastic_rounding_seed", c10::IValue(static_cast<int64_t>(seed_)));
  auto stream = static_cast<int64_t>(stream_);
  for (const auto& [device, its_stream] : streams_) stream = std::max(stream, its_stream.item<int64_t>());
  archive.write("stochastic_rounding_stream", c10::IValue(stream));
}

void FusedOptimizer::load_draws(torch::serialize::InputArchive& archive) {
  auto seed = static_cast<int64_t>(seed_), stream = static_cast<int64_t>(stream_);
  read_if_present(archive, "stochastic_rounding_seed", seed);
  read_if_present(archive, "stochastic_rounding_stream", stream);
  seed_ = static_cast<uint64_t>(seed);
  stream_ = static_cast<uint64_t>(stream);
  for (const auto& [device, its_stream] : streams_) its_stream.fill_(stream);
}

}  // namespace mantissa
