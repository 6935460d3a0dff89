// Writes a checkpoint that tests/parity/test_checkpoints.py reads with Python.
//
//   checkpoint_runner FOLDER
#include <cstdio>
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/ones.h>

#include "mantissa/io/checkpoint.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: checkpoint_runner FOLDER\n");
    return 2;
  }
  using mantissa::StateDict, mantissa::StateList, mantissa::StateValue;
  const at::Tensor numbers = at::arange(6).reshape({2, 3});
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor complex = at::complex(numbers.to(at::kDouble), -numbers.to(at::kDouble));
  mantissa::save_checkpoint(
      argv[1],
      {1200,
       {{"0.weight", numbers.to(at::kFloat)},
        {"0.bias", numbers.to(at::kBFloat16).t()},
        {"0.phase", complex}},
       {{"optimizers", StateList{StateDict{{"exp_avg", numbers}, {"lr", 0.1}}}},
        {"numbers", StateList{1, 1.0, -0.0, 5e-324, inf, -inf, std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<int64_t>::min()}},
        {"complex", complex[0][2]},
        {"$name", StateDict{{"$tensor", "a name"}}},
        {"text", "Grüße\n"},
        {"nothing", StateValue()},
        {"flag", true}}});
  return 0;
}
