#include <cmath>
#include <utility>

#include <ATen/ops/abs.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/view_as_real.h>

#include "mantissa/trace/values_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::nonfinite_internal {
namespace {

at::Tensor as_real(const at::Tensor& values) {
  if (values.is_complex()) return at::view_as_real(values.resolve_conj());
  return values.element_size() == 1 ? values.to(at::kFloat) : values;  // no kernel reads 8-bit floats
}

}  // namespace

bool is_strided(const at::Tensor& t) {
  return t.defined() && t.layout() == at::kStrided && !t.is_nested() && !t.is_meta() && t.numel() > 0 &&
         !t._is_zerotensor() && t.has_storage() && !is_packed(t);
}

at::Tensor values_of(const at::Tensor& t) {
  if (!t.defined() || !(t.is_floating_point() || t.is_complex())) return {};
  switch (t.layout()) {
    case at::kSparse:
      return values_of(t._values());
    case at::kSparseCsr:
    case at::kSparseCsc:
    case at::kSparseBsr:
    case at::kSparseBsc:
      return values_of(t.values());
    default:
      return is_strided(t) ? t : at::Tensor();
  }
}

at::Tensor unexpanded(const at::Tensor& t) {
  at::Tensor own = t;
  for (int64_t d = t.dim(); d-- > 0;)
    if (t.stride(d) == 0 && t.size(d) > 1) own = own.select(d, 0);
  return own;
}

Finiteness look_at(const at::Tensor& values) {
  const auto [low, high] = at::aminmax(as_real(values.detach()));
  const double l = low.item<double>(), h = high.item<double>();
  return {.nan = std::isnan(l) || std::isnan(h), .inf = std::isinf(l) || std::isinf(h)};
}

bool is_mask(const at::Tensor& values) {
  const at::Tensor real = as_real(values.detach());
  return at::eq(real, 0).logical_or_(at::isneginf(real)).all().item<bool>();
}

OperandFacts facts_of(const at::Tensor& values, std::string name) {
  OperandFacts facts{.name = std::move(name), .dtype = values.scalar_type(), .sizes = values.sizes().vec()};
  const at::Tensor magnitudes =
      at::abs(values.detach().to(values.is_complex() ? at::kComplexDouble : at::kDouble));
  const at::Tensor finite = magnitudes.masked_select(at::isfinite(magnitudes));
  facts.non_finite = values.numel() - finite.numel();
  if (finite.numel() > 0) {
    const auto [low, high] = at::aminmax(finite);
    facts.min_abs = low.item<double>();
    facts.max_abs = high.item<double>();
  }
  return facts;
}

}  // namespace mantissa::nonfinite_internal
