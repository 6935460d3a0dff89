// What checkpoints, and the locks on the folders that hold them, ask of the system, and what they do when it refuses.
#include <cerrno>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/append_file.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/checkpoint_internal.h"
#include "mantissa/io/checkpoint_test_support_internal.h"
#include "mantissa/io/held_folder.h"
#include "mantissa/io/system_calls_test_support_internal.h"

namespace mantissa::checkpoint_system_calls_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using CheckpointSystemCallsTest = InCheckpointFolder;

TEST_F(CheckpointSystemCallsTest, ACheckpointIsSyncedFromTheInsideOut) {
  const std::string inside = ".a.tmp/";
  const std::vector<std::string> files{inside + "weights.safetensors", inside + "state.safetensors",
                                       inside + "manifest.json", ".a.tmp", "."};
  for (const int64_t step : {1, 2})
    EXPECT_EQ(synced(folder_, [&] { save_checkpoint(folder_ / "a", a_checkpoint(step)); }), files);
  for (int i = 0; i < 4; ++i) {
    const SystemCalls calls(folder_, failing("fsync", i, EIO));
    EXPECT_THAT(error_of([&] { save_checkpoint(folder_ / "a", a_checkpoint(3)); }),
                HasSubstr("failed: Input/output error"))
        << files[static_cast<size_t>(i)];
    EXPECT_EQ(load_checkpoint(folder_ / "a").step, 2);
    EXPECT_THAT(names(), ElementsAre("a"));
  }
  EXPECT_THAT(synced(folder_, [&] { remove_checkpoint(folder_ / "a"); }), ElementsAre("."));
}

TEST_F(CheckpointSystemCallsTest, ACheckpointThatIsBeingWrittenIsNoLeftover) {
  int looked = 0;
  {
    const SystemCalls calls(folder_, [&](const Call& call) {
      if (call.name == "fsync" && call.file.filename() == "manifest.json") {
        ++looked;
        EXPECT_THAT(remove_leftovers(folder_), IsEmpty());
      }
      return Answer{};
    });
    EXPECT_EQ(error_of([&] { save_checkpoint(folder_ / "a", a_checkpoint(1)); }), "no error");
  }
  EXPECT_EQ(looked, 1);
  EXPECT_EQ(load_checkpoint(folder_ / "a").step, 1);
}

TEST_F(CheckpointSystemCallsTest, ACheckpointThatCannotBeMadeLeavesNothing) {
  const auto error = [&](const char* call, int number, int code) {
    const SystemCalls calls(folder_, failing(call, number, code));
    return error_of([&] { save_checkpoint(folder_ / "a", a_checkpoint(1)); });
  };
  EXPECT_THAT(error("mkdir", 0, ENOSPC), HasSubstr("creating a temporary folder beside it failed: No space"));
  EXPECT_THAT(error("open", 0, EMFILE),
              HasSubstr("opening a temporary folder beside it failed: Too many open"));
  EXPECT_THAT(error("open", 1, EMFILE), HasSubstr("weights.safetensors': creating it failed: Too many open"));
  EXPECT_THAT(error("close", 0, EDQUOT), HasSubstr("weights.safetensors': closing failed: Disk quota"));
  EXPECT_THAT(error("rename", 0, EIO), HasSubstr("moving it into place failed: Input/output error"));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(CheckpointSystemCallsTest, WhereFoldersCannotBeExchangedTheyAreMovedOneByOne) {
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  int64_t step = 1;
  for (const int error : {EINVAL, ENOSYS}) {
    const SystemCalls calls(folder_, failing("renameat2", 0, error));
    save_checkpoint(folder_ / "a", a_checkpoint(++step));
    EXPECT_EQ(load_checkpoint(folder_ / "a").step, step);
  }
  const auto error = [&](const char* call, int number, int code) {
    const SystemCalls calls(folder_, [&, fails = failing(call, number, code)](const Call& each) mutable {
      return each.name == "renameat2" && call != each.name ? Answer{.error = ENOSYS} : fails(each);
    });
    return error_of([&] { save_checkpoint(folder_ / "a", a_checkpoint(9)); });
  };
  EXPECT_THAT(error("renameat2", 0, EIO), HasSubstr("moving it into place failed: Input/output error"));
  EXPECT_THAT(error("rename", 0, EIO), HasSubstr("moving it into place failed: Input/output error"));
  EXPECT_THAT(error("rename", 1, EIO), HasSubstr("moving it into place failed: Input/output error"));
  EXPECT_EQ(load_checkpoint(folder_ / "a").step, step);
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(CheckpointSystemCallsTest, ALeftoverThatSomebodyElseRemovesIsNotNamed) {
  write(folder_ / (".file.tmp-" + std::to_string(::getpid()) + "-99999"), "left over");
  const SystemCalls calls(folder_, [&](const Call& call) {
    if (call.name == "flock") fs::remove(folder_ / call.file);
    return Answer{};
  });
  EXPECT_THAT(remove_leftovers(folder_), IsEmpty());
  EXPECT_THAT(names(), IsEmpty());
}

// A file system without locks cannot keep runs apart, and an error of an earlier call says nothing.
TEST_F(CheckpointSystemCallsTest, WorksOnAFileSystemWithoutLocks) {
  const auto lock_both = [&] {
    errno = EWOULDBLOCK;
    const FolderLock lock(folder_);
    errno = EWOULDBLOCK;
    AppendFile(folder_ / "rows", AppendFile::Mode::kContinue).append("1\n");
  };
  EXPECT_EQ(error_of(lock_both), "no error");
  const SystemCalls calls(
      folder_, [](const Call& call) { return call.name == "flock" ? Answer{.error = ENOLCK} : Answer{}; });
  EXPECT_EQ(error_of(lock_both), "no error");
  EXPECT_EQ(content_of(folder_ / "rows"), "1\n1\n");
}

// The holder of a lock removes its file, which another process may have opened already.
TEST_F(CheckpointSystemCallsTest, ALockWhoseFileWasRemovedMeanwhileIsTakenAgain) {
  int locked = 0;
  const SystemCalls calls(folder_, [&](const Call& call) {
    if (call.name == "flock" && locked++ == 0) fs::remove(folder_ / ".lock");
    return Answer{};
  });
  const FolderLock lock(folder_);
  EXPECT_EQ(locked, 2);
  EXPECT_THAT(error_of([&] { FolderLock second(folder_); }), HasSubstr("is in use by this process"));
}

TEST_F(CheckpointSystemCallsTest, WorksOnAFileSystemWhoseInodeNumbersDoNotLast) {
  int locked = 0;
  const SystemCalls calls(folder_, [&](const Call& call) {
    locked += call.name == "flock";
    return Answer{.other_inode = call.name == "fstat"};
  });
  const FolderLock lock(folder_);
  EXPECT_EQ(locked, 100) << "it stops looking for the same number";
  fs::create_directory(folder_ / "run");
  const HeldFolder held(folder_ / "run");
  fs::remove(folder_ / "run");
  EXPECT_TRUE(held.is_lost());
  fs::create_directory(folder_ / "run");
  EXPECT_FALSE(held.is_lost()) << "it may be the same one under another number";
}

}  // namespace
}  // namespace mantissa::checkpoint_system_calls_test
