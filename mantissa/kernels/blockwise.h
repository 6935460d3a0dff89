#pragma once

// The states of 8-bit optimizers, for any device. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels {

/// So many adjacent values share a scale, which is their largest magnitude. A tensor's last block may be
/// shorter.
constexpr int64_t kStateBlock = 256;
/// The same for codes of 4 bits. A tensor with such codes is a multiple of it.
constexpr int64_t kState4Block = 128;

/// The table of the values that codes stand for: kDynamicSigned or kDynamicUnsigned (core/code_tables.h).
enum class DynamicMap : uint8_t { kSigned, kUnsigned };

/// Sets absmax[b] to the largest magnitude of block b of `in`, and codes[i] to the code that is nearest to
/// in[i] / absmax[i / 256].
///
/// Numerics: the quotient is in[i] * (1 / absmax), both in float32; nearest_code() rounds it. An infinite
///           number counts as the largest finite one, and NaN as 0; so does a negative number in the unsigned
///           map. A block of zeros has absmax 0 and the codes of 0.
struct QuantizeBlockwise {
  const float* in = nullptr;
  uint8_t* codes = nullptr;
  float* absmax = nullptr;
  int64_t count = 0;
  DynamicMap map = DynamicMap::kSigned;
};

/// Sets out[i] to absmax[i / 256] times the value of codes[i], rounded once.
struct DequantizeBlockwise {
  const uint8_t* codes = nullptr;
  const float* absmax = nullptr;
  float* out = nullptr;
  int64_t count = 0;
  DynamicMap map = DynamicMap::kSigned;
};

/// How an optimizer updates a parameter p by its gradient g and by its states m and v, which start at 0:
///
///     Adam      m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///               p = (p - step_size m / (sqrt(v) + eps)) keep
///     AdamDecayFirst    g += decay p;  m and v as in Adam
///               p = p keep - step_size m / (sqrt(v) + eps)
///     Lion      p = p keep - step_size sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
///     SGD       g += decay p;  m = beta1 m + g;                     p -= step_size m
///     RMSprop   g += decay p;  m = beta1 m + (1 - beta1) g^2;       p -= step_size g / (sqrt(m) + eps)
///     Adagrad   g += decay p;  m += g^2;                            p -= step_size g / (sqrt(m) + eps)
///
/// Source: Dettmers et al. 2022, arXiv:2110.02861, as bitsandbytes's kernels for CUDA compute it, except that
///         the decay of RMSprop and Adagrad is in both places; Chen et al. 2023, arXiv:2302.06675 (Lion);
///         AdamDecayFirst is torch.optim's Adam, and with another `keep` its AdamW.
enum class UpdateRule : uint8_t { kAdam, kAdamDecayFirst, kLion, kSGD, kRMSprop, kAdagrad };

struct UpdateFactors {
  float step_size = 0;
  float beta1 = 0, beta2 = 0;
  float rest1 = 1, rest2 = 1;  ///< 1 - beta1 and 1 - beta2
  float eps = 0;
  float decay = 0;
  float keep = 1;
};

/// One state of a parameter: either `codes` with the `absmax` of each block, or float32 `values`.
struct UpdateState {
  uint8_t* codes = nullptr;
  float* absmax = nullptr;
  float* values = nullptr;
};

/// Updates one parameter and its states in one pass: decodes the states, computes in float32, and encodes the
/// states again. The parameter's new value is computed from the states before they are encoded.
///
/// Numerics: no product is fused with a sum, so that every device gives the same bits. A parameter of 16 bits
///           is rounded once. An element whose gradient is inf or nan keeps its parameter, and its states
///           become 0.
///           Codes and values of 8 bits are nearly those of the maps: see state_codes.h. A number whose quotient
///           by absmax is not 0 never becomes 0. Otherwise a small second moment would vanish, and a step with
///           gradient 0 would divide the first one by eps. A number and its negative have codes of the same
///           distance from that of 0.
///
/// Codes of 4 bits have blocks of 128. The first of two codes is in the high bits of their byte. absmax is at
/// least 1e-12. The first state has the values of kDynamic4Signed (core/code_tables.h), and a tie goes to the
/// higher code; the second one has (code + 1) / 16, so that it never becomes 0. Only the two rules of Adam have
/// them.
/// Source: Li et al. 2023, arXiv:2309.01507, as torchao computes it.
struct BlockwiseUpdate {
  UpdateRule rule = UpdateRule::kAdam;
  Element element = Element::kFloat32;  ///< of the parameter and its gradient
  void* parameter = nullptr;
  void* gradient = nullptr;  ///< only written if grad_scale is not 1
  UpdateState state1;        ///< in the signed map
  UpdateState state2;        ///< Adam's v, in the unsigned map
  bool has_4_bit_codes = false;
  int64_t count = 0;
  UpdateFactors factors;
  /// The gradient is divided by it first, also in memory.
  float grad_scale = 1;
  bool maximize = false;  ///< the update uses the gradient's negative
  /// Rounds a parameter of 16 bits up or down at random, as StochasticRound does.
  bool rounds_stochastically = false;
  uint64_t seed = 0;
  int64_t stream = 0;
  uint64_t first_draw = 0;
};

/// Whether the rule has a second state.
template <class Build = void>
constexpr bool has_second_state(UpdateRule rule) {
  return rule == UpdateRule::kAdam || rule == UpdateRule::kAdamDecayFirst;
}

}  // namespace mantissa::kernels
