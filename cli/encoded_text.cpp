#include "cli/encoded_text.h"

#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "mantissa/data/text.h"
#include "mantissa/data/tokenizers/tokenizer.h"
#include "mantissa/data/tokenizers/utf8_internal.h"

namespace mantissa::cli {

EncodedText encode_text_file(const std::string& path, const Tokenizer& tokenizer) {
  const at::Tensor bytes = load_text(path);
  const std::string_view text(static_cast<const char*>(bytes.const_data_ptr()),
                              static_cast<size_t>(bytes.numel()));
  const size_t invalid = tokenizers::find_invalid_utf8(text);
  TORCH_CHECK_VALUE(invalid == std::string_view::npos, "text file '", path, "' is not UTF-8 at byte ",
                    invalid, ", and a tokenizer reads nothing else; convert it to UTF-8");
  return {text.size(), tokenizer.encode(text, /*add_special_tokens=*/false)};
}

}  // namespace mantissa::cli
