// Reads a token file, or encodes texts, and prints one line of JSON for benchmarks/tokens.py:
//
//   tokens_bench read FILE CONTEXT BATCH_SIZE BATCHES
//   tokens_bench encode TOKENIZER TEXTS
//
// TEXTS is a JSON list.
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/data/loader.h"
#include "mantissa/data/token_file.h"
#include "mantissa/data/tokenizers/tokenizer.h"

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Sums what the program computes, so that the other side can be compared.
int64_t mixed(int64_t sum, int64_t value) { return (sum * 31 + value) % 1000003; }

void read(const std::string& file, int64_t context, int64_t batch_size, int64_t batches) {
  at::set_num_threads(1);
  const auto windows =
      std::make_shared<TokenDataset>(std::make_shared<TokenFile>(file), context, /*vocabulary=*/50257);
  DataLoader loader(windows, {.batch_size = batch_size,
                              .shuffle = true,
                              .seed = 1,
                              .num_samples = batches * batch_size,
                              .replacement = true});
  double seconds = std::numeric_limits<double>::infinity();
  int64_t sum = 0;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {  // the second one counts, when the pages are in memory
    loader.set_epoch(epoch);
    sum = 0, seconds = 0;
    for (int64_t i = 0; i < batches; ++i) {
      const auto start = Clock::now();
      const Batch batch = *loader.next();
      seconds += seconds_since(start);
      sum = mixed(mixed(sum, at::sum(batch.data).item<int64_t>()), at::sum(batch.target).item<int64_t>());
    }
  }
  fmt::print("{{\"rate\": {}, \"sum\": {}}}\n", static_cast<double>(batches * batch_size * context) / seconds,
             sum);
}

void encode(const std::string& path, const std::string& texts_file) {
  const Tokenizer tokenizer = load_tokenizer(path);
  std::ifstream in(texts_file);
  const std::vector<std::string> texts = nlohmann::json::parse(in);
  double bytes = 0;
  int64_t sum = 0;
  const auto start = Clock::now();
  std::vector<std::vector<int64_t>> all;
  for (const std::string& text : texts) all.push_back(tokenizer.encode(text));
  const double seconds = seconds_since(start);
  for (const auto& ids : all)
    for (const int64_t id : ids) sum = mixed(sum, id);
  for (const std::string& text : texts) bytes += static_cast<double>(text.size());
  fmt::print("{{\"rate\": {}, \"sum\": {}}}\n", bytes / seconds, sum);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 5 && words[0] == "read") {
    mantissa::read(words[1], std::stoll(words[2]), std::stoll(words[3]), std::stoll(words[4]));
  } else {
    TORCH_CHECK_VALUE(words.size() == 3 && words[0] == "encode", "usage: tokens_bench read|encode ...");
    mantissa::encode(words[1], words[2]);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "tokens_bench: %s\n", error.what());
  return 1;
}
