// Reads images and prints one line of JSON for benchmarks/images.py:
//
//   images_bench check FOLDER SIZE                      the bits of all images, as they are evaluated
//   images_bench train FOLDER_OR_PACK SIZE WORKERS HOW  images a second of random crops; HOW is "exact" or "scaled"
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>

#include "mantissa/data/images/image_dataset.h"
#include "mantissa/data/images/image_folder.h"
#include "mantissa/data/images/packed_images.h"
#include "mantissa/data/loader.h"

namespace mantissa {
namespace {

constexpr int64_t kBatchSize = 64;

std::shared_ptr<const ImageSource> open(const std::string& path) {
  if (std::filesystem::is_directory(path)) return std::make_shared<ImageFolder>(path);
  return std::make_shared<PackedImages>(path);
}

void check(const std::string& path, int64_t size) {
  const auto images =
      std::make_shared<ImageDataset>(open(path), std::make_shared<ImageEvaluation>(size, size * 256 / 224),
                                     ImageDatasetOptions{.scaled_decoding = false});
  DataLoader loader(images, {.batch_size = kBatchSize});
  int64_t sum = 0, labels = 0;
  while (const auto batch = loader.next()) {
    sum += at::sum(batch->data.view(at::kInt), at::kLong).item<int64_t>();
    labels = labels * 31 % 1000003 + at::sum(batch->target).item<int64_t>();
  }
  fmt::print("{{\"sum\": {}, \"labels\": {}}}\n", sum, labels);
}

void train(const std::string& path, int64_t size, int64_t workers, bool is_exact) {
  at::set_num_threads(1);
  const auto images = std::make_shared<ImageDataset>(
      open(path), std::make_shared<ImageAugmentation>(ImageAugmentationOptions{.size = size}),
      ImageDatasetOptions{.scaled_decoding = !is_exact});
  DataLoader loader(images, {.batch_size = kBatchSize, .shuffle = true, .seed = 1, .num_workers = workers});
  double seconds = 0, mean = 0;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {  // the second one counts, when the files are in memory
    loader.set_epoch(epoch);
    const auto start = std::chrono::steady_clock::now();
    std::vector<at::Tensor> means;
    while (const auto batch = loader.next()) means.push_back(batch->data.select(1, 0).select(1, 0).mean());
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    mean = 0;
    for (const at::Tensor& each : means) mean += each.item<double>() / static_cast<double>(means.size());
  }
  fmt::print("{{\"rate\": {}, \"mean\": {}}}\n", static_cast<double>(images->size()) / seconds, mean);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  TORCH_CHECK(words.size() >= 3, "usage: images_bench check|train PATH SIZE [WORKERS exact|scaled]");
  const int64_t size = std::stoll(words[2]);
  if (words[0] == "check")
    mantissa::check(words[1], size);
  else
    mantissa::train(words[1], size, std::stoll(words.at(3)), words.at(4) == "exact");
}
