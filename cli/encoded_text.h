#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mantissa {
class Tokenizer;
}

namespace mantissa::cli {

struct EncodedText {
  size_t bytes;
  std::vector<int64_t> ids;  ///< without those that a tokenizer's template adds
};

/// Reads and encodes a text file.
/// Errors: c10::ValueError that names the file and the position of a byte that is not UTF-8; those of load_text() and
///         Tokenizer::encode().
EncodedText encode_text_file(const std::string& path, const Tokenizer& tokenizer);

}  // namespace mantissa::cli
