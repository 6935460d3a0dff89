#include <c10/util/Exception.h>

#include "mantissa/models/tokens_internal.h"

namespace mantissa {

at::Tensor embed_tokens(const char* model, torch::nn::Embedding& embedding, const at::Tensor& tokens,
                        int64_t context, int64_t before) {
  TORCH_CHECK_TYPE(tokens.scalar_type() == at::kLong || tokens.scalar_type() == at::kInt, model,
                   ": expects tokens of int64 or int32; got ", tokens.scalar_type(),
                   "; convert with .to(at::kLong)");
  TORCH_CHECK_VALUE(tokens.dim() == 2 && tokens.size(1) > 0, model, ": expects tokens [batch, length]; got ",
                    tokens.sizes(), "; add a batch dimension with unsqueeze(0)");
  TORCH_CHECK_VALUE(before + tokens.size(1) <= context, model, ": a sequence of ", before + tokens.size(1),
                    " tokens is longer than the context of ", context,
                    "; cut it, or make the model with a larger context");
  try {
    return embedding(tokens);
  } catch (const c10::IndexError&) {
    // The look-up has already checked every token; checking first would read all tokens in every step.
    TORCH_CHECK_INDEX(false, model, ": tokens run from ", tokens.min().item<int64_t>(), " to ",
                      tokens.max().item<int64_t>(), ", and the vocabulary is 0 to ",
                      embedding->weight.size(0) - 1, "; make the model with a larger vocabulary");
  }
}

}  // namespace mantissa
