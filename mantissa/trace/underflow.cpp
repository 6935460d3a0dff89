#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/where.h>

#include "mantissa/core/formats.h"
#include "mantissa/trace/underflow_internal.h"

namespace mantissa::nonfinite_internal {
namespace {

std::string describe(const Frame& frame) {
  const std::string name = frame.cast() ? "aten::to" : frame.name();
  if (frame.place.module.empty()) return name;
  return name + (frame.place.inside ? " in " : " after ") + frame.place.module;
}

}  // namespace

const Underflows::Kept* Underflows::find(const at::Tensor& t) const {
  const at::Tensor values = values_of(t);
  if (kept_.empty() || !values.defined()) return nullptr;
  const Span span(values);
  const std::vector<Kept>* found = kept_.find(span.storage);
  if (!found) return nullptr;
  for (const Kept& kept : *found)
    if (kept.span.covers(span) && kept.element_size == static_cast<int64_t>(values.element_size()))
      return &kept;
  return nullptr;
}

at::Tensor Underflows::stand_in(const at::Tensor& t, const Kept* kept) {
  if (!kept) return {};
  return at::as_strided(kept->values, t.sizes(), t.strides(), t.storage_offset() - kept->offset).clone();
}

void Underflows::forget(const at::Tensor& t) {
  const Span span(t);
  if (std::vector<Kept>* kept = kept_.find(span.storage))
    std::erase_if(*kept, [&](const Kept& k) { return k.span.overlaps(span); });
}

void Underflows::keep(const at::Tensor& t, const at::Tensor& values, Flushed flushed) {
  kept_.erase_expired();  // drops the copies of their values, too
  kept_.try_emplace(t.storage())
      .first->push_back(
          {Span(t), static_cast<int64_t>(t.element_size()), t.storage_offset(), values, std::move(flushed)});
}

void Underflows::note(const Frame& frame, const std::vector<at::Tensor>& outputs) {
  const Kept* read = nullptr;
  for (const c10::IValue& input : frame.inputs)
    each_tensor(input, [&](const at::Tensor& t) { read = read ? read : find(t); });
  std::vector<at::Tensor> made;
  std::vector<size_t> with_zeros;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& t = outputs[i];
    if (!is_strided(t) || frame.made_inside.count(Span(t).storage) != 0) continue;
    made.push_back(t);
    if (t.is_floating_point() && t.element_size() > 1 && (read || t.scalar_type() == at::kHalf) &&
        t.is_non_overlapping_and_dense() && t.eq(0).any().item<bool>())
      with_zeros.push_back(i);
  }
  struct Found {
    at::Tensor result, values;
    Flushed flushed;
  };
  std::vector<Found> all;
  if (!with_zeros.empty()) {
    const auto wide =
        results_in(at::kFloat, frame, [this](const at::Tensor& t) { return stand_in(t, find(t)); });
    for (const size_t i : with_zeros) {
      if (!wide || i >= wide->size() || (*wide)[i].sizes() != outputs[i].sizes()) continue;
      const at::Tensor values = (*wide)[i].to(at::kFloat), sizes = at::abs(values);
      // A 0 from rounding, as in a sum that cancels, is not an underflow of fp16.
      const double end =
          read ? std::numeric_limits<double>::infinity() : info(Format::kFloat16).smallest_subnormal;
      const at::Tensor lost = outputs[i].eq(0) & sizes.gt(0) & sizes.lt(end);
      if (!lost.any().item<bool>()) continue;
      const at::Tensor kept = at::empty_strided(outputs[i].sizes(), outputs[i].strides(), values.options());
      kept.copy_(at::where(lost, values, outputs[i].to(at::kFloat)));
      all.push_back(
          {outputs[i], kept,
           read ? read->flushed : Flushed{describe(frame), sizes.masked_select(lost).max().item<double>()}});
    }
  }
  for (const at::Tensor& t : made) forget(t);
  for (Found& found : all) keep(found.result, found.values, std::move(found.flushed));
}

const Underflows::Flushed* Underflows::explaining(const Frame& frame) const {
  std::vector<const Kept*> read;
  for (const c10::IValue& input : frame.inputs)
    each_tensor(input, [&](const at::Tensor& t) {
      if (const Kept* kept = find(t)) read.push_back(kept);
    });
  const auto finite_with = [&](const Kept* one) {
    const auto wide = results_in(at::kFloat, frame, [&](const at::Tensor& t) {
      const Kept* kept = find(t);
      return stand_in(t, !one || kept == one ? kept : nullptr);
    });
    return wide && all_finite(*wide);
  };
  for (const Kept* kept : read)
    if (finite_with(kept)) return &kept->flushed;
  return !read.empty() && finite_with(nullptr) ? &read[0]->flushed : nullptr;
}

}  // namespace mantissa::nonfinite_internal
