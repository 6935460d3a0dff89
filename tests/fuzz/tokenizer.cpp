#include "mantissa/data/tokenizers/tokenizer.h"

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

/// A line "json" or "gpt2", then tokenizer.json; or vocab.json, a 0 byte, and merges.txt. The tokenizer that comes out must
/// encode and decode anything.
void tokenizer(std::string_view bytes) {
  constexpr std::string_view kGpt2 = "gpt2\n", kJson = "json\n";
  const auto read = accepted([&]() -> Tokenizer {
    if (bytes.starts_with(kGpt2)) {
      const std::string_view files = bytes.substr(kGpt2.size());
      const size_t end = std::min(files.find('\0'), files.size());
      return parse_gpt2_tokenizer(files.substr(0, end), "v", files.substr(std::min(end + 1, files.size())),
                                  "m");
    }
    return parse_tokenizer(bytes.starts_with(kJson) ? bytes.substr(kJson.size()) : bytes, "f");
  });
  if (!read) return;
  try {
    for (const char* text :
         {"", " a b  c's\n\n12 ", "\xE2\x96\x81 \xF0\x9F\x98\x80 caf\xC3\xA9 <s> <|endoftext|>"}) {
      const std::vector<int64_t> ids = read->encode(text);
      for (const int64_t id : ids)
        require(id >= 0 && id < read->vocabulary_size(), "an id outside the vocabulary");
      std::string streamed;
      TokenText stream(*read);
      for (const int64_t id : ids) streamed += stream.push(id);
      require(streamed + stream.finish() == read->decode(ids), "the stream has another text");
    }
  } catch (const c10::ValueError&) {
    throw std::logic_error("valid UTF-8 is refused");
  } catch (const c10::Error&) {
    // The pattern may take too many steps.
  }
}

}  // namespace mantissa::fuzz
