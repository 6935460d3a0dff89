#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <gmock/gmock.h>
#include <memory>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/checkpoint_internal.h"
#include "mantissa/io/checkpoint_test_support_internal.h"

namespace mantissa::checkpoint_faults_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

/// Checkpoints that were damaged later, and faults while they are written.
using CheckpointFaults = InCheckpointFolder;

// Changes every byte of the manifest and of both headers, and a sample of the data.
TEST_F(CheckpointFaults, EveryChangedByteIsFound) {
  save_checkpoint(folder_ / "a", a_checkpoint(5));
  for (const char* name : {"manifest.json", "weights.safetensors", "state.safetensors"}) {
    const fs::path file = folder_ / "a" / name;
    const std::string whole = content_of(file);
    for (size_t i = 0; i < whole.size(); i += name[0] == 'm' ? 1 : 3) {
      std::string damaged = whole;
      damaged[i] = char(damaged[i] ^ (i % 2 == 0 ? 0x01 : 0x80));
      write(file, damaged);
      ASSERT_THROW(load_checkpoint(folder_ / "a"), c10::Error) << name << " byte " << i;
    }
    write(file, whole);
  }
  EXPECT_EQ(load_checkpoint(folder_ / "a").step, 5);
}

TEST_F(CheckpointFaults, EveryTruncationIsFound) {
  save_checkpoint(folder_ / "a", a_checkpoint(5));
  for (const char* name : {"manifest.json", "weights.safetensors", "state.safetensors"}) {
    const fs::path file = folder_ / "a" / name;
    const std::string whole = content_of(file);
    for (size_t n = 0; n < whole.size(); n += 1 + n / 50) {
      write(file, whole.substr(0, n));
      ASSERT_THROW(load_checkpoint(folder_ / "a"), c10::Error) << name << " of " << n << " bytes";
    }
    write(file, whole + " ");
    ASSERT_THROW(load_checkpoint(folder_ / "a"), c10::Error) << name;
    fs::remove(file);
    EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "a"); }), HasSubstr(file.string()));
    fs::create_directory(file);
    ASSERT_THROW(load_checkpoint(folder_ / "a"), c10::Error) << name;
    fs::remove(file);
    write(file, whole);
  }
}

TEST_F(CheckpointFaults, SaysWhatIsDamaged) {
  save_checkpoint(folder_ / "a", a_checkpoint(5));
  save_checkpoint(folder_ / "b", a_checkpoint(6));
  const fs::path weights = folder_ / "a" / "weights.safetensors";
  const std::string whole = content_of(weights);
  write(weights, whole.substr(0, whole.size() - 9));
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "a"); }),
              testing::ContainsRegex("weights.safetensors' has [0-9]+ bytes, and was written with [0-9]+; "
                                     "the checkpoint is damaged: take another one"));
  write(weights, content_of(folder_ / "b" / "weights.safetensors"));  // from another checkpoint
  EXPECT_THAT(
      error_of([&] { load_checkpoint(folder_ / "a"); }),
      testing::ContainsRegex("weights.safetensors' has the checksum [0-9a-f]{32}, and was written with"));
}

TEST_F(CheckpointFaults, WhatIsNotThereIsNotDamaged) {
  EXPECT_THAT(
      error_of([&] { load_checkpoint(folder_ / "none"); }),
      HasSubstr("manifest.json' cannot be read: No such file or directory; give the folder of a whole"));
}

// The manifest is consistent in itself, but does not fit the files beside it.
TEST_F(CheckpointFaults, TheManifestMustFitTheTensors) {
  save_checkpoint(folder_ / "a", {0, {{"w", at::ones({2, 3})}}, {{"x", at::ones({4})}}});
  const Manifest right = read_manifest(folder_ / "a");
  const auto error_with = [&](const auto& change) {
    Manifest manifest = right;
    change(manifest);
    write(folder_ / "a" / "manifest.json", make_manifest(manifest));
    return error_of([&] { load_checkpoint(folder_ / "a"); });
  };
  EXPECT_EQ(error_with([](Manifest&) {}), "no error");
  EXPECT_THAT(error_with([](Manifest& m) {
                m.weights["w"] = at::empty({3, 2}, at::kMeta);
              }),
              HasSubstr("tensor 'w': it is Float[2, 3], and the manifest beside it says Float[3, 2]"));
  EXPECT_THAT(error_with([](Manifest& m) { m.weights["w"] = m.weights["w"].to(at::kHalf); }),
              HasSubstr("says Half[2, 3]"));
  EXPECT_THAT(error_with([](Manifest& m) { m.weights["v"] = m.weights["w"]; }),
              HasSubstr("has no tensor 'v'"));
  EXPECT_THAT(error_with([](Manifest& m) { m.weights.clear(); }), HasSubstr("has a tensor 'w', which"));
  EXPECT_THAT(error_with([](Manifest& m) { m.tensor_names[0] = "y"; }), HasSubstr("has no tensor 'y'"));
  EXPECT_THAT(
      error_with([](Manifest& m) { m.state["x"] = at::empty({4}, at::dtype(at::kInt).device(at::kMeta)); }),
      HasSubstr("tensor 'x': it is Float[4], and the manifest beside it says Int[4]"));
  EXPECT_THAT(error_with([](Manifest& m) { m.state.clear(); }), HasSubstr("has a tensor 'x', which"));
  EXPECT_THAT(error_with([](Manifest& m) { m.files.erase("state.safetensors"); }),
              HasSubstr("state.safetensors' is not in the manifest"));
}

// The size limit fails as a full disk does.
TEST_F(CheckpointFaults, AFullDiskKeepsTheOldOne) {
  save_checkpoint(folder_ / "a", a_checkpoint(1, 50'000));
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{100'000, old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const std::string error = error_of([&] { save_checkpoint(folder_ / "a", a_checkpoint(2, 50'000)); });
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(error, HasSubstr((folder_ / "a" / "weights.safetensors").string()));
  EXPECT_THAT(error, HasSubstr("File too large; raise the limit"));
  EXPECT_EQ(load_checkpoint(folder_ / "a").step, 1);
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(CheckpointFaults, AFullFileSystemKeepsTheOldOne) {
  const fs::path disk = folder_ / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "may not mount a tmpfs";
  const auto unmount = std::shared_ptr<void>(nullptr, [&](void*) { ::umount(disk.c_str()); });
  save_checkpoint(disk / "a", a_checkpoint(1, 50'000));
  // At each size a different write fails: the weights' at the largest, the manifest's in between.
  const int64_t kept = 1;
  int failures = 0;
  for (const int64_t size :
       {1'000'000, 160'000, 90'000, 80'000, 79'400, 79'000, 78'600, 78'200, 77'800, 77'000}) {
    const std::string error = error_of([&] { save_checkpoint(disk / "a", a_checkpoint(kept + 1, size)); });
    EXPECT_EQ(load_checkpoint(disk / "a").step, error == "no error" ? kept + 1 : kept);
    EXPECT_EQ(std::distance(fs::directory_iterator(disk), {}), 1);
    if (error == "no error") break;
    EXPECT_THAT(error, HasSubstr("No space left on device; free some space"));
    ++failures;
  }
  EXPECT_GE(failures, 4);
  EXPECT_EQ(std::distance(fs::directory_iterator(disk), {}), 1);
  save_checkpoint(disk / "a", a_checkpoint(3, 50'000));
  EXPECT_EQ(load_checkpoint(disk / "a").step, 3);
}

/// Runs `body` in its own process as a user who owns nothing and can make no file.
template <typename Body>
std::string error_as_nobody(const Body& body) {
  std::array<int, 2> pipe{};
  EXPECT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    at::set_num_threads(1);  // a forked process has none of the other threads
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(1);
    const std::string error = error_of(body);
    const bool told = ::write(pipe[1], error.data(), error.size()) > 0;
    ::_exit(told ? 0 : 1);
  }
  ::close(pipe[1]);
  std::array<char, 4000> text{};
  const ssize_t read = ::read(pipe[0], text.data(), text.size());
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return {text.data(), size_t(std::max<ssize_t>(read, 0))};
}

TEST_F(CheckpointFaults, AReadOnlyFolderKeepsTheOldOne) {
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  fs::permissions(folder_, fs::perms(0555));
  const Checkpoint next = a_checkpoint(2);
  EXPECT_THAT(error_as_nobody([&] { save_checkpoint(folder_ / "a", next); }),
              HasSubstr("Permission denied; choose a folder that you may write to"));
  EXPECT_THAT(error_as_nobody([&] { FolderLock{folder_}; }), HasSubstr("Permission denied; choose"));
  EXPECT_THAT(error_as_nobody([&] { remove_checkpoint(folder_ / "a"); }),
              HasSubstr("Permission denied; choose"));
  // Reading is still possible.
  EXPECT_EQ(error_as_nobody([&] { load_newest(folder_); }), "no error");
  fs::permissions(folder_, fs::perms::owner_all);
  EXPECT_EQ(load_checkpoint(folder_ / "a").step, 1);
}

TEST_F(CheckpointFaults, WhatIsLeftOfOneThatCannotBeRemovedIsNamed) {
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  fs::permissions(folder_ / "a", fs::perms(0555));
  fs::permissions(folder_, fs::perms::all);
  const std::string error = error_as_nobody([&] { remove_checkpoint(folder_ / "a"); });
  const std::string left = names().front();
  fs::permissions(folder_ / left, fs::perms::owner_all);
  EXPECT_THAT(left, testing::StartsWith(".a.tmp-"));
  EXPECT_THAT(error, HasSubstr("which is now '" + (folder_ / left).string() +
                               "': Permission denied; remove that by hand"));
}

// A child writes one checkpoint after another, replaces one of them each time and removes old ones, until it
// is killed. After each kill there is a whole checkpoint, no older than the last one that the child had
// finished.
TEST_F(CheckpointFaults, KilledAtAnyMomentThereIsAlwaysAWholeOne) {
  save_checkpoint(folder_ / "last", a_checkpoint(0, 5000));
  int64_t finished = 0;
  size_t leftovers = 0;
  const auto begin = std::chrono::steady_clock::now();
  save_checkpoint(folder_ / "last", a_checkpoint(0, 5000));
  // One round of the child's work takes two such writes and a removal.
  auto longest = 4 * (std::chrono::steady_clock::now() - begin);
  std::srand(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t before = finished;
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe(pipe.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      at::set_num_threads(1);
      for (int64_t step = finished + 1;; ++step) {
        const Checkpoint checkpoint = a_checkpoint(step, 5000);
        save_checkpoint(folder_ / "last", checkpoint);
        if (::write(pipe[1], &step, sizeof(step)) < 0) ::_exit(1);
        save_checkpoint(folder_ / ("step=" + std::to_string(step)), checkpoint);
        remove_checkpoint(folder_ / ("step=" + std::to_string(step - 2)));
      }
    }
    ::close(pipe[1]);
    std::this_thread::sleep_for(longest * (std::rand() / double(RAND_MAX)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (int64_t step = 0; ::read(pipe[0], &step, sizeof(step)) == sizeof(step);) finished = step;
    ::close(pipe[0]);

    const auto newest = load_newest(folder_);
    ASSERT_TRUE(newest.has_value());
    ASSERT_THAT(newest->warnings, testing::IsEmpty());
    ASSERT_GE(newest->checkpoint.step, finished);
    ASSERT_LE(newest->checkpoint.step, finished + 1);
    ASSERT_EQ(difference(as_state(newest->checkpoint), as_state(a_checkpoint(newest->checkpoint.step, 5000))),
              "");
    ASSERT_EQ(load_checkpoint(folder_ / "last").step, newest->checkpoint.step);
    leftovers += remove_leftovers(folder_).size();
    for (const std::string& name : names()) ASSERT_NE(name.front(), '.') << name;
    // The machine may have become slower since the first writes.
    if (newest->checkpoint.step == before && longest < std::chrono::seconds(2)) longest += longest / 8;
    finished = newest->checkpoint.step;
  }
  EXPECT_GT(leftovers, 20u) << "the kills came at harmless moments";
  EXPECT_GT(finished, 20) << "the kills came before anything was written";
}

}  // namespace
}  // namespace mantissa::checkpoint_faults_test
