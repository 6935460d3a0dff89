#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/loader.h"

namespace mantissa::loader_workers_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

/// A dataset whose samples are their own numbers. It counts the reads, and calls `before` at each one.
class Watched final : public Dataset {
 public:
  using Before = std::function<void(int64_t first_sample)>;
  explicit Watched(int64_t size, Before before = {}) : size_(size), before_(std::move(before)) {}
  int64_t size() const override { return size_; }
  Batch get_batch(const at::Tensor& indices) const override {
    const int64_t first = *indices.const_data_ptr<int64_t>();
    ++begun;
    ++busy;
    {
      const std::lock_guard lock(mutex_);
      read_.insert(first);
    }
    struct Leave {
      std::atomic<int64_t>& busy;
      ~Leave() { --busy; }
    } leave{busy};
    if (before_) before_(first);
    return {indices.clone(), {}, {}};
  }
  /// Returns the first samples of all batches that were asked for.
  std::set<int64_t> read() const {
    const std::lock_guard lock(mutex_);
    return read_;
  }

  mutable std::atomic<int64_t> begun = 0, busy = 0;

 private:
  const int64_t size_;
  const Before before_;
  mutable std::mutex mutex_;
  mutable std::set<int64_t> read_;
};

void wait_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + 30s;
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "waited in vain";
    std::this_thread::sleep_for(100us);
  }
}

/// Slows reads down by different amounts, so that they end in a different order than they begin.
void sleep_unevenly(int64_t sample) {
  std::this_thread::sleep_for(std::chrono::microseconds(sample * 7919 % 5 * 200));
}

int64_t value(const Batch& batch) { return batch.data[0].item<int64_t>(); }

/// Returns the first samples of the remaining batches.
std::vector<int64_t> rest(Loader& loader) {
  std::vector<int64_t> values;
  while (const auto batch = loader.next()) values.push_back(value(*batch));
  return values;
}

std::vector<Batch> batches_of(Loader& loader) {
  std::vector<Batch> batches;
  while (auto batch = loader.next()) batches.push_back(*std::move(batch));
  return batches;
}

Transform noise() {
  return per_sample([](const Batch& sample, const at::Generator& generator) {
    return Batch{sample.data + at::rand({3}, generator, at::kDouble), sample.data, {}};
  });
}

size_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST(DataLoaderWorkers, RefusesWrongNumbers) {
  const auto error = [](const DataLoaderOptions& options) {
    return error_of([&] { DataLoader(std::make_shared<Watched>(5), options); });
  };
  EXPECT_THAT(error({.num_workers = -1}), HasSubstr("num_workers -1 is negative; give 0"));
  EXPECT_THAT(error({.prefetch_factor = 0}), HasSubstr("prefetch_factor 0"));
  EXPECT_THAT(error_of([] { DataLoader(std::make_shared<Watched>(0), {.num_workers = 2}); }),
              HasSubstr("no samples"));
}

// Every kind of epoch, with random numbers: the last batch smaller, dropped, or the only one; fewer batches
// than workers; more batches than fit ahead.
TEST(DataLoaderWorkers, GiveTheSameBatchesInTheSameOrder) {
  const auto dataset = std::make_shared<Watched>(45, sleep_unevenly);
  std::vector<DataLoaderOptions> epochs(6,
                                        {.batch_size = 4, .shuffle = true, .seed = 3, .transform = noise()});
  epochs[1].drop_last = true;
  epochs[2].batch_size = 45;
  epochs[3].batch_size = 20;
  epochs[4].replacement = true, epochs[4].num_samples = 61;
  epochs[5].shuffle = false, epochs[5].transform = {};
  for (DataLoaderOptions options : epochs) {
    options.num_workers = 0;
    DataLoader plain(dataset, options);
    for (const auto& [workers, prefetch] : {std::pair<int64_t, int64_t>{1, 1},
                                            {2, 1},
                                            {3, 2},
                                            {7, 1},
                                            {2, 100},
                                            {2, kMaxInt64},
                                            {kMaxInt64, 2}}) {
      options.num_workers = workers, options.prefetch_factor = prefetch;
      DataLoader loader(dataset, options);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        plain.set_epoch(epoch);
        loader.set_epoch(epoch);
        const std::vector<Batch> want = batches_of(plain), got = batches_of(loader);
        ASSERT_EQ(int64_t(got.size()), loader.size());
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_TRUE(at::equal(got[i].data, want[i].data)) << workers << " workers, batch " << i;
          EXPECT_EQ(got[i].target.defined(), want[i].target.defined());
        }
        EXPECT_FALSE(loader.next().has_value()) << "stays at the end";
      }
    }
  }
}

TEST(DataLoaderWorkers, RandomNumbersDifferBetweenBatchesEpochsAndSeeds) {
  const auto draws = [](uint64_t seed, int64_t epoch) {
    DataLoader loader(std::make_shared<Watched>(6), {.batch_size = 2, .seed = seed, .transform = noise()});
    loader.set_epoch(epoch);
    std::vector<double> numbers;
    for (const Batch& batch : batches_of(loader)) {
      const at::Tensor drawn = batch.data - batch.target.unsqueeze(1);
      numbers.insert(numbers.end(), drawn.const_data_ptr<double>(), drawn.const_data_ptr<double>() + 6);
    }
    return numbers;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  std::set<int64_t> seen;
  for (const uint64_t seed : {0, 1, 2})
    for (const int64_t epoch : {0, 1, 2})
      for (const double number : draws(seed, epoch)) seen.insert(std::llround(number * 1e9));
  EXPECT_EQ(seen.size(), 3U * 3 * 18) << "a number came twice";
}

TEST(DataLoaderWorkers, LeaveTheGlobalGeneratorAlone) {
  torch::manual_seed(1);
  const at::Tensor want = at::rand({3});
  torch::manual_seed(1);
  DataLoader loader(std::make_shared<Watched>(9),
                    {.batch_size = 2, .shuffle = true, .num_workers = 2, .transform = noise()});
  batches_of(loader);
  EXPECT_TRUE(at::equal(at::rand({3}), want));
}

TEST(DataLoaderWorkers, ReadNoFurtherAheadThanAskedFor) {
  const auto dataset = std::make_shared<Watched>(40);
  DataLoader loader(dataset, {.batch_size = 1, .num_workers = 3, .prefetch_factor = 2});
  EXPECT_EQ(dataset->begun, 0);
  for (int64_t taken = 1; taken <= 5; ++taken) {
    EXPECT_EQ(value(*loader.next()), taken - 1);
    wait_until([&] { return dataset->begun == taken + 6 && dataset->busy == 0; });
    std::this_thread::sleep_for(3ms);
    EXPECT_EQ(dataset->begun, taken + 6);
  }
}

TEST(DataLoaderWorkers, ReadSideBySide) {
  std::atomic<int64_t> inside = 0;
  // Each read waits until the other one has begun: a single thread would wait in vain.
  const auto dataset = std::make_shared<Watched>(2, [&](int64_t) {
    ++inside;
    wait_until([&] { return inside == 2; });
  });
  DataLoader loader(dataset, {.batch_size = 1, .num_workers = 2, .prefetch_factor = 1});
  EXPECT_THAT(rest(loader), ElementsAre(0, 1));
}

TEST(DataLoaderWorkers, AnErrorComesAtItsBatchAndTheRestAfterIt) {
  const auto dataset = std::make_shared<Watched>(12, [](int64_t sample) {
    sleep_unevenly(sample);
    TORCH_CHECK_INDEX(sample != 4, "sample 4 is torn");
    if (sample == 6) throw std::runtime_error("disk gone");
    if (sample == 8) throw 42;
  });
  for (const int64_t workers : {0, 1, 3}) {
    DataLoader loader(dataset, {.batch_size = 2, .num_workers = workers});
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      loader.set_epoch(epoch);
      const std::string of = " of epoch " + std::to_string(epoch) + ": samples ";
      EXPECT_EQ(value(*loader.next()), 0);
      EXPECT_EQ(value(*loader.next()), 2);
      try {
        loader.next();
        ADD_FAILURE() << "no error";
      } catch (const c10::IndexError& error) {
        EXPECT_THAT(error.what_without_backtrace(),
                    AllOf(HasSubstr("sample 4 is torn"), HasSubstr("reading batch 2" + of + "4, 5")));
      }
      try {
        loader.next();
        ADD_FAILURE() << "no error";
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what_without_backtrace(),
                    HasSubstr("cannot read batch 3" + of + "6, 7: disk gone"));
        EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
      }
      EXPECT_THAT(error_of([&] { loader.next(); }),
                  HasSubstr("cannot read batch 4" + of + "8, 9: an exception"));
      EXPECT_THAT(rest(loader), ElementsAre(10));
    }
  }
}

TEST(DataLoaderWorkers, AnErrorNamesTheFirstSamplesAndTheTransforms) {
  DataLoader loader(std::make_shared<Watched>(9),
                    {.batch_size = 9, .num_workers = 1, .transform = [](Batch, auto&) -> Batch {
                       TORCH_CHECK_VALUE(false, "too small");
                     }});
  EXPECT_THAT(error_of([&] { loader.next(); }),
              AllOf(HasSubstr("too small"), HasSubstr("samples 0, 1, 2, 3, 4, 5, 6, 7, ...")));
  EXPECT_FALSE(loader.next().has_value());
}

TEST(DataLoaderWorkers, AnEpochMayBeLeftInTheMiddle) {
  const auto dataset = std::make_shared<Watched>(40, sleep_unevenly);
  DataLoader loader(dataset, {.batch_size = 1, .num_workers = 3});
  for (int64_t taken = 0; taken < 20; ++taken) {
    loader.set_epoch(taken);
    EXPECT_EQ(dataset->busy, 0) << "nobody reads between set_epoch() and next()";
    for (int64_t i = 0; i < taken; ++i) EXPECT_EQ(value(*loader.next()), i);
  }
  loader.set_epoch(0);
  EXPECT_EQ(rest(loader).size(), 40U);
  try {
    while (loader.next()) throw std::runtime_error("a step failed");
    loader.set_epoch(1);
    while (loader.next()) throw std::runtime_error("a step failed");
  } catch (const std::runtime_error&) {
    loader.set_epoch(2);
  }
  EXPECT_EQ(rest(loader).size(), 40U);
}

TEST(DataLoaderWorkers, DestructionWaitsForNoMoreThanIsBeingRead) {
  for (const int64_t taken : {1, 2, 5}) {
    std::atomic<bool> is_open = true;
    const auto dataset = std::make_shared<Watched>(1000, [&](int64_t) {
      while (!is_open) std::this_thread::sleep_for(100us);
    });
    auto loader = std::make_unique<DataLoader>(dataset, DataLoaderOptions{.batch_size = 1, .num_workers = 2});
    for (int64_t i = 0; i < taken; ++i) loader->next();
    // All workers wait for room.
    wait_until([&] { return dataset->begun == taken + 4 && dataset->busy == 0; });
    is_open = false;
    loader->next();
    // One of them reads, and continues when the destructor is already waiting.
    wait_until([&] { return dataset->busy == 1; });
    std::thread opens([&] {
      std::this_thread::sleep_for(20ms);
      is_open = true;
    });
    loader.reset();
    EXPECT_EQ(dataset->busy, 0);
    EXPECT_EQ(dataset->begun, taken + 5);
    opens.join();
  }
}

TEST(DataLoaderWorkers, EndWithTheEpoch) {
  DataLoader loader(std::make_shared<Watched>(10), {.batch_size = 1, .num_workers = 4});
  const size_t before = threads();
  loader.next();
  EXPECT_EQ(rest(loader).size(), 9U);
  EXPECT_EQ(threads(), before);
  DataLoader few(std::make_shared<Watched>(2, [](int64_t) { std::this_thread::sleep_for(50ms); }),
                 {.batch_size = 1, .num_workers = 9});
  few.set_epoch(0);
  EXPECT_EQ(threads(), before) << "none before there is something to read";
  few.next();
  EXPECT_LE(threads(), before + 2) << "one a batch is enough";
}

TEST(DataLoaderWorkers, SkippingReadsNothingAndGivesTheRest) {
  const DataLoaderOptions options{
      .batch_size = 2, .shuffle = true, .seed = 8, .num_workers = 2, .transform = noise()};
  DataLoader whole(std::make_shared<Watched>(21), options);
  whole.set_epoch(4);
  const std::vector<Batch> all = batches_of(whole);
  for (const int64_t first : {0, 3}) {
    for (const int64_t skipped : {0, 1, 5, 8, 11, 12}) {
      const auto dataset = std::make_shared<Watched>(21);
      DataLoader loader(dataset, options);
      loader.set_epoch(4);
      for (int64_t i = 0; i < first; ++i) loader.next();
      loader.skip(skipped);
      const std::vector<Batch> got = batches_of(loader);
      const auto begin = std::min<size_t>(size_t(first + skipped), all.size());
      ASSERT_EQ(got.size(), all.size() - begin) << first << " + " << skipped;
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i].data, all[begin + i].data));
      // The 3 returned batches, and those that two workers read ahead of them.
      const size_t ahead = first == 0 ? 0 : size_t(first) + 4;
      for (size_t i = ahead; i < begin; ++i)
        EXPECT_FALSE(dataset->read().contains(all[i].target[0].item<int64_t>())) << "batch " << i;
    }
  }
  OrderedLoader ordered(std::make_shared<Watched>(5), at::tensor({4, 0, 2}, at::kLong).view({3, 1}));
  ordered.skip(2);
  EXPECT_THAT(rest(ordered), ElementsAre(2));
  ordered.set_epoch(1);
  ordered.skip(kMaxInt64);
  EXPECT_FALSE(ordered.next().has_value());
}

TEST(DataLoaderWorkers, AMovedLoaderContinues) {
  DataLoader from(std::make_shared<Watched>(9), {.batch_size = 1, .num_workers = 2});
  from.next();
  DataLoader to(std::move(from));
  EXPECT_EQ(value(*to.next()), 1);
  DataLoader other(std::make_shared<Watched>(3), {.num_workers = 1});
  other.next();
  other = std::move(to);
  EXPECT_EQ(rest(other).size(), 7U);
}

TEST(DataLoaderWorkers, ComputeWithOneThreadAsTheCallingThreadWould) {
  std::mutex mutex;
  std::vector<std::string> seen;
  const auto state = [] {
    const bool is_autocast = at::autocast::is_autocast_enabled(at::kCPU);
    return std::string(at::GradMode::is_enabled() ? "grad " : "") +
           (c10::InferenceMode::is_enabled() ? "inference " : "") +
           (is_autocast ? c10::toString(at::autocast::get_autocast_dtype(at::kCPU)) : "");
  };
  std::atomic<int> most_threads = 0;
  const auto dataset = std::make_shared<Watched>(6, [&](int64_t) {
    const std::lock_guard lock(mutex);
    seen.push_back(state());
    most_threads = std::max<int>(most_threads, at::get_num_threads());
  });
  DataLoader loader(dataset, {.batch_size = 1, .num_workers = 2});
  const int before = at::get_num_threads();
  at::set_num_threads(before + 1);
  const auto check = [&] {
    loader.set_epoch(0);
    seen.clear();
    EXPECT_EQ(rest(loader).size(), 6U);
    EXPECT_THAT(seen, testing::Each(state()));
  };
  check();
  {
    const at::NoGradGuard guard;
    check();
  }
  {
    const c10::InferenceMode guard;
    check();
  }
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  check();
  at::autocast::set_autocast_dtype(at::kCPU, dtype);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(most_threads, 1);
  EXPECT_EQ(at::get_num_threads(), before + 1);
  std::thread([&] { EXPECT_EQ(at::get_num_threads(), before + 1); }).join();
  at::set_num_threads(before);
}

TEST(DataLoaderWorkers, SayWhenTheSystemGivesNoThread) {
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &old), 0);
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  // Leaves room for some of the threads' stacks.
  rlimit low = old;
  low.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (64 << 20);
  DataLoader loader(std::make_shared<Watched>(1000), {.batch_size = 1, .num_workers = 1000});
  ASSERT_EQ(setrlimit(RLIMIT_AS, &low), 0);
  const std::string error = error_of([&] { loader.next(); });
  setrlimit(RLIMIT_AS, &old);
  EXPECT_THAT(error,
              AllOf(HasSubstr("cannot start worker"), HasSubstr("of 1000"), HasSubstr("lower num_workers")));
  EXPECT_EQ(value(*loader.next()), 0) << "nothing was lost, and now there is room";
}

}  // namespace
}  // namespace mantissa::loader_workers_test
