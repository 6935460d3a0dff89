// Encodes and decodes texts. test_tokenizers.py compares the results with those of the tokenizers package.
//
//   tokenizer_runner PATH < IN > OUT
//
// PATH is what load_tokenizer() reads. IN is JSON: "texts" to encode, and "ids", lists to decode. OUT is JSON: "ids" and
// "plain" of each text, with and without special tokens; "texts" and "all" of each list, without and with special tokens;
// "pieces", the texts by which the stream of each list comes; "vocabulary".
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/data/tokenizers/tokenizer.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

std::vector<std::string> pieces_of(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  TokenText stream(tokenizer);
  std::vector<std::string> pieces;
  for (const int64_t id : ids) pieces.push_back(stream.push(id));
  pieces.push_back(stream.finish());
  return pieces;
}

Json run(const std::string& path, const Json& in) {
  const Tokenizer tokenizer = load_tokenizer(path);
  Json out{{"vocabulary", tokenizer.vocabulary_size()}};
  for (const std::string text : in.at("texts")) {
    out["ids"].push_back(tokenizer.encode(text));
    out["plain"].push_back(tokenizer.encode(text, /*add_special_tokens=*/false));
  }
  for (const std::vector<int64_t> ids : in.at("ids")) {
    out["texts"].push_back(tokenizer.decode(ids));
    out["all"].push_back(tokenizer.decode(ids, /*skip_special_tokens=*/false));
    out["pieces"].push_back(pieces_of(tokenizer, ids));
  }
  return out;
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenizer_runner PATH < IN > OUT\n");
    return 1;
  }
  std::cout << mantissa::run(argv[1], nlohmann::json::parse(std::cin));
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "tokenizer_runner: %s\n", error.what_without_backtrace());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "tokenizer_runner: %s\n", error.what());
  return 1;
}
