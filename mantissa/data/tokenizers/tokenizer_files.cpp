#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include <c10/util/Exception.h>

#include "mantissa/data/tokenizers/gpt2_pattern_internal.h"
#include "mantissa/data/tokenizers/json_reader_internal.h"
#include "mantissa/data/tokenizers/parts_internal.h"
#include "mantissa/data/tokenizers/tokenizer.h"
#include "mantissa/data/tokenizers/utf8_internal.h"
#include "mantissa/io/json_internal.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::error_code error;
  TORCH_CHECK(fs::is_regular_file(path, error), "cannot read tokenizer file '", path.string(),
              "': ", fs::exists(path, error) ? "it is not a regular file" : "no such file",
              "; check the path");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  TORCH_CHECK(in.good(), "cannot open tokenizer file '", path.string(),
              "': ", std::generic_category().message(errno), "; check its permissions");
  std::string content(std::istreambuf_iterator<char>(in), {});
  TORCH_CHECK(!in.bad(), "cannot read tokenizer file '", path.string(), "' to its end; check the disk");
  return content;
}

/// Reads merges.txt: a pair of tokens in each line, and comments that begin with #version.
void read_merges_text(std::string_view text, const std::string& where, tokenizers::Bpe& bpe) {
  const size_t invalid = tokenizers::find_invalid_utf8(text);
  TORCH_CHECK_VALUE(invalid == std::string_view::npos, where, ": is not UTF-8 at byte ", invalid,
                    "; give the merges.txt of a GPT-2");
  int64_t rank = 0, line_number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++line_number;
    if (line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    TORCH_CHECK_VALUE(space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos,
                      where, ": line ", line_number, " '", fit_for_message(std::string(line)),
                      "' is no pair of tokens; give the merges.txt of a GPT-2");
    tokenizers::add_merge(std::string(line.substr(0, space)), std::string(line.substr(space + 1)), where, bpe,
                          rank++);
  }
}

Tokenizer load_gpt2(const fs::path& vocab) {
  const fs::path merges = vocab.parent_path() / "merges.txt";
  return parse_gpt2_tokenizer(read_file(vocab), vocab.string(), read_file(merges), merges.string());
}

}  // namespace

Tokenizer parse_gpt2_tokenizer(std::string_view vocab, const std::string& vocab_file, std::string_view merges,
                               const std::string& merges_file) {
  const std::string where = tokenizers::quoted_file(vocab_file);
  const auto parts = std::make_shared<TokenizerParts>();
  tokenizers::read_vocabulary(tokenizers::parse_tokenizer_json(vocab, where), where, parts->bpe);
  read_merges_text(merges, tokenizers::quoted_file(merges_file), parts->bpe);
  parts->vocabulary_size = static_cast<int64_t>(parts->bpe.tokens.size());
  parts->cuts = {{.kind = tokenizers::Cut::Kind::kBytes,
                  .pattern = std::make_shared<tokenizers::Pattern>(tokenizers::kGpt2Pattern, "GPT-2"),
                  .space = {}}};
  parts->decoding.kind = tokenizers::Decoding::Kind::kBytes;
  constexpr const char* kEnd = "<|endoftext|>";
  if (const auto end = parts->bpe.vocabulary.find(kEnd); end != parts->bpe.vocabulary.end())
    parts->add({.id = end->second, .content = kEnd, .normalized = false, .special = true});
  return Tokenizer(parts);
}

Tokenizer load_tokenizer(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (path.filename() == "vocab.json") return load_gpt2(path);
    return parse_tokenizer(read_file(path), path.string());
  }
  if (fs::exists(path / "tokenizer.json", ignored))
    return parse_tokenizer(read_file(path / "tokenizer.json"), (path / "tokenizer.json").string());
  TORCH_CHECK(fs::exists(path / "vocab.json", ignored), "load_tokenizer: the folder '", path.string(),
              "' has neither tokenizer.json nor vocab.json; give the folder of a GPT-2 or a Llama");
  return load_gpt2(path / "vocab.json");
}

}  // namespace mantissa
