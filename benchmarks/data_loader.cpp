// Reads a dataset with our DataLoader and prints one line of JSON for benchmarks/data_loader.py:
//
//   data_loader_bench WORK WORKERS SAMPLES BATCH_SIZE
#include <chrono>
#include <cstdlib>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <c10/util/Exception.h>

#include "mantissa/data/loader.h"

namespace mantissa {
namespace {

constexpr int64_t kPixels = int64_t{3} * 32 * 32;
constexpr auto kWait = std::chrono::microseconds(500);

/// Makes images whose pixels are (i * kPixels + j) mod 256, with i as the target.
std::shared_ptr<const Dataset> images(int64_t samples) {
  const at::Tensor numbers = at::arange(samples * kPixels, at::TensorOptions().dtype(at::kLong));
  return std::make_shared<TensorDataset>(numbers.remainder(256).to(at::kByte).view({samples, 3, 32, 32}),
                                         at::arange(samples, at::TensorOptions().dtype(at::kLong)));
}

/// Returns the work for each sample: nothing; half a millisecond of waiting, as for a disk; or conversion of
/// the pixels to float, normalisation and mirroring.
Transform work(const std::string& name) {
  if (name == "none") return {};
  if (name == "wait")
    return per_sample([](Batch sample, const at::Generator&) {
      std::this_thread::sleep_for(kWait);
      return sample;
    });
  TORCH_CHECK_VALUE(name == "augment", "no work '", name, "'; choose none, wait or augment");
  return per_sample([](Batch sample, const at::Generator&) {
    sample.data = sample.data.to(at::kFloat).div(255).sub(0.5).div(0.25).flip({2});
    return sample;
  });
}

void run(const std::string& name, int64_t workers, int64_t samples, int64_t batch_size) {
  using Clock = std::chrono::steady_clock;
  at::set_num_threads(1);
  DataLoader loader(images(samples), {.batch_size = batch_size,
                                      .shuffle = true,
                                      .seed = 1,
                                      .num_workers = workers,
                                      .transform = work(name)});
  double seconds = 0;
  int64_t order = 0;
  double pixels = 0;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {  // the second one counts, when memory is allocated
    loader.set_epoch(epoch);
    std::vector<Batch> batches;
    const auto start = Clock::now();
    while (auto batch = loader.next()) batches.push_back(*std::move(batch));
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
    order = 0, pixels = 0;
    for (const Batch& batch : batches)
      for (int64_t i = 0; i < batch.size(); ++i)
        order = (order * 31 + batch.target[i].item<int64_t>()) % 1000003;
    for (const Batch& batch : batches)
      pixels += batch.data.to(at::kDouble).flatten(1).sum(1).mul(batch.target).sum().item<double>();
  }
  fmt::print(R"({{"samples_per_second": {}, "order": {}, "pixels": {}}})"
             "\n",
             static_cast<double>(samples) / seconds, order, pixels);
}

}  // namespace
}  // namespace mantissa

int main(int count, char** words) {
  if (count != 5) return fmt::print(stderr, "usage: data_loader_bench WORK WORKERS SAMPLES BATCH_SIZE\n"), 2;
  mantissa::run(words[1], std::atoll(words[2]), std::atoll(words[3]), std::atoll(words[4]));
}
