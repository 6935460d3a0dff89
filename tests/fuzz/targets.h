#pragma once

// The parsers of untrusted bytes, one target per parser. A target is called with any bytes, and returns if
// the parser behaved as documented. Everything else is a finding: another exception, a crash, a sanitizer's
// report, or a round trip that loses something. libfuzzer.cpp makes a fuzzer of each target, replay_test.cpp
// a test of its corpus.

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

namespace mantissa::fuzz {

using Target = void(std::string_view bytes);

Target adapter_config;  // adapter_config.json of PEFT
Target chat;            // a byte that chooses a template, then a conversation as JSON
Target cifar;           // a byte that chooses CIFAR-10 or -100, then a file of records
Target config;          // YAML of `mantissa fit --config`
Target csv;             // a byte that chooses the separator, then a table
Target events;          // TensorBoard event files
Target idx;             // IDX files, not gzip'd
Target image;           // a byte that chooses a part, then a JPEG or PNG file or an image of a packed file
Target gpt2_config;     // config.json of a GPT-2
Target llama_config;    // config.json of a Llama
Target lora_options;    // --lora, and in a second line an expression for layers' names
Target manifest;        // manifest.json of a checkpoint, whatever its checksum
Target npy;             // files of numpy.save()
Target packed_images;   // a packed file of images
Target quant_state;     // JSON of a 4-bit weight that bitsandbytes has saved
Target safetensors_header;  // 8 little-endian bytes with the number of data bytes that follow, then the JSON
Target shard_index;         // model.safetensors.index.json
Target token_file;          // a byte that chooses 16 or 32 bits, then a file of token ids
Target tokenizer;           // tokenizer.json; vocab.json with merges.txt

inline constexpr std::pair<const char*, Target*> kTargets[] = {
    {"adapter_config", adapter_config},
    {"chat", chat},
    {"cifar", cifar},
    {"config", config},
    {"csv", csv},
    {"events", events},
    {"idx", idx},
    {"image", image},
    {"gpt2_config", gpt2_config},
    {"llama_config", llama_config},
    {"lora_options", lora_options},
    {"manifest", manifest},
    {"npy", npy},
    {"packed_images", packed_images},
    {"quant_state", quant_state},
    {"shard_index", shard_index},
    {"safetensors_header", safetensors_header},
    {"token_file", token_file},
    {"tokenizer", tokenizer},
};

/// Throws no c10::Error, because parsers refuse bytes with that.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error(what);
}

/// Returns the result of `parse`, or nothing if it refuses the bytes as documented: with a c10::ValueError in
/// one line, without the control characters by which a file could write to a terminal.
template <typename Parse>
auto accepted(const Parse& parse) -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (const c10::ValueError& error) {
    const std::string message = error.what_without_backtrace();
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    require(!message.empty() && std::none_of(message.begin(), message.end(), is_control),
            "an error with control characters: " + message);
    return std::nullopt;
  }
}

}  // namespace mantissa::fuzz
