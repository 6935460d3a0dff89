#include "mantissa/io/checkpoint_folder.h"

#include <array>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "mantissa/io/atomic_file.h"
#include "mantissa/io/checkpoint_test_support_internal.h"
#include "mantissa/io/file_size_limit_internal.h"

namespace mantissa::checkpoint_folder_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using CheckpointFolder = InCheckpointFolder;
using FolderLockTest = InCheckpointFolder;

std::vector<std::string> listed(const fs::path& folder) {
  std::vector<std::string> names;
  for (const CheckpointEntry& entry : list_checkpoints(folder))
    names.push_back(entry.path.filename().string());
  return names;
}

TEST_F(CheckpointFolder, ListsTheNewestFirst) {
  EXPECT_THAT(listed(folder_), IsEmpty());
  for (const int64_t step : {9, 100, 10}) save_checkpoint(folder_ / c10::str("s", step), a_checkpoint(step));
  // Touched, copied, or with equal steps: the step decides, then the time of writing.
  fs::last_write_time(folder_ / "s9" / "manifest.json",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  ::usleep(2000);
  save_checkpoint(folder_ / "the-second", a_checkpoint(10));
  // None of these is a checkpoint.
  fs::create_directory(folder_ / "logs");
  write(folder_ / "logs" / "x.csv", "1");
  fs::create_directory(folder_ / "empty");
  write(folder_ / "notes", "x");
  // A copy has the same step and time: the name decides.
  fs::copy(folder_ / "s9", folder_ / "s9-copy");
  EXPECT_THAT(listed(folder_), ElementsAre("s100", "the-second", "s10", "s9", "s9-copy"));
  fs::remove_all(folder_ / "s9-copy");
  write(folder_ / "s100" / "manifest.json", "{");
  fs::remove(folder_ / "s10" / "manifest.json");
  EXPECT_THAT(listed(folder_), ElementsAre("the-second", "s9", "s10", "s100"));
  EXPECT_THAT(list_checkpoints(folder_).back().problem, HasSubstr("is not valid JSON"));
  EXPECT_THAT(error_of([&] { list_checkpoints(folder_ / "none"); }), HasSubstr("No such file or directory"));
}

TEST_F(CheckpointFolder, ListsOneOfWhichAnyFileIsLeft) {
  for (const char* name : {"manifest.json", "weights.safetensors", "state.safetensors"}) {
    fs::create_directory(folder_ / name);
    write(folder_ / name / name, "damaged");
  }
  EXPECT_THAT(listed(folder_), ElementsAre("manifest.json", "state.safetensors", "weights.safetensors"));
}

TEST_F(CheckpointFolder, FallsBackToTheOneBeforeAndSaysSo) {
  EXPECT_FALSE(load_newest(folder_).has_value());
  for (const int64_t step : {1, 2, 3}) save_checkpoint(folder_ / c10::str("s", step), a_checkpoint(step));
  EXPECT_THAT(load_newest(folder_)->warnings, IsEmpty());
  const fs::path file = folder_ / "s3" / "state.safetensors";
  std::string content = content_of(file);
  content.back() = char(content.back() ^ 1);
  write(file, content);
  auto newest = load_newest(folder_);
  EXPECT_EQ(newest->path, folder_ / "s2");
  EXPECT_EQ(newest->checkpoint.step, 2);
  EXPECT_THAT(newest->warnings, ElementsAre(HasSubstr(file.string() + "' has the checksum")));
  write(folder_ / "s2" / "manifest.json", "");
  newest = load_newest(folder_);
  EXPECT_EQ(newest->checkpoint.step, 1);
  EXPECT_THAT(newest->warnings, ElementsAre(HasSubstr("s2"), HasSubstr("s3")));
  fs::remove(folder_ / "s1" / "weights.safetensors");
  EXPECT_THAT(error_of([&] { load_newest(folder_); }),
              testing::AllOf(HasSubstr("is damaged, 3 of them: "), HasSubstr("s1/"), HasSubstr("s2/"),
                             HasSubstr("s3/"), testing::Not(testing::ContainsRegex("s2/.*s2/"))));
}

TEST_F(CheckpointFolder, RemovesOnlyCheckpoints) {
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  save_checkpoint(folder_ / "b", a_checkpoint(2));
  fs::remove(folder_ / "b" / "manifest.json");
  fs::create_directory_symlink("a", folder_ / "last");
  EXPECT_NE(error_of([&] { remove_checkpoint(folder_ / "last"); }), "no error");
  fs::remove(folder_ / "last");
  EXPECT_TRUE(remove_checkpoint(folder_ / "a"));
  EXPECT_TRUE(remove_checkpoint(folder_ / "b" / ""));
  EXPECT_FALSE(remove_checkpoint(folder_ / "a"));
  EXPECT_THAT(names(), IsEmpty());
  fs::create_directory(folder_ / "data");
  write(folder_ / "data" / "photo", "x");
  EXPECT_THAT(error_of([&] { remove_checkpoint(folder_ / "data"); }),
              HasSubstr("it is not a checkpoint's folder"));
  EXPECT_TRUE(fs::exists(folder_ / "data" / "photo"));
}

/// Returns a process id that nobody has.
pid_t dead_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST_F(CheckpointFolder, RemovesWhatDeadWritersHaveLeft) {
  const std::string dead = std::to_string(dead_process()), parent = std::to_string(::getppid()),
                    mine = std::to_string(::getpid());
  fs::create_directory(folder_ / (".a.tmp-" + dead + "-0"));
  write(folder_ / (".a.tmp-" + dead + "-0") / "weights.safetensors", "half");
  write(folder_ / (".run.csv.tmp-" + dead + "-12"), "half");
  write(folder_ / (".a.tmp-" + mine + "-99999"), "of an earlier process of the same id");
  // These stay.
  write(folder_ / (".a.tmp-" + parent + "-1"), "of a living process");
  write(folder_ / (".a.swp-" + dead + "-1"), "somebody else's");
  write(folder_ / (".a.tmp-" + dead), "no number");
  write(folder_ / (".a.tmp-" + dead + "x-1"), "no process");
  write(folder_ / (".tmp-" + dead + "-1"), "no name");
  write(folder_ / "a.tmp-1-1", "not hidden");
  write(folder_ / ".tmp--1", "nothing");
  EXPECT_EQ(remove_leftovers(folder_).size(), 3u);
  EXPECT_EQ(names().size(), 7u);
  EXPECT_THAT(remove_leftovers(folder_), IsEmpty());
}

TEST_F(CheckpointFolder, RemovesOnlyTheLeftoversOfNamedFiles) {
  const std::string left = ".tmp-" + std::to_string(dead_process()) + "-0";
  for (const char* name : {".a", ".b", ".c"}) write(folder_ / (name + left), "half");
  remove_leftovers(folder_, {"a", "b"});
  EXPECT_THAT(names(), ElementsAre(".c" + left));
}

// Covers our own files, and those of a living writer whose process id means nothing here, as in another
// container.
TEST_F(CheckpointFolder, LeavesWhatALivingWriterHolds) {
  write_file_atomically(folder_ / "file", [&](std::ostream& stream) {
    EXPECT_THAT(remove_leftovers(folder_), IsEmpty());
    stream << "whole";
    const std::string now = names().front();
    ASSERT_EQ(now.front(), '.');
    const std::string other = ".file.tmp-" + std::to_string(dead_process()) + "-0";
    fs::rename(folder_ / now, folder_ / other);
    EXPECT_THAT(remove_leftovers(folder_), IsEmpty());
    fs::rename(folder_ / other, folder_ / now);
  });
  EXPECT_EQ(content_of(folder_ / "file"), "whole");
}

/// Removes a checkpoint of `files` files on another thread, and calls `look` until it is gone.
void look_while_removing(const fs::path& checkpoint, int files, const std::function<void()>& look) {
  save_checkpoint(checkpoint, a_checkpoint(1));
  for (int i = 0; i < files; ++i) write(checkpoint / std::to_string(i), "x");  // so that it takes a while
  std::atomic<bool> is_removed = false;
  std::thread remover([&] {
    remove_checkpoint(checkpoint);
    is_removed = true;
  });
  while (!is_removed) look();
  remover.join();
}

// remove_leftovers() takes what nobody has locked.
TEST_F(CheckpointFolder, HoldsWhatItIsRemovingUntilItIsGone) {
  for (int round = 0; round < 5; ++round) {
    int taken = 0;
    look_while_removing(folder_ / "c", 1000, [&] {
      for (const std::string& name : names()) {
        const int fd = name.starts_with(".c.tmp-") ? ::open((folder_ / name).c_str(), O_RDONLY) : -1;
        if (fd < 0) continue;
        taken += ::flock(fd, LOCK_EX | LOCK_NB) == 0 && fs::exists(folder_ / name);
        ::close(fd);
      }
    });
    ASSERT_EQ(taken, 0);
    ASSERT_THAT(remove_leftovers(folder_), IsEmpty());
  }
}

TEST_F(CheckpointFolder, NamesNoLeftoverThatItsOwnerHasJustRemoved) {
  for (int round = 0; round < 10; ++round) {
    std::vector<std::string> taken;
    look_while_removing(folder_ / "c", 500, [&] {
      for (const std::string& name : remove_leftovers(folder_)) taken.push_back(name);
    });
    ASSERT_THAT(taken, IsEmpty());
  }
}

TEST_F(FolderLockTest, TheErrorNamesTheHolder) {
  {
    const FolderLock first(folder_);
    const std::string error = error_of([&] { FolderLock second(folder_); });
    EXPECT_THAT(error, HasSubstr("is in use by this process; give each of its writers one of its own"));
  }
  EXPECT_THAT(names(), IsEmpty());
  const FolderLock again(folder_);
  EXPECT_THAT(listed(folder_), IsEmpty());
  EXPECT_THAT(error_of([&] { FolderLock lock(folder_ / "none"); }), HasSubstr("create its folder first"));
}

// The lock's file comes and goes; a process that opened it before it went must not take it for the lock.
TEST_F(FolderLockTest, IsHeldByOneAtATime) {
  std::atomic<int> holders{0}, crowds{0}, held{0};
  const auto take_turns = [&] {
    for (int i = 0; i < 500; ++i) {
      try {
        const FolderLock lock(folder_);
        if (++holders > 1) ++crowds;
        ++held;
        std::this_thread::yield();
        --holders;
      } catch (const c10::Error&) {
        std::this_thread::yield();  // another thread has it
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(take_turns);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(crowds, 0);
  EXPECT_GT(held, 100);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(FolderLockTest, LeavesAnothersFileAlone) {
  fs::create_directory(folder_ / "run");
  {
    const FolderLock lock(folder_ / "run");
    fs::remove_all(folder_ / "run");
    fs::create_directory(folder_ / "run");
    write(folder_ / "run" / ".lock", "another's");
  }
  EXPECT_EQ(content_of(folder_ / "run" / ".lock"), "another's");
}

// Any other user of the folder may have put something else there.
TEST_F(FolderLockTest, TouchesNothingThatIsNoLock) {
  const fs::path lock = folder_ / ".lock", other = folder_ / "precious";
  write(other, "precious");
  const auto error = [&] { return error_of([&] { FolderLock held(folder_); }); };
  fs::create_symlink(other, lock);
  EXPECT_THAT(error(), HasSubstr("remove the symbolic link"));
  EXPECT_TRUE(fs::is_symlink(lock));
  fs::remove(lock);
  fs::create_symlink(folder_ / "absent", lock);
  EXPECT_THAT(error(), HasSubstr("remove the symbolic link"));
  EXPECT_FALSE(fs::exists(folder_ / "absent"));
  fs::remove(lock);
  fs::create_hard_link(other, lock);
  EXPECT_THAT(error(), HasSubstr("its text is not that of a lock"));
  EXPECT_EQ(content_of(other), "precious");
  fs::remove(lock);
  ASSERT_EQ(::mkfifo(lock.c_str(), 0600), 0);
  EXPECT_THAT(error(), HasSubstr("it is not a regular file"));
  EXPECT_TRUE(fs::is_fifo(lock));
  fs::remove(lock);
  fs::create_directory(lock);
  EXPECT_THAT(error(), HasSubstr("move the folder of that name away"));
  fs::remove(lock);
  // The lock of a killed process, and the remains of one on a full disk.
  for (const char* text :
       {"process 1 on host since then, and a longer text than the next one's", "pro", ""}) {
    write(lock, text);
    const FolderLock held(folder_);
    EXPECT_THAT(content_of(lock), testing::EndsWith("UTC"));
    EXPECT_THAT(content_of(lock), testing::StartsWith("process " + std::to_string(::getpid())));
  }
}

TEST_F(FolderLockTest, WorksOnAFullDisk) {
  write(folder_ / ".lock", "process 1 on host since then");  // of a killed process
  const FileSizeLimit limit(0);
  const FolderLock held(folder_);
  EXPECT_EQ(content_of(folder_ / ".lock"), "");
  EXPECT_THAT(error_of([&] { FolderLock second(folder_); }), HasSubstr("is in use by another process"));
}

TEST_F(FolderLockTest, AKilledProcessLeavesNone) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(folder_);
    const char ready = 1;
    if (::write(pipe[1], &ready, 1) != 1) ::_exit(1);
    ::pause();
  }
  char ready = 0;
  ASSERT_EQ(::read(pipe[0], &ready, 1), 1);
  EXPECT_THAT(error_of([&] { FolderLock lock(folder_); }),
              HasSubstr("in use by process " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const FolderLock mine(folder_);
  EXPECT_THAT(content_of(folder_ / ".lock"), HasSubstr("process " + std::to_string(::getpid()) + " on "));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace mantissa::checkpoint_folder_test
