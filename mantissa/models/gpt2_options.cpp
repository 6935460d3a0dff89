#include "mantissa/models/gpt2_options.h"

#include <array>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/json_internal.h"

namespace mantissa {
namespace {

struct Size {
  const char* name;
  int64_t n_embd, n_layer, n_head;
};

constexpr std::array kSizes{Size{"gpt2", 768, 12, 12}, Size{"gpt2-medium", 1024, 24, 16},
                            Size{"gpt2-large", 1280, 36, 20}, Size{"gpt2-xl", 1600, 48, 25}};

}  // namespace

const std::vector<std::string>& gpt2_sizes() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Size& size : kSizes) all.emplace_back(size.name);
    return all;
  }();
  return names;
}

Gpt2Options gpt2_options(const std::string& name) {
  for (const Size& size : kSizes)
    if (name == size.name) return {.n_embd = size.n_embd, .n_layer = size.n_layer, .n_head = size.n_head};
  TORCH_CHECK_VALUE(false, "gpt2_options: no size is called '", name, "'", did_you_mean(name, gpt2_sizes()),
                    " (sizes: ", join_names(gpt2_sizes()), ")");
}

void check_gpt2_options(const Gpt2Options& o, const std::string& who) {
  for (const auto& [name, size] : {std::pair("vocab_size", o.vocab_size),
                                   {"n_positions", o.n_positions},
                                   {"n_embd", o.n_embd},
                                   {"n_layer", o.n_layer},
                                   {"n_head", o.n_head},
                                   {"n_inner", o.inner()}})
    TORCH_CHECK_VALUE(size > 0, who, ": ", name, " is ", size, "; give a number above 0");
  TORCH_CHECK_VALUE(o.n_embd % o.n_head == 0, who, ": n_embd ", o.n_embd, " is not a multiple of n_head ",
                    o.n_head, "; change one of them");
  for (const auto& [name, number] :
       {std::pair("layer_norm_epsilon", o.layer_norm_epsilon), {"initializer_range", o.initializer_range}})
    TORCH_CHECK_VALUE(number > 0 && std::isfinite(number), who, ": ", name, " is ", number,
                      "; give a number above 0");
  for (const auto& [name, share] :
       {std::pair("resid_pdrop", o.resid_pdrop), {"embd_pdrop", o.embd_pdrop}, {"attn_pdrop", o.attn_pdrop}})
    TORCH_CHECK_VALUE(share >= 0 && share < 1, who, ": ", name, " is ", share,
                      "; give a probability from 0 to below 1");
  TORCH_CHECK_VALUE(o.activation_function == "gelu_new" || o.activation_function == "gelu_pytorch_tanh" ||
                        o.activation_function == "gelu",
                    who, ": activation_function '", fit_for_message(o.activation_function),
                    "' is not supported; only gelu_new, gelu_pytorch_tanh and gelu are");
}

}  // namespace mantissa
