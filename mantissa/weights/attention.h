#pragma once

#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// The arguments of at::scaled_dot_product_attention(), whose scale is that of its default.
struct AttentionCall {
  at::Tensor query, key, value;  ///< [B, heads, S, channels]; key and value [B, groups, T, channels]
  at::Tensor mask = {};  ///< bool, broadcastable to [B, heads, S, T]: true where attended to; undefined: all
  double dropout = 0;    ///< of the probabilities
  bool is_causal = false;  ///< position s attends to 0..s; without a mask only
};

/// Returns at::scaled_dot_product_attention() of the call: [B, heads, S, channels]. Each group of the keys serves
/// heads / groups adjacent heads.
at::Tensor attend(const AttentionCall& call);

/// How an attention computes its two products, which have no weight that could decide it: of queries and keys, and of
/// probabilities and values.
///
/// Threads: several threads call the functions of one object at the same time.
class AttentionRule {
 public:
  AttentionRule() = default;
  AttentionRule(const AttentionRule&) = delete;
  AttentionRule& operator=(const AttentionRule&) = delete;
  virtual ~AttentionRule() = default;

  /// Returns what an error should call the rule.
  virtual std::string description() const = 0;
  /// Whether the rule computes now, for example in a region of the user's.
  virtual bool computes() const { return true; }
  /// Returns what mantissa::attend() does, by the rule's arithmetic.
  virtual at::Tensor attend(const AttentionCall& call) const = 0;
  /// Returns a rule for a copy of the module.
  virtual std::shared_ptr<const AttentionRule> for_copy() const = 0;
  /// Whether the rule is what a precision mode does. The next mode that converts the module then removes it.
  virtual bool belongs_to_mode() const { return false; }
};

/// A module with an attention. A mode that computes attention in a format of its own sets its rule.
/// Example: layers/multihead_attention.h
class HasAttention {
 public:
  virtual ~HasAttention() = default;

  /// Null means at::scaled_dot_product_attention().
  void set_attention_rule(std::shared_ptr<const AttentionRule> rule) { rule_ = std::move(rule); }
  const std::shared_ptr<const AttentionRule>& attention_rule() const { return rule_; }
  /// A tensor without values that lives as long as the module: a key in a WeakMap (core/weak_map.h).
  const at::Tensor& identity() const { return identity_; }

 protected:
  HasAttention();
  HasAttention(const HasAttention& other);
  /// Copies the rule as the constructor does. The identity stays.
  HasAttention& operator=(const HasAttention& other);

  /// What a module's forward() calls.
  at::Tensor attend(const AttentionCall& call) const {
    return rule_ && rule_->computes() ? rule_->attend(call) : mantissa::attend(call);
  }

 private:
  std::shared_ptr<const AttentionRule> rule_;
  at::Tensor identity_;
};

}  // namespace mantissa
