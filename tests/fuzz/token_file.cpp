#include "mantissa/data/token_file.h"

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

/// The first byte chooses the form of a file without a header. The others are the file.
void token_file(std::string_view bytes) {
  if (bytes.empty()) return;
  const TokenFormat headerless = (bytes[0] & 1) != 0 ? TokenFormat::kUint32 : TokenFormat::kUint16;
  const std::string_view file = bytes.substr(1);
  const auto size = static_cast<int64_t>(file.size());
  const auto layout =
      accepted([&] { return parse_token_header(file.substr(0, 1024), size, "f", headerless); });
  if (!layout) return;
  const bool is_wide = layout->format == TokenFormat::kUint32 || layout->format == TokenFormat::kLlama3;
  require(layout->size > 0, "a file without tokens is accepted");
  require(layout->begin + layout->size * (is_wide ? 4 : 2) == size, "the tokens do not end with the file");
}

}  // namespace mantissa::fuzz
