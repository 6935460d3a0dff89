#include "mantissa/optim/blockwise.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/aten/update_factors.h"
#include "mantissa/kernels/cpu/blockwise.h"
#include "mantissa/optim/blockwise_internal.h"

namespace mantissa::blockwise_test {
namespace {

using kernels::DynamicMap;
using kernels::UpdateRule;
using testing::HasSubstr;

constexpr DynamicMap kMaps[] = {DynamicMap::kSigned, DynamicMap::kUnsigned};

at::Tensor random(int64_t count) {
  torch::manual_seed(2);
  return at::randn({count}) * at::exp(at::randn({count}) * 4);
}

void expect_equal(const BlockwiseCodes& a, const BlockwiseCodes& b) {
  EXPECT_TRUE(at::equal(a.codes, b.codes)) << (a.codes != b.codes).sum().item<int64_t>();
  EXPECT_TRUE(at::equal(a.absmax, b.absmax));
}

TEST(Blockwise, OperationsGiveTheKernelsBits) {
  for (const DynamicMap map : kMaps) {
    const bool is_signed = map == DynamicMap::kSigned;
    for (const int64_t count : {0, 1, 255, 256, 257, 100'003}) {
      at::Tensor values = is_signed ? random(count) : random(count).abs();
      if (count > 300) {
        values[7] = NAN, values[8] = 0, values[300] = INFINITY;
        values.slice(0, 512, 768) = 0;
        values.slice(0, 768, 1024) *= 1e-38;
      }
      const BlockwiseCodes codes = quantize_blockwise(values, is_signed);
      expect_equal(codes, quantize_by_operations(values, map));
      EXPECT_TRUE(at::equal(dequantize_blockwise(codes, is_signed), dequantize_by_operations(codes, map)));
    }
    const float* const table = is_signed ? kDynamicSigned : kDynamicUnsigned;
    for (int code = 0; code < 255; ++code) {
      const at::Tensor middle = at::full({1000}, table[code] / 2 + table[code + 1] / 2);
      const at::Tensor near =
          at::cat({at::ones({1}), middle + (at::arange(1000) - 500) * 1e-8}).slice(0, 0, 256);
      expect_equal(quantize_blockwise(near, is_signed), quantize_by_operations(near, map));
    }
  }
}

// The reciprocal of the smallest absmax is infinite, and twice the largest one is.
TEST(Blockwise, OperationsGiveTheKernelsBitsOfBlocksOfEverySize) {
  const at::Tensor values = at::linspace(-1.9375, 1.9375, 256);
  for (const int exponent : {-149, -140, -127, -126, -101, -100, -99, 0, 100, 126, 127}) {
    const at::Tensor block = values * std::ldexp(1.0F, exponent);
    expect_equal(quantize_blockwise(block), quantize_by_operations(block, DynamicMap::kSigned));
  }
}

TEST(Blockwise, TakesAnyShapeLayoutAndFloatDtype) {
  const at::Tensor values = random(600).view({20, 30});
  const BlockwiseCodes codes = quantize_blockwise(values);
  EXPECT_EQ(codes.codes.sizes(), values.sizes());
  EXPECT_EQ(codes.absmax.sizes(), at::IntArrayRef({3}));
  expect_equal(codes, quantize_blockwise(values.t().contiguous().t()));
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor narrow = at::linspace(-1, 1, 600).to(dtype);
    expect_equal(quantize_blockwise(narrow), quantize_blockwise(narrow.to(at::kFloat)));
  }
  EXPECT_LE(((dequantize_blockwise(codes) - values).abs() / values.abs().max()).max().item<float>(), 0.0071F);
}

TEST(Blockwise, RefusesWhatItCannotQuantize) {
  EXPECT_THAT(error_of([] { quantize_blockwise(at::ones({3}, at::kDouble)); }),
              HasSubstr("must be float32, bfloat16 or float16; they are Double"));
  EXPECT_THAT(error_of([] {
                dequantize_blockwise({at::zeros({300}, at::kByte), at::zeros({1})});
              }),
              HasSubstr("300 codes have 2 blocks; absmax has the shape [1]"));
  EXPECT_THROW(dequantize_blockwise({at::zeros({3}), at::zeros({1})}), c10::TypeError);
}

/// A parameter, its gradient and its states, which a kernel or operations update.
struct Trained {
  at::Tensor parameter, gradient, state1, absmax1, state2, absmax2;

  Trained(UpdateRule rule, at::ScalarType dtype, int bits) : count(bits == 4 ? 7 * 128 : 1003) {
    torch::manual_seed(4);
    parameter = at::randn({count}).to(dtype);
    const auto states = at::TensorOptions(bits == 32 ? at::kFloat : at::kByte);
    const int64_t values = bits == 4 ? count / 2 : count, blocks = bits == 4 ? 7 : 4;
    state1 = at::zeros({values}, states);
    if (bits < 32) absmax1 = at::zeros({blocks});
    if (!kernels::has_second_state(rule)) return;
    state2 = at::zeros({values}, states);
    if (bits < 32) absmax2 = at::zeros({blocks});
  }
  void take_gradient(uint64_t seed) {
    torch::manual_seed(seed);
    gradient = (at::randn({count}) * at::exp(at::randn({count}) * 2)).to(parameter.scalar_type());
    gradient[3] = 0, gradient[4] = NAN, gradient[5] = INFINITY;
  }
  kernels::UpdateState state(const at::Tensor& values, const at::Tensor& absmax) const {
    if (!values.defined()) return {};
    if (!absmax.defined()) return {nullptr, nullptr, values.mutable_data_ptr<float>()};
    return {values.mutable_data_ptr<uint8_t>(), absmax.mutable_data_ptr<float>(), nullptr};
  }
  Trained copy() const {
    Trained copied = *this;
    for (at::Tensor* const tensor : {&copied.parameter, &copied.gradient, &copied.state1, &copied.absmax1,
                                     &copied.state2, &copied.absmax2})
      *tensor = tensor->clone();
    return copied;
  }
  std::vector<at::Tensor> everything() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& tensor : {parameter, gradient, state1, absmax1, state2, absmax2})
      if (tensor.defined()) all.push_back(tensor.to(at::kDouble).nan_to_num(12345));
    return all;
  }

  int64_t count;
};

TEST(Blockwise, UpdatesByOperationsHaveTheKernelsBits) {
  for (const UpdateRule rule : {UpdateRule::kAdam, UpdateRule::kAdamDecayFirst, UpdateRule::kLion,
                                UpdateRule::kSGD, UpdateRule::kRMSprop, UpdateRule::kAdagrad}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int bits : {4, 8, 32}) {
        if (bits == 4 && !kernels::has_second_state(rule)) continue;
        for (const bool is_plain : {true, false}) {
          Trained kernel(rule, dtype, bits), operations(rule, dtype, bits);
          kernels::BlockwiseUpdate update;
          update.has_4_bit_codes = bits == 4;
          update.rule = rule;
          update.factors = {.step_size = 0.01F,
                            .beta1 = 0.9F,
                            .beta2 = 0.99F,
                            .rest1 = 0.1F,
                            .rest2 = 0.01F,
                            .eps = 1e-7F,
                            .decay = 0.1F,
                            .keep = 0.99F};
          update.maximize = !is_plain;
          update.grad_scale = is_plain ? 1 : 3;
          update.rounds_stochastically = !is_plain;
          update.seed = 9, update.first_draw = 16;
          for (int64_t step = 0; step < 3; ++step) {
            kernel.take_gradient(static_cast<uint64_t>(step));
            operations.take_gradient(static_cast<uint64_t>(step));
            update.stream = step;
            UpdateTensors tensors = {operations.parameter, operations.gradient, operations.state1,
                                     operations.absmax1,   operations.state2,   operations.absmax2,
                                     at::Tensor(),         at::Tensor(),        at::Tensor()};
            if (!is_plain) {
              tensors.grad_scale = at::full({}, 3.0), tensors.found_inf = at::zeros({});
              tensors.stream = at::full({}, step, at::kLong);
            }
            if (dtype == at::kFloat) tensors.stream = at::Tensor();
            update_by_operations(update, tensors, {at::full({}, 0.01), at::full({}, 1e-7)});
            kernels::BlockwiseUpdate problem = update;
            problem.element = dtype == at::kHalf       ? kernels::Element::kFloat16
                              : dtype == at::kBFloat16 ? kernels::Element::kBFloat16
                                                       : kernels::Element::kFloat32;
            problem.parameter = kernel.parameter.mutable_data_ptr();
            problem.gradient = kernel.gradient.mutable_data_ptr();
            problem.state1 = kernel.state(kernel.state1, kernel.absmax1);
            problem.state2 = kernel.state(kernel.state2, kernel.absmax2);
            problem.count = kernel.count;
            kernels::cpu::update_blockwise({problem});
          }
          const auto a = kernel.everything(), b = operations.everything();
          for (size_t i = 0; i < a.size(); ++i)
            EXPECT_TRUE(at::equal(a[i], b[i])) << static_cast<int>(rule) << " " << dtype << " " << bits << " "
                                               << is_plain << " tensor " << i;
        }
      }
    }
  }
}

// An infinite parameter whose decay is added to the gradient makes its states inf or nan.
TEST(Blockwise, AParameterThatIsNotFiniteHasTheSameStatesOf4BitsEverywhere) {
  Trained start(UpdateRule::kAdamDecayFirst, at::kFloat, 4);
  start.parameter[9] = INFINITY, start.parameter[10] = NAN, start.parameter[200] = -INFINITY;
  start.parameter[300] = NAN;  // in a block whose absmax is that of finite numbers
  start.gradient = at::linspace(-1, 1, start.count);
  kernels::BlockwiseUpdate update;
  update.rule = UpdateRule::kAdamDecayFirst;
  update.has_4_bit_codes = true;
  update.factors = {.step_size = 0.01F,
                    .beta1 = 0.9F,
                    .beta2 = 0.99F,
                    .rest1 = 0.1F,
                    .rest2 = 0.01F,
                    .eps = 1e-7F,
                    .decay = 0.1F};
  const Trained operations = start.copy();
  update_by_operations(update,
                       {operations.parameter, operations.gradient, operations.state1, operations.absmax1,
                        operations.state2, operations.absmax2, at::Tensor(), at::Tensor(), at::Tensor()},
                       {at::full({}, 0.01), at::full({}, 1e-7)});
  EXPECT_TRUE(operations.absmax1.isfinite().all().item<bool>());
  for (const auto& build : kernels::cpu::blockwise_builds()) {
    if (!cpu_features().includes(features_of(build.tier))) continue;
    const Trained kernel = start.copy();
    update.parameter = kernel.parameter.mutable_data_ptr();
    update.gradient = kernel.gradient.mutable_data_ptr();
    update.state1 = kernel.state(kernel.state1, kernel.absmax1);
    update.state2 = kernel.state(kernel.state2, kernel.absmax2);
    update.count = kernel.count;
    kernels::cpu::update_blockwise({update}, build);
    const auto a = kernel.everything(), b = operations.everything();
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(at::equal(a[i], b[i])) << i << " " << tier_name(build.tier);
  }
}

TEST(Blockwise, TheSecondMomentsOfATinyBlockAreNotNegative) {
  for (const float absmax : {1e-37F, 1e-38F, 1e-39F, 1e-40F, 1e-43F, 0.0F}) {
    const BlockwiseCodes states = {at::arange(256, at::kByte), at::full({1}, absmax)};
    EXPECT_GE(decode_states_by_operations(states, kernels::DynamicMap::kUnsigned).min().item<float>(), 0)
        << absmax;
  }
}

TEST(Blockwise, TheCodesOf0Mean0AndNotMinus0) {
  const at::Tensor zeros = at::zeros({256});
  for (const DynamicMap map : kMaps) {
    const at::Tensor decoded = decode_states_by_operations(encode_states_by_operations(zeros, map), map);
    EXPECT_TRUE(at::equal(decoded, zeros));
    EXPECT_FALSE(decoded.signbit().any().item<bool>());
  }
}

TEST(Blockwise, TheFactorsOfAStepAreNearTheKernels) {
  const LowBitHyperparameters h = {.lr = 0.25, .beta1 = 0.75, .beta2 = 0.9, .eps = 0.01};
  for (const UpdateRule rule : {UpdateRule::kAdam, UpdateRule::kAdamDecayFirst, UpdateRule::kLion,
                                UpdateRule::kSGD, UpdateRule::kRMSprop, UpdateRule::kAdagrad}) {
    for (const double step : {1, 2, 30}) {
      const UpdateFactorTensors factors = factors_of_step(rule, h, at::full({}, step, at::kFloat));
      const kernels::UpdateFactors want =
          kernels::update_factors(rule, false, {h.lr, h.beta1, h.beta2, h.eps, h.weight_decay}, step);
      EXPECT_FLOAT_EQ(factors.step_size.item<float>(), want.step_size) << static_cast<int>(rule);
      EXPECT_FLOAT_EQ(factors.eps.item<float>(), want.eps) << static_cast<int>(rule);
    }
  }
}

TEST(Blockwise, AnUpdateThatIsSkippedOnTheDeviceChangesNothing) {
  Trained trained(UpdateRule::kAdam, at::kFloat, 8);
  trained.take_gradient(1);
  const auto before = trained.everything();
  update_by_operations({},
                       {trained.parameter, trained.gradient, trained.state1, trained.absmax1, trained.state2,
                        trained.absmax2, at::full({}, 2.0), at::ones({}), at::Tensor()},
                       {at::full({}, 0.1), at::full({}, 1e-8)});
  const auto after = trained.everything();
  for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i])) << i;
}

TEST(Blockwise, TheMapsAreSharedAndEqualTheTables) {
  for (const DynamicMap map : kMaps) {
    const at::Tensor& values = dynamic_map(map, at::kCPU);
    EXPECT_TRUE(values.is_same(dynamic_map(map, at::kCPU)));
    for (int code = 0; code < 256; ++code)
      EXPECT_EQ(values[code].item<float>(),
                (map == DynamicMap::kSigned ? kDynamicSigned : kDynamicUnsigned)[code]);
  }
}

}  // namespace
}  // namespace mantissa::blockwise_test
