#pragma once

#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Coefficients a, b and c of the polynomial a x + b x^3 + c x^5, which a step applies to the singular values.
using NewtonSchulzCoefficients = std::tuple<double, double, double>;

/// Keller Jordan's: they have the largest slope at 0, so that small singular values grow fast. Singular values
/// end between about 0.7 and 1.2, and not all at 1.
inline constexpr NewtonSchulzCoefficients kMuonCoefficients = {3.4445, -4.7750, 2.0315};

/// Returns nearly the orthogonal matrix U V^T of the singular value decomposition U S V^T = matrix.
///
/// Shapes:   [rows, columns], and so is the result.
/// Numerics: computed and returned in bfloat16, by the operations of torch.optim.Muon in their order. The matrix
///           is divided by its Frobenius norm, or by `eps` if the norm is smaller. inf and nan spread to every
///           element.
/// Memory:   three copies in bfloat16, and three squares of the smaller size.
/// Errors:   c10::ValueError for other dimensions and for 100 steps or more.
/// Source:   Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
/// Example:  muon_test.cpp, NewtonSchulz.SingularValuesEndNearOne
at::Tensor zeropower_via_newtonschulz(const at::Tensor& matrix,
                                      const NewtonSchulzCoefficients& coefficients = kMuonCoefficients,
                                      int64_t steps = 5, double eps = 1e-7);

}  // namespace mantissa
