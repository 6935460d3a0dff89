// Which operations autocast casts, and to which dtype: the lists that torch documents, against the libtorch
// in use. tests/parity/test_autocast.py compares the lists with Python's; these tests check them without
// Python.
#include <algorithm>
#include <gmock/gmock.h>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/test_support_internal.h"
#include "mantissa/core/device.h"

namespace mantissa::autocast_ops_test {
namespace {

enum class Policy { kLow, kFloat32, kWidest };

using Arguments = std::vector<c10::IValue>;

/// An operation of the CPU's list with arguments for it. Floating-point tensors are float32 here; the test
/// gives them the dtype that the policy must change.
struct Row {
  std::string name;
  Policy policy;
  Arguments arguments;
};

/// Returns nullopt for an operation that this libtorch lacks: releases after 2.11 have no named dimensions.
std::optional<c10::OperatorHandle> find_if_any(const std::string& name) {
  const auto dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload});
}

c10::OperatorHandle find(const std::string& name) {
  const auto op = find_if_any(name);
  TORCH_CHECK(op, "there is no operation aten::", name);
  return *op;
}

/// Returns the tensors that `op` returns. Arguments that are not given take their defaults.
std::vector<at::Tensor> call(const c10::OperatorHandle& op, Arguments stack) {
  const auto& parameters = op.schema().arguments();
  for (size_t i = stack.size(); i < parameters.size(); ++i) {
    TORCH_CHECK(parameters[i].default_value(), op.schema().name(), ": no value for ", parameters[i].name());
    stack.push_back(*parameters[i].default_value());
  }
  op.callBoxed(&stack);
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : stack)
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
  return tensors;
}

Arguments with_dtype(Arguments arguments, at::ScalarType dtype) {
  const auto cast = [&](const at::Tensor& t) { return t.is_floating_point() ? t.to(dtype) : t; };
  for (c10::IValue& argument : arguments) {
    if (argument.isTensor()) argument = cast(argument.toTensor());
    if (!argument.isTensorList()) continue;
    auto list = argument.toTensorVector();
    for (at::Tensor& t : list) t = cast(t);
    argument = list;
  }
  return arguments;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> rows = [] {
    torch::manual_seed(0);
    using Ints = std::vector<int64_t>;
    using Tensors = std::vector<at::Tensor>;
    const auto v = torch::randn({4}), m = torch::randn({4, 4}), b = torch::randn({2, 4, 4});
    // Exact in 16 bits, so that the matrix stays symmetric and positive definite there.
    const auto spd = torch::eye(4) * 4 + torch::ones({4, 4});
    const auto probabilities = torch::rand({4, 4}), signs = torch::ones({4}), one = torch::rand({1});
    const auto line = torch::randn({1, 2, 8}), image = torch::randn({1, 2, 6, 6});
    const auto volume = torch::randn({1, 2, 4, 4, 4}), grid = torch::rand({1, 3, 3, 2});
    const auto kernel1 = torch::randn({3, 2, 3}), kernel2 = torch::randn({3, 2, 3, 3}),
               kernel3 = torch::randn({3, 2, 3, 3, 3}), back1 = kernel1.transpose(0, 1).contiguous(),
               back2 = kernel2.transpose(0, 1).contiguous(), back3 = kernel3.transpose(0, 1).contiguous();
    const auto classes = torch::tensor({0, 1, 2, 3}), labels = torch::zeros({4, 4}, at::kLong);
    const auto lu = at::linalg_lu_factor(spd);
    const auto pooled2 = at::max_pool2d_with_indices(image, {2, 2});
    const auto pooled3 = at::max_pool3d_with_indices(volume, {2, 2, 2});
    const auto low_v = v.to(at::kBFloat16);
    const auto lengths = torch::tensor({5, 5}), target_lengths = torch::tensor({2, 2});
    const auto log_probabilities = torch::randn({5, 2, 3}).log_softmax(-1);
    const auto sequences = torch::tensor({{1, 2}, {2, 1}});
    const c10::IValue none;
    constexpr auto low = Policy::kLow, f32 = Policy::kFloat32, widest = Policy::kWidest;
    const Ints n11 = {1, 1}, n00 = {0, 0}, n222 = {2, 2, 2};
    return std::vector<Row>{
        {"_addmm_activation", low, {m, m, m}},
        {"_convolution.deprecated",
         low,
         {image, kernel2, none, n11, n00, n11, false, n00, 1, false, false, false}},
        {"_native_multi_head_attention",
         low,
         {b, b, b, 4, 2, torch::randn({12, 4}), torch::randn({12}), m, v}},
        {"addbmm", low, {m, b, b}},
        {"addmm", low, {m, m, m}},
        {"baddbmm", low, {b, b, b}},
        {"bmm", low, {b, b}},
        {"conv1d", low, {line, kernel1}},
        {"conv1d.padding", low, {line, kernel1}},
        {"conv2d", low, {image, kernel2}},
        {"conv2d.padding", low, {image, kernel2}},
        {"conv3d", low, {volume, kernel3}},
        {"conv3d.padding", low, {volume, kernel3}},
        {"conv_tbc", low, {torch::randn({6, 2, 3}), torch::randn({3, 3, 4}), v}},
        {"conv_transpose1d", low, {line, back1}},
        {"conv_transpose2d.input", low, {image, back2}},
        {"conv_transpose3d.input", low, {volume, back3}},
        {"linalg_vecdot", low, {v, v}},
        {"linear", low, {m, m, v}},
        {"matmul", low, {b, m}},
        {"mm", low, {m, m}},
        {"prelu", low, {m, one}},
        {"scaled_dot_product_attention", low, {b, b, b}},

        {"_grid_sampler_2d_cpu_fallback", f32, {image, grid, 0, 0, false}},
        {"_lu_with_info", f32, {m}},
        {"adaptive_avg_pool3d", f32, {volume, n222}},
        {"adaptive_max_pool3d", f32, {volume, n222}},
        {"avg_pool3d", f32, {volume, n222}},
        {"binary_cross_entropy", f32, {probabilities, probabilities}},
        {"binary_cross_entropy_with_logits", f32, {m, probabilities}},
        {"cdist", f32, {m, m}},
        {"cholesky", f32, {spd}},
        {"cholesky_inverse", f32, {spd}},
        {"cholesky_solve", f32, {m, spd}},
        {"cosine_embedding_loss", f32, {m, m, signs}},
        {"cross_entropy_loss", f32, {m, classes}},
        {"ctc_loss.IntList", f32, {log_probabilities, sequences, Ints{5, 5}, Ints{2, 2}}},
        {"ctc_loss.Tensor", f32, {log_probabilities, sequences, lengths, target_lengths}},
        {"fake_quantize_per_tensor_affine", f32, {m, 0.1, 0, -8, 7}},
        {"fft_fft", f32, {m}},
        {"fft_fft2", f32, {m}},
        {"fft_fftn", f32, {m}},
        {"fft_hfft", f32, {m}},
        {"fft_ifft", f32, {m}},
        {"fft_ifft2", f32, {m}},
        {"fft_ifftn", f32, {m}},
        {"fft_ihfft", f32, {m}},
        {"fft_irfft", f32, {m}},
        {"fft_irfft2", f32, {m}},
        {"fft_irfftn", f32, {m}},
        {"fft_rfft", f32, {m}},
        {"fft_rfft2", f32, {m}},
        {"fft_rfftn", f32, {m}},
        {"fractional_max_pool2d", f32, {image, Ints{2, 2}, Ints{3, 3}, torch::rand({1, 2, 2})}},
        {"fractional_max_pool3d", f32, {volume, n222, n222, torch::rand({1, 2, 3})}},
        {"geqrf", f32, {m}},
        {"grid_sampler", f32, {image, grid, 0, 0, false}},
        {"grid_sampler_2d", f32, {image, grid, 0, 0, false}},
        {"grid_sampler_3d", f32, {volume, torch::rand({1, 2, 2, 2, 3}), 0, 0, false}},
        {"hinge_embedding_loss", f32, {m, torch::ones({4, 4})}},
        {"huber_loss", f32, {m, probabilities}},
        {"inverse", f32, {spd}},
        {"kl_div", f32, {m, probabilities}},
        {"l1_loss", f32, {m, probabilities}},
        {"linalg_cholesky", f32, {spd}},
        {"linalg_cholesky_ex", f32, {spd}},
        {"linalg_cond", f32, {spd}},
        {"linalg_cond.p_str", f32, {spd, "fro"}},
        {"linalg_eig", f32, {spd}},
        {"linalg_eigh", f32, {spd}},
        {"linalg_eigvals", f32, {spd}},
        {"linalg_eigvalsh", f32, {spd}},
        {"linalg_householder_product", f32, {m, v}},
        {"linalg_inv", f32, {spd}},
        {"linalg_inv_ex", f32, {spd}},
        {"linalg_lstsq", f32, {spd, m}},
        {"linalg_matrix_rank", f32, {spd, 0.1}},
        {"linalg_matrix_rank.atol_rtol_float", f32, {spd}},
        {"linalg_matrix_rank.atol_rtol_tensor", f32, {spd}},
        {"linalg_matrix_rank.tol_tensor", f32, {spd, one}},
        {"linalg_qr", f32, {m}},
        {"linalg_solve", f32, {spd, m}},
        {"linalg_svd", f32, {m}},
        {"linalg_svdvals", f32, {m}},
        {"linalg_tensorinv", f32, {spd.view({2, 2, 2, 2})}},
        {"linalg_tensorsolve", f32, {spd.view({2, 2, 4}), torch::randn({2, 2})}},
        {"lu_solve", f32, {m, std::get<0>(lu), std::get<1>(lu)}},
        {"margin_ranking_loss", f32, {v, v, signs}},
        {"max_pool3d", f32, {volume, n222}},
        {"max_unpool2d", f32, {std::get<0>(pooled2), std::get<1>(pooled2), Ints{6, 6}}},
        {"max_unpool3d",
         f32,
         {std::get<0>(pooled3), std::get<1>(pooled3), Ints{4, 4, 4}, n222, Ints{0, 0, 0}}},
        {"mse_loss", f32, {m, probabilities}},
        {"multi_margin_loss", f32, {m, classes}},
        {"multilabel_margin_loss", f32, {m, labels}},
        {"multilabel_margin_loss_forward", f32, {m, labels, 1}},
        {"nanquantile", f32, {m, one}},
        {"nanquantile.scalar", f32, {m, 0.3}},
        {"nll_loss", f32, {m, classes}},
        {"nll_loss2d", f32, {image, torch::zeros({1, 6, 6}, at::kLong)}},
        {"orgqr", f32, {m, v}},
        {"ormqr", f32, {m, v, m}},
        {"pinverse", f32, {m}},
        {"poisson_nll_loss", f32, {m, probabilities, true, false, 1e-8, 1}},
        {"polar", f32, {v, v}},
        {"prod", f32, {v}},
        {"prod.dim_int", f32, {m, 0}},
        {"qr", f32, {m}},
        {"quantile", f32, {m, one}},
        {"quantile.scalar", f32, {m, 0.3}},
        {"reflection_pad1d", f32, {m, n11}},
        {"reflection_pad2d", f32, {b, Ints{1, 1, 1, 1}}},
        {"replication_pad1d", f32, {m, n11}},
        {"replication_pad2d", f32, {b, Ints{1, 1, 1, 1}}},
        {"replication_pad3d", f32, {volume, Ints{1, 1, 1, 1, 1, 1}}},
        {"smooth_l1_loss", f32, {m, probabilities}},
        {"soft_margin_loss", f32, {m, torch::ones({4, 4})}},
        {"stft", f32, {torch::randn({16}), 8, none, none, none, false, none, true}},
        {"stft.center", f32, {torch::randn({16}), 8, none, none, none, true, "reflect", false, none, true}},
        {"svd", f32, {m}},
        {"trace", f32, {m}},
        {"triangular_solve", f32, {m, spd}},
        {"triplet_margin_loss", f32, {m, probabilities, spd}},
        {"view_as_complex", f32, {torch::randn({4, 2})}},

        {"cat", widest, {Tensors{v, low_v}}},
        {"index_copy", widest, {v, 0, torch::tensor({1}), one}},
        {"stack", widest, {Tensors{v, low_v}}},
    };
  }();
  return rows;
}

/// Operations of the CPU's list that have no row.
const std::vector<std::string> kUntestedOperations = {
    "index_copy.dimname", "prod.dim_Dimname",  // names cannot be passed through a boxed call
    "mkldnn_rnn_layer"};                       // tested in Autocast.AC21_RecurrentLayers

const char* const kCudaList =
    "_convolution _convolution.deprecated _cudnn_rnn _scaled_dot_product_flash_attention "
    "_thnn_fused_gru_cell _thnn_fused_lstm_cell _upsample_bicubic2d_aa _upsample_bilinear2d_aa "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d acos addbmm "
    "addcdiv addcmul addmm addmv addr asin atan2 baddbmm bilinear binary_cross_entropy "
    "binary_cross_entropy_with_logits bmm cdist chain_matmul conv1d conv2d conv3d conv_tbc "
    "conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution cosh "
    "cosine_embedding_loss cosine_similarity cross cudnn_convolution cudnn_convolution_transpose "
    "cumprod cumprod.dimname cumsum cumsum.dimname dist dot einsum erfinv exp expm1 "
    "frobenius_norm.dim grid_sampler group_norm gru_cell hinge_embedding_loss huber_loss index_put "
    "kl_div l1_loss layer_norm linalg_matrix_norm linalg_matrix_norm.str_ord linalg_multi_dot "
    "linalg_vecdot linalg_vector_norm linear log log10 log1p log2 log_softmax.Dimname "
    "log_softmax.int logsumexp lstm_cell margin_ranking_loss matmul mm mse_loss multi_margin_loss "
    "multilabel_margin_loss mv native_layer_norm nll_loss nll_loss2d norm.Scalar norm.ScalarOpt_dim "
    "norm.names_ScalarOpt_dim nuclear_norm nuclear_norm.dim pdist poisson_nll_loss pow.Scalar "
    "pow.Tensor_Scalar pow.Tensor_Tensor prelu prod prod.dim_Dimname prod.dim_int reciprocal renorm "
    "rnn_relu_cell rnn_tanh_cell rsqrt scaled_dot_product_attention scatter_add sinh smooth_l1_loss "
    "soft_margin_loss softmax.Dimname softmax.int softplus sum sum.dim_DimnameList sum.dim_IntList "
    "tan tensordot triplet_margin_loss upsample_bicubic2d upsample_bilinear2d upsample_linear1d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d vdot ";

std::set<std::string> registered(c10::DispatchKey key) {
  std::set<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key))
    names.insert(toString(name).substr(std::string("aten::").size()));
  return names;
}

/// Operations that were added to a list after libtorch 2.11.
constexpr const char* kAddedAfter211[] = {"rms_norm", "linalg_matrix_sqrth"};

/// Returns the names that this libtorch has.
std::set<std::string> existing(const std::set<std::string>& names) {
  std::set<std::string> exist;
  for (const std::string& name : names)
    if (find_if_any(name)) exist.insert(name);
  return exist;
}

/// Returns the names that are in `a` and not in `b`.
std::set<std::string> without(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(rest, rest.end()));
  return rest;
}

TEST(AutocastOps, PE22_TheCpusListIsTheOneThatTheseTestsKnow) {
  std::set<std::string> known(kUntestedOperations.begin(), kUntestedOperations.end());
  for (const Row& row : rows()) known.insert(row.name);
  std::set<std::string> listed = registered(c10::DispatchKey::AutocastCPU);
  for (const char* const later : kAddedAfter211) listed.erase(later);
  listed.erase("lstm.input");  // registered by our own kernels, if an earlier test has enabled them
  EXPECT_THAT(without(listed, known), testing::IsEmpty());
  EXPECT_THAT(without(existing(known), listed), testing::IsEmpty());
  EXPECT_EQ(known.size(), 129u);
}

TEST(AutocastOps, PE22_CudasListIsTheOneOfTheSpecification) {
  std::istringstream words(kCudaList);
  std::set<std::string> known(std::istream_iterator<std::string>{words}, {});
  EXPECT_EQ(known.size(), 126u);
  if (!at::CUDAHooksRegistry()->Has("CUDAHooks"))
    known.erase("_cudnn_rnn");  // registered by libtorch's CUDA library, when that is loaded
  std::set<std::string> listed = registered(c10::DispatchKey::AutocastCUDA);
  EXPECT_THAT(without(existing(known), listed), testing::IsEmpty());
  for (const char* const later : kAddedAfter211) listed.erase(later);
  EXPECT_THAT(without(listed, known), testing::IsEmpty());
}

class AutocastOpsIn : public testing::TestWithParam<at::ScalarType> {};

// Compares bit for bit, as torch's own tests do.
TEST_P(AutocastOpsIn, PE20_PE21_AC19_EachEqualsItsInputsCastByHand) {
  const at::ScalarType dtype = GetParam();
  const Warnings silent;  // silences warnings about deprecated operations in the list
  for (const Row& row : rows()) {
    if (!find_if_any(row.name)) continue;  // libtorch 2.15 has no cholesky
    const auto op = find(row.name);
    const auto runs_in = row.policy == Policy::kLow ? dtype : at::kFloat;
    Arguments given = row.arguments;
    if (row.policy == Policy::kFloat32) given = with_dtype(given, dtype);
    if (row.policy == Policy::kWidest && given[0].isTensorList())
      given[0] = std::vector<at::Tensor>{given[0].toTensorVector()[0], torch::ones({4}, dtype)};
    if (row.name == "index_copy") given[3] = given[3].toTensor().to(dtype);
    const auto want = call(op, with_dtype(given, runs_in));
    const Autocast region(at::kCPU, {.dtype = dtype});
    const auto got = call(op, given);
    ASSERT_EQ(got.size(), want.size()) << row.name;
    ASSERT_FALSE(got.empty()) << row.name;
    // The last bit of LAPACK's least squares depends on where its arguments lie in memory, also without
    // autocast.
    const double tolerance = row.name == "linalg_lstsq" ? 1e-5 : 0;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), want[i].scalar_type()) << row.name;
      EXPECT_TRUE(at::allclose(got[i], want[i], tolerance, tolerance, /*equal_nan=*/true)) << row.name;
      if (got[i].is_floating_point()) {
        EXPECT_EQ(got[i].scalar_type(), runs_in) << row.name;
      }
      if (got[i].is_complex()) {
        EXPECT_EQ(got[i].scalar_type(), at::kComplexFloat) << row.name;
      }
    }
  }
}

// On the CPU these operations are not raised to float32, as they are on CUDA.
TEST_P(AutocastOpsIn, PE20_WhatTheCpuLeavesInItsDtype) {
  const auto x = torch::rand({4, 4}).to(GetParam());
  const Autocast region(at::kCPU, {.dtype = GetParam()});
  const auto image = x.view({1, 1, 4, 4});
  for (const at::Tensor& y : {at::softmax(x, 0),
                              at::log_softmax(x, 0),
                              at::exp(x),
                              at::log(x),
                              at::pow(x, 2),
                              at::sum(x),
                              at::mean(x),
                              at::cumsum(x, 0),
                              at::norm(x),
                              at::layer_norm(x, {4}),
                              at::group_norm(image, 1),
                              at::batch_norm(image, {}, {}, {}, {}, true, 0.1, 1e-5, false),
                              at::rms_norm(x, {4}),
                              at::softplus(x),
                              at::rsqrt(x),
                              at::reciprocal(x),
                              at::logsumexp(x, 0),
                              at::cosine_similarity(x, x),
                              at::upsample_nearest2d(image, {8, 8}),
                              at::gelu(x)})
    EXPECT_EQ(y.scalar_type(), GetParam());
  const auto wide = x.to(at::kFloat);
  for (const at::Tensor& y :
       {at::mv(wide, wide[0]), at::addmv(wide[0], wide, wide[0]), at::addr(wide, wide[0], wide[0]),
        at::dot(wide[0], wide[0]), at::bilinear(wide, wide, image[0].to(at::kFloat), {})})
    EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_EQ(at::einsum("ij,jk->ik", {wide, wide}).scalar_type(), GetParam());  // through bmm
  EXPECT_THROW(at::dot(wide[0], x[0]), c10::Error);
  EXPECT_THROW(at::scatter_add(wide, 0, torch::zeros({1, 4}, at::kLong), x), c10::Error);
  EXPECT_THROW(at::index_put(wide, {torch::tensor({0})}, x[0]), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(EachDtype, AutocastOpsIn, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return toString(info.param); });

// Every build of libtorch has the kernel, with or without a GPU.
TEST(AutocastOps, AC20_CudaRefusesBinaryCrossEntropyWithTheCure) {
  const auto x = torch::rand({3});
  torch::jit::Stack stack = {x, x, c10::IValue(), 1};
  expect_error(
      [&] {
        find("binary_cross_entropy")
            .redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutocastCUDA), &stack);
      },
      "binary_cross_entropy_with_logits");
}

TEST(AutocastOps, PE20_CudasPolicies) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const auto x = torch::rand({4, 4}, at::kCUDA), low = x.to(at::kHalf);
  const Autocast region(at::kCUDA);
  for (const at::Tensor& y :
       {at::mm(x, x), at::mv(x, x[0]), at::addr(x, x[0], x[0]), at::einsum("ij,jk->ik", {x, x})})
    EXPECT_EQ(y.scalar_type(), at::kHalf);
  for (const at::Tensor& y : {at::softmax(low, 0), at::exp(low), at::pow(low, 2), at::sum(low), at::norm(low),
                              at::layer_norm(low, {4}), at::mse_loss(low, low), at::logsumexp(low, 0)})
    EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_EQ(at::softmax(low, 0, at::kDouble).scalar_type(), at::kDouble);  // an explicit output dtype wins
  for (const at::Tensor& y : {at::dot(x[0], low[0]), at::atan2(x, low), at::addcmul(x, low, low)})
    EXPECT_EQ(y.scalar_type(), at::kFloat);
}

// The cache of casts belongs to one dtype.
TEST(AutocastOps, ARegionOfAnotherDtypeUsesNoCastOfTheOuterOne) {
  const auto x = torch::ones({2, 2}), weight = torch::ones({2, 2}).requires_grad_();
  const auto cast_to = [&](at::ScalarType dtype) {
    return at::autocast::cached_cast(dtype, weight, at::kCPU);
  };
  const Autocast outer(at::kCPU, {.dtype = at::kBFloat16});
  const at::Tensor cast = cast_to(at::kBFloat16);
  {
    const Autocast same(at::kCPU, {.dtype = at::kBFloat16});
    EXPECT_TRUE(cast_to(at::kBFloat16).is_same(cast));
  }
  EXPECT_TRUE(cast_to(at::kBFloat16).is_same(cast));
  {
    const Autocast inner(at::kCPU, {.dtype = at::kHalf});
    EXPECT_EQ(cast_to(at::kHalf).scalar_type(), at::kHalf);
    EXPECT_EQ(at::mm(x, weight).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(cast_to(at::kBFloat16).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::mm(x, weight).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace mantissa::autocast_ops_test
