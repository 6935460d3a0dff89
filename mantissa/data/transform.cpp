#include "mantissa/data/transform.h"

#include <string>
#include <utility>

#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include "mantissa/core/tree.h"

namespace mantissa {
namespace {

/// `name` stands for the tensors in errors.
at::Tensor stack_tensors(const std::vector<at::Tensor>& parts, const std::string& name) {
  const at::Tensor& first = parts.front();
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor& part = parts[i];
    TORCH_CHECK_VALUE(part.defined() == first.defined(), "stack: of sample 0 and sample ", i,
                      " only one has '", name, "'; give it to all samples, or to none");
    TORCH_CHECK_VALUE(!part.defined() || part.sizes() == first.sizes(), "stack: '", name, "' of sample ", i,
                      " has the shape ", part.sizes(), ", of sample 0 ", first.sizes(),
                      "; crop or pad them to one shape");
  }
  return first.defined() ? at::stack(parts) : at::Tensor();
}

}  // namespace

Batch stack(const std::vector<Batch>& samples) {
  TORCH_CHECK_VALUE(!samples.empty(), "stack: no samples; give at least one");
  const auto stacked = [&](const std::string& name, const auto& member) {
    std::vector<at::Tensor> parts;
    parts.reserve(samples.size());
    for (const Batch& sample : samples) parts.push_back(member(sample));
    return stack_tensors(parts, name);
  };
  Batch batch{stacked("data", [](const Batch& sample) { return sample.data; }),
              stacked("target", [](const Batch& sample) { return sample.target; }),
              {}};
  for (const Batch& sample : samples) {
    for (const auto& [name, tensor] : sample.fields) {
      if (batch.fields.contains(name)) continue;
      const auto field = [&, key = name](const Batch& from) {
        const auto found = from.fields.find(key);
        return found == from.fields.end() ? at::Tensor() : found->second;
      };
      batch.fields.emplace(name, stacked(name, field));
    }
  }
  return batch;
}

Transform per_sample(Transform transform) {
  TORCH_CHECK_VALUE(transform, "per_sample: no transform; give the function that changes a sample");
  return [transform = std::move(transform)](const Batch& batch, const at::Generator& generator) {
    std::vector<Batch> samples;
    const int64_t count = batch.size();
    for (int64_t i = 0; i < count; ++i) {
      const auto sample = [&](const at::Tensor& tensor) { return tensor.select(0, i); };
      samples.push_back(transform(map_tensors(batch, sample), generator));
    }
    return stack(samples);
  };
}

}  // namespace mantissa
