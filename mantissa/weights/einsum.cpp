#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/einsum.h>
#include <ATen/ops/matmul.h>

#include "mantissa/weights/einsum_internal.h"
#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/packed_tensor_internal.h"
#include "mantissa/weights/packed_weight.h"

// An einsum that sums over one dimension of a packed or marked matrix is a product. With a packed weight, all
// others dequantize it.
namespace mantissa {
namespace {

/// The labels of an operand's dimensions. The dimensions of an ellipsis have negative numbers, the last one
/// -1.
using Labels = std::vector<int>;

struct Equation {
  std::string first, second, result;
};

/// Returns the parts of "ij,jk->ik"; nothing if there are not two operands and a result.
std::optional<Equation> parse(std::string_view text) {
  std::string equation(text);
  std::erase(equation, ' ');
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow ||
      equation.find(',', comma + 1) != std::string::npos)
    return std::nullopt;
  return Equation{equation.substr(0, comma), equation.substr(comma + 1, arrow - comma - 1),
                  equation.substr(arrow + 2)};
}

/// Returns the labels of `text`, in which an ellipsis stands for `hidden` dimensions.
std::optional<Labels> labels_of(const std::string& text, int64_t hidden) {
  Labels labels;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 3, "...") == 0) {
      for (int64_t dim = hidden; dim > 0; --dim) labels.push_back(static_cast<int>(-dim));
      i += 2;
    } else {
      labels.push_back(static_cast<unsigned char>(text[i]));
    }
  }
  Labels sorted = labels;
  std::sort(sorted.begin(), sorted.end());
  const bool is_distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  return is_distinct ? std::make_optional(labels) : std::nullopt;
}

std::optional<int64_t> position(const Labels& labels, int label) {
  const auto found = std::find(labels.begin(), labels.end(), label);
  return found == labels.end() ? std::nullopt : std::make_optional<int64_t>(found - labels.begin());
}

/// Returns the permutation that brings dimensions with the labels `from` into the order `to`; nothing if the
/// two have different labels.
std::optional<std::vector<int64_t>> permutation(const Labels& from, const Labels& to) {
  if (from.size() != to.size()) return std::nullopt;
  std::vector<int64_t> dims;
  for (const int label : to) {
    const auto dim = position(from, label);
    if (!dim) return std::nullopt;
    dims.push_back(*dim);
  }
  return dims;
}

/// Returns the einsum of `x` and a matrix as a product; nothing if it is none.
std::optional<at::Tensor> as_product(const at::Tensor& x, const std::string& x_text, const at::Tensor& matrix,
                                     const std::string& matrix_text, const std::string& result_text) {
  const bool has_ellipsis = x_text.find("...") != std::string::npos;
  const int64_t hidden = has_ellipsis ? x.dim() - static_cast<int64_t>(x_text.size() - 3) : 0;
  const auto from = labels_of(x_text, hidden), of_matrix = labels_of(matrix_text, 0),
             to = labels_of(result_text, hidden);
  if (hidden < 0 || !from || !of_matrix || !to || static_cast<int64_t>(from->size()) != x.dim() ||
      of_matrix->size() != 2 || matrix_text.size() != 2 || matrix.dim() != 2)
    return std::nullopt;
  const bool sums_columns = position(*from, (*of_matrix)[1]).has_value();
  if (sums_columns == position(*from, (*of_matrix)[0]).has_value()) return std::nullopt;
  const int summed = (*of_matrix)[sums_columns ? 1 : 0], kept = (*of_matrix)[sums_columns ? 0 : 1];
  const int64_t dim = *position(*from, summed);
  Labels given = *from;
  given.erase(given.begin() + dim);
  given.push_back(kept);
  const auto order = permutation(given, *to);
  // A label of size 1 is broadcast, which no product does.
  if (!order || x.size(dim) != matrix.size(sums_columns ? 1 : 0)) return std::nullopt;
  // These are libtorch's operations, so that autocast and autograd see a product.
  return at::matmul(x.movedim(dim, -1), sums_columns ? matrix.t() : matrix).permute(*order);
}

}  // namespace

std::optional<at::Tensor> einsum_as_product(std::string_view equation, at::TensorList tensors,
                                            bool (*is_matrix)(const at::Tensor&)) {
  if (tensors.size() != 2 || is_matrix(tensors[0]) == is_matrix(tensors[1])) return std::nullopt;
  const auto parsed = parse(equation);
  if (!parsed) return std::nullopt;
  if (is_matrix(tensors[1]))
    return as_product(tensors[0], parsed->first, tensors[1], parsed->second, parsed->result);
  return as_product(tensors[1], parsed->second, tensors[0], parsed->first, parsed->result);
}

namespace packed {

at::Tensor einsum(std::string_view equation, at::TensorList tensors, at::OptionalIntArrayRef path) {
  if (auto product = einsum_as_product(equation, tensors, &is_packed)) return *product;
  std::optional<at::ScalarType> dtype;  // of the first plain operand, as in a product
  for (const at::Tensor& tensor : tensors)
    if (!dtype && !find_data(tensor)) dtype = tensor.scalar_type();
  std::vector<at::Tensor> plain;
  for (const at::Tensor& tensor : tensors) {
    if (find_data(tensor)) check_frozen(tensor, "einsum");
    plain.push_back(find_data(tensor) ? dequantize(tensor, dtype.value_or(tensor.scalar_type())) : tensor);
  }
  return at::einsum(equation, plain, path);
}

}  // namespace packed
}  // namespace mantissa
