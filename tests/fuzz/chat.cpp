#include "mantissa/data/chat.h"

#include <algorithm>

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

/// The first byte chooses the template. The others are a line.
void chat(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto& templates = chat_templates();
  const auto& chosen = templates[static_cast<unsigned char>(bytes[0]) % templates.size()];
  const auto text = accepted([&] { return parse_chat_line(bytes.substr(1), chosen, "</s>", "f"); });
  if (!text) return;
  require(std::any_of(text->pieces.begin(), text->pieces.end(),
                      [](const ChatPiece& piece) { return piece.is_trained; }),
          "a conversation without an answer is accepted");
}

}  // namespace mantissa::fuzz
