// The 8-bit optimizers compared with what bitsandbytes 0.50.2 computed on a CPU, and with what its kernels for
// CUDA are written to do ("devref"): testdata/optim8bit.safetensors.
#include <cstdint>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/optimizers_8bit.h"

namespace mantissa::optimizer_8bit_vectors_test {
namespace {

using torch::optim::RMSpropOptions;

/// Reads a small safetensors file. The room of files is not below this one.
std::map<std::string, at::Tensor> read_vectors() {
  const std::string file = content_of(test_data("optim8bit.safetensors"));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const std::string header = file.substr(sizeof length, length);
  const char* const data = file.data() + sizeof length + length;
  const std::regex entry(
      R"re("(\w+)": \{"dtype": "(F32|U8)", "shape": \[([\d, ]*)\], "data_offsets": \[(\d+), \d+\]\})re");
  std::map<std::string, at::Tensor> tensors;
  for (std::sregex_iterator it(header.begin(), header.end(), entry), end; it != end; ++it) {
    std::vector<int64_t> shape;
    std::stringstream sizes((*it)[3].str());
    for (std::string size; std::getline(sizes, size, ',');) shape.push_back(std::stoll(size));
    void* const begin = const_cast<char*>(data + std::stoull((*it)[4].str()));
    tensors[(*it)[1].str()] = at::from_blob(begin, shape, (*it)[2] == "F32" ? at::kFloat : at::kByte).clone();
  }
  return tensors;
}

const at::Tensor& vector_of(const std::string& name) {
  static const auto all = read_vectors();
  return all.at(name);
}

struct Run {
  at::Tensor parameter, state1, state2;  // flat
};

/// Takes the recorded steps; returns what was there after steps 1, 2 and 10.
std::map<int, Run> run(const std::function<std::unique_ptr<LowBitOptimizer>(const at::Tensor&)>& make) {
  const at::Tensor p = vector_of("p0").clone().set_requires_grad(true), &gradients = vector_of("grads");
  const auto optimizer = make(p);
  std::map<int, Run> seen;
  for (int step = 1; step <= 10; ++step) {
    p.mutable_grad() = gradients[step - 1].clone();
    optimizer->step();
    const auto& state =
        dynamic_cast<const LowBitParamState&>(*optimizer->state().at(p.unsafeGetTensorImpl()));
    seen[step] = {p.detach().clone().view(-1), state.state1().clone().view(-1),
                  state.state2().defined() ? state.state2().clone().view(-1) : at::Tensor()};
  }
  return seen;
}

const LowBitOptions kSmall = {.min_8bit_size = 256};

at::Tensor has_gradient() { return (vector_of("grads").abs().sum(0) > 0).view(-1); }

/// The distance of each element that has gradients from the recorded one.
at::Tensor distance(const Run& run, const std::string& name, int step) {
  const at::Tensor recorded = vector_of(name + "_p_" + std::to_string(step)).view(-1);
  return (run.parameter - recorded).abs().masked_select(has_gradient());
}

double largest(const at::Tensor& values) { return values.max().item<double>(); }

/// Codes of bitsandbytes's CUDA kernels, in the elements that have gradients: this implementation never
/// encodes a small second moment as 0, and an element without gradient has either code of 0.
void expect_same_codes(const at::Tensor& got, const std::string& name, double share) {
  const at::Tensor difference =
      (got.to(at::kInt) - vector_of(name).view(-1).to(at::kInt)).abs().masked_select(has_gradient());
  EXPECT_LE(difference.ne(0).to(at::kFloat).mean().item<double>(), share) << name;
  EXPECT_LE(difference.max().item<int>(), 1) << name;
}

void compare_with_reference(const std::string& name, const std::map<int, Run>& seen) {
  const std::string reference = name + "_devref";
  EXPECT_LE(largest(distance(seen.at(1), reference, 1)), 1e-7);
  EXPECT_LE(largest(distance(seen.at(2), reference, 2)), 1e-6);
  EXPECT_LE(largest(distance(seen.at(10), reference, 10)), 2e-4);
  EXPECT_LE(distance(seen.at(10), reference, 10).mean().item<double>(), 2e-6);
  for (const auto& [step, share] : {std::pair(1, 0.0), {2, 0.02}, {10, 0.02}}) {
    expect_same_codes(seen.at(step).state1, reference + "_state1_" + std::to_string(step), share);
    expect_same_codes(seen.at(step).state2, reference + "_state2_" + std::to_string(step), share);
  }
  // The peer's CPU path errs in the elements without gradient only.
  EXPECT_LE(largest(distance(seen.at(2), name, 2)), 1e-6);
  EXPECT_LE(largest(distance(seen.at(10), name, 10)), 2e-4);
  EXPECT_LE(distance(seen.at(10), name, 10).mean().item<double>(), 2e-6);
}

TEST(EightBitVectors, Q38_Q39_Adam8bit) {
  compare_with_reference("adam8bit", run([](const at::Tensor& p) {
                           return std::make_unique<Adam8bit>(std::vector{p}, AdamOptions(1e-3), kSmall);
                         }));
}

TEST(EightBitVectors, Q41_AdamW8bit) {
  compare_with_reference(
      "adamw8bit", run([](const at::Tensor& p) {
        const AdamOptions options = AdamOptions(1e-3).betas({0.9, 0.995}).weight_decay(0.01);
        return std::make_unique<AdamW8bit>(std::vector{p}, AdamWOptions(options), kSmall);
      }));
}

void compare_one_state(const std::string& name, const std::map<int, Run>& seen) {
  EXPECT_LE(largest(distance(seen.at(1), name, 1)), 1e-7);
  EXPECT_LE(largest(distance(seen.at(2), name, 2)), 1e-7);
  const at::Tensor last = distance(seen.at(10), name, 10);
  EXPECT_GE(last.le(1e-6).to(at::kFloat).mean().item<double>(), 0.98);
  EXPECT_LE(largest(last), 5e-4);
}

TEST(EightBitVectors, Q42_SGD8bit) {
  compare_one_state("sgd8bit", run([](const at::Tensor& p) {
                      const SGDOptions options = SGDOptions(0.01).momentum(0.9).weight_decay(0.01);
                      return std::make_unique<SGD8bit>(std::vector{p}, options, kSmall);
                    }));
}

TEST(EightBitVectors, Q42_RMSprop8bit) {
  compare_one_state("rmsprop8bit", run([](const at::Tensor& p) {
                      return std::make_unique<RMSprop8bit>(std::vector{p}, RMSpropOptions(1e-3), kSmall);
                    }));
}

TEST(EightBitVectors, Q42_Adagrad8bit) {
  compare_one_state("adagrad8bit", run([](const at::Tensor& p) {
                      return std::make_unique<Adagrad8bit>(std::vector{p}, AdagradOptions(0.01), kSmall);
                    }));
}

TEST(EightBitVectors, Q42_Lion8bit) {
  const auto seen = run([](const at::Tensor& p) {
    return std::make_unique<Lion8bit>(std::vector{p}, LionOptions(1e-4).weight_decay(0.1), kSmall);
  });
  EXPECT_LE(largest(distance(seen.at(1), "lion8bit", 1)), 1e-7);
  EXPECT_LE(largest(distance(seen.at(2), "lion8bit", 2)), 1e-7);
  // An element whose direction is near 0 may go the other way once: a multiple of 2 lr.
  const at::Tensor last = distance(seen.at(10), "lion8bit", 10);
  EXPECT_LE(last.gt(1e-7).sum().item<int64_t>(), 3);
  EXPECT_LE(largest((last / 2e-4 - (last / 2e-4).round()).abs()), 1e-3);
}

}  // namespace
}  // namespace mantissa::optimizer_8bit_vectors_test
