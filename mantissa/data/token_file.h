#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "mantissa/data/dataset.h"

namespace mantissa {

/// The forms of a file of token ids. All numbers are little-endian.
enum class TokenFormat {
  kUint16,  ///< nanoGPT's .bin: ids of 16 bits, without a header
  kUint32,  ///< ids of 32 bits, without a header
  kGpt2,    ///< llm.c's .bin for GPT-2: 1,024 bytes of header, then ids of 16 bits
  kLlama3,  ///< llm.c's .bin for Llama 3: 1,024 bytes of header, then ids of 32 bits
};

/// A file of token ids, mapped into memory: opening it reads only the header, whatever its size.
///
/// The file must not become shorter while it is open, because reading behind its end ends the process (SIGBUS).
/// Threads: several threads may read at once.
/// Source:  nanoGPT, data/*/prepare.py; llm.c, dev/data/data_common.py.
class TokenFile {
 public:
  /// Opens `path`. A file that begins with llm.c's header has that form. `headerless` is the form of any other file.
  /// Errors: c10::Error that names the file if it cannot be read; c10::ValueError that names it if it is empty, if its
  ///         length does not fit the form, or if `headerless` is a form with a header.
  explicit TokenFile(const std::filesystem::path& path, TokenFormat headerless = TokenFormat::kUint16);

  const std::filesystem::path& path() const { return path_; }
  TokenFormat format() const { return format_; }
  /// Returns the number of tokens.
  int64_t size() const { return size_; }
  /// Copies `count` tokens to `to`, from position `begin` on. The caller keeps to 0..size(). Returns the position of the
  /// first token that is `vocabulary` or above, and copies it nonetheless.
  std::optional<int64_t> read(int64_t begin, int64_t count, int64_t vocabulary, int64_t* to) const;

 private:
  std::filesystem::path path_;
  TokenFormat format_;
  std::shared_ptr<const char> bytes_;  ///< the mapping
  int64_t begin_ = 0, size_ = 0;       ///< of the tokens: in bytes, and in tokens
};

/// What parse_token_header() finds out about a file.
struct TokenLayout {
  TokenFormat format;
  int64_t begin, size;  ///< of the tokens: in bytes, and in tokens
};

/// Returns the layout of a file of `file_size` bytes that begins with `head`, which has 1,024 bytes or the whole file. `name`
/// begins the messages.
/// Errors: those of TokenFile that concern the content.
TokenLayout parse_token_header(std::string_view head, int64_t file_size, const std::string& name,
                               TokenFormat headerless = TokenFormat::kUint16);

/// Writes tokens as a file that TokenFile reads.
///
/// Shape of `tokens`: [n], of any integer dtype, on the CPU.
/// Errors: c10::ValueError for other tensors, for no tokens, for an id that the form cannot store (the message has its
///         position), and for more tokens than a header can count; c10::Error that names the file if it cannot be written.
void write_token_file(const std::filesystem::path& path, const at::Tensor& tokens, TokenFormat format);

/// Windows of a token file, to predict the next token from. Sample i begins at token i * stride of the part.
///
/// Shapes: data int64 [n, context], target int64 [n, context], which is shifted by one token.
/// With stride 1 every window is a sample (for training); with stride `context` each token occurs once (for validation).
class TokenDataset final : public Dataset {
 public:
  /// Uses the tokens from `begin` to `end` of the file; -1 stands for the end of the file. `vocabulary` is the number of
  /// ids that the model knows.
  /// Errors: c10::ValueError for no file, context, stride or vocabulary below 1, a part that the file does not have, or
  ///         fewer than context + 1 tokens.
  TokenDataset(std::shared_ptr<const TokenFile> file, int64_t context, int64_t vocabulary, int64_t stride = 1,
               int64_t begin = 0, int64_t end = -1);
  int64_t size() const override { return size_; }
  /// Errors: those of Dataset::get_batch(); c10::ValueError that names file, position and id for an id outside the
  ///         vocabulary.
  Batch get_batch(const at::Tensor& indices) const override;

 private:
  std::shared_ptr<const TokenFile> file_;
  int64_t context_, vocabulary_, stride_, begin_, size_;
};

}  // namespace mantissa
