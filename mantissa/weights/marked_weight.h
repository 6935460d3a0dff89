#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace mantissa {

class WeightRule;
/// Tensors, threads and views share a rule.
using WeightRulePtr = std::shared_ptr<const WeightRule>;

/// How a weight that is trained takes part in products: an arithmetic such as 8-bit training. A format is a
/// subclass; mark_weight() gives its object to a tensor.
///
/// Threads: several threads call the functions of one object at the same time.
/// Example: marked_weight_test.cpp has a rule of 20 lines.
class WeightRule {
 public:
  WeightRule() = default;
  WeightRule(const WeightRule&) = delete;
  WeightRule& operator=(const WeightRule&) = delete;
  virtual ~WeightRule() = default;

  /// Returns what an error should call the rule: "int8 training".
  virtual std::string description() const = 0;

  /// Returns x W^T + bias: x [..., in], with any number of rows; bias [out], or undefined; result [..., out].
  /// `weight` is the weight [out, in], or a matrix that is a view of it, without its mark. It is the tensor
  /// that autograd knows, so a torch::autograd::Function sends it its gradient. Autocast is off; inside an
  /// autocast region x has the region's dtype. The result is no view, because torch::nn::Linear adds its bias to it
  /// in place.
  virtual at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const = 0;

  /// Whether the rule computes a product of `weight` and `factor` now, for example in a region of the user's. If not,
  /// the weight multiplies as an ordinary tensor, also under autocast. Called before each product of a matrix,
  /// perhaps twice, with the factors as the caller gave them.
  virtual bool computes(const at::Tensor& /*factor*/, const at::Tensor& /*weight*/) const { return true; }

  /// Returns a rule for a copy of the weight. A rule that keeps nothing may return itself.
  virtual WeightRulePtr for_copy() const = 0;

  /// Whether the rule is what a precision mode does to the layers of a module. The next mode that converts the
  /// module then removes the mark. A rule of the user's own stays in every mode.
  virtual bool belongs_to_mode() const { return false; }

  /// Whether the rule trains packed weights, too (packed_weight.h). linear() then gets the packed tensor, which can
  /// require a gradient. A product that the rule does not compute, has the dequantized values and sends them its gradient.
  virtual bool takes_packed() const { return false; }
};

/// Marks a weight that is trained: from then on, `rule` computes the products of the weight. The code of the module
/// that holds the weight does not change. For everything else the weight stays an ordinary tensor: optimizers (also
/// fused ones), operations in place, gradients, averages, saving, printing.
///
/// Products: linear(), matmul(), mm(), mv(), addmm(), and an einsum() that sums over one dimension of the
///           weight. The weight may be the left or the right factor, and transposed. All other operations,
///           such as bmm(), embedding() or an operation with `out`, compute with the weight's plain values.
/// Marked:   the tensor itself, and from then on its views (t(), slices, detach()), clones and copies on other
///           devices, each of which applies the rule. A cast to another dtype returns a plain tensor.
///           set_data() and set_() keep the mark, and set_data() marks the tensor that it is given, too: Module::to(),
///           Module::clone() and torch::load() therefore leave a marked weight marked.
/// Autocast: a floating-point input is cast to the region's dtype first. The weight is not cast.
/// Memory:   that of the rule. It is freed when the weight is dead and another one is marked.
/// Saving:   the mark is not saved. Mark a model again after it was built; loading into it keeps marks.
/// Speed:    other tensors are unaffected. Other operations on the weight cost what they did.
/// Threads:  marking is not allowed while another thread uses the weight; using it is.
/// Errors:   c10::ValueError for an undefined tensor, no rule, a tensor that is no matrix, and a packed weight, unless
///           the rule takes those;
///           c10::TypeError for another dtype than a real floating-point one. Nothing has changed then.
///           A product throws c10::Error if code beside libtorch's operations has given the weight other memory.
/// Example:  marked_weight_test.cpp, MarkedWeight.APlainLinearComputesWithTheRule
void mark_weight(const at::Tensor& weight, WeightRulePtr rule);

/// Makes a marked weight an ordinary tensor again. Views and aliases that were made before keep their mark
/// and the rule. Does nothing for other tensors.
void unmark_weight(const at::Tensor& weight);

/// Returns `values` for a tensor that takes the place of `weight`: marked with the same rule if `weight` is marked, and
/// as they are if not.
/// Errors: as mark_weight().
at::Tensor with_rule_of(const at::Tensor& weight, at::Tensor values);

/// Whether `tensor` is marked. An undefined tensor is not.
bool is_marked(const at::Tensor& tensor);

/// Returns the rule of a marked tensor; null for any other.
/// Errors: c10::Error if code beside libtorch's operations has given the tensor other memory.
WeightRulePtr weight_rule(const at::Tensor& tensor);

}  // namespace mantissa
