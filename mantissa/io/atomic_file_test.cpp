#include "mantissa/io/atomic_file.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/file_size_limit_internal.h"

namespace mantissa::atomic_file_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class AtomicFile : public InFolder {
 protected:
  size_t files() const { return size_t(std::distance(fs::directory_iterator(folder_), {})); }
};

TEST_F(AtomicFile, ThrowInTheMiddleKeepsTheOldFile) {
  write_file_atomically(folder_ / "a", "old");
  EXPECT_THROW(write_file_atomically(folder_ / "a",
                                     [](std::ostream& out) {
                                       out << std::string(1 << 20, 'x');
                                       throw std::runtime_error("stop");
                                     }),
               std::runtime_error);
  EXPECT_EQ(content_of(folder_ / "a"), "old");
  EXPECT_EQ(files(), 1u);
}

// The size limit fails as a full disk does: write() first returns too few bytes, then an error.
TEST_F(AtomicFile, FullDiskKeepsTheOldFileAndNamesTheCure) {
  write_file_atomically(folder_ / "a", "old");
  std::optional<FileSizeLimit> limit(100'000);
  const std::string large =
      error_of([&] { write_file_atomically(folder_ / "a", std::string(200'000, 'x')); });
  // Small pieces reach the disk only when the buffer is full, or at the very end.
  const std::string small = error_of([&] {
    write_file_atomically(folder_ / "a", [](std::ostream& out) {
      for (int i = 0; i < 20'000; ++i) out << "0123456789";
    });
  });
  const std::string swallowed = error_of([&] {
    write_file_atomically(folder_ / "a", [](std::ostream& out) {
      try {
        out << std::string(200'000, 'x');
      } catch (...) {
      }
    });
  });
  limit.reset();
  for (const std::string& message : {large, small, swallowed}) {
    EXPECT_THAT(message, HasSubstr((folder_ / "a").string()));
    EXPECT_THAT(message, HasSubstr("File too large; raise the limit"));
  }
  EXPECT_EQ(content_of(folder_ / "a"), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(AtomicFile, MissingFolderAndFileAsFolder) {
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "none" / "a", "x"); }),
              HasSubstr("No such file or directory; create its folder first"));
  write_file_atomically(folder_ / "file", "x");
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "file" / "a", "x"); }),
              HasSubstr("Not a directory; create its folder first"));
  EXPECT_EQ(content_of(folder_ / "file"), "x");
}

TEST_F(AtomicFile, ReadOnlyFolder) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "a", "x"); }),
              HasSubstr("Permission denied; choose"));
  fs::permissions(folder_, fs::perms::owner_all);
}

// rename() over /dev/full would replace the device for everyone, so the test takes a pipe of its own.
TEST_F(AtomicFile, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "pipe", "x"); }),
              HasSubstr("it is a device, pipe or socket"));
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_, "x"); }), HasSubstr("it is a folder"));
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "", "x"); }), HasSubstr("names no file"));
  EXPECT_THAT(error_of([] { write_file_atomically("", "x"); }), HasSubstr("names no file"));
}

TEST_F(AtomicFile, LeftoverOfAKilledProcessIsNotTouched) {
  // Some of these names are taken, whatever number comes next.
  for (int n = 0; n < 100; ++n) {
    std::ofstream(folder_ / (".a.tmp-" + std::to_string(getpid()) + "-" + std::to_string(n))) << "left over";
  }
  write_file_atomically(folder_ / "a", "new");
  EXPECT_EQ(content_of(folder_ / "a"), "new");
  EXPECT_EQ(files(), 101u);
}

TEST_F(AtomicFile, FollowsLinksAndKeepsPermissions) {
  write_file_atomically(folder_ / "real", "old");
  fs::permissions(folder_ / "real", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real", folder_ / "link");
  fs::create_symlink("later", folder_ / "dangling");
  write_file_atomically(folder_ / "link", "new");
  write_file_atomically(folder_ / "dangling", "made");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(content_of(folder_ / "real"), "new");
  EXPECT_EQ(content_of(folder_ / "later"), "made");
  EXPECT_EQ(fs::status(folder_ / "real").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "loop", "x"); }),
              HasSubstr("following the symbolic link"));
}

TEST_F(AtomicFile, FollowsAsManyLinksAsLinux) {
  write_file_atomically(folder_ / "0", "old");
  for (int i = 1; i <= 41; ++i) fs::create_symlink(std::to_string(i - 1), folder_ / std::to_string(i));
  write_file_atomically(folder_ / "40", "new");
  EXPECT_EQ(content_of(folder_ / "0"), "new");
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "41", "x"); }),
              HasSubstr("following the symbolic link failed: Too many levels"));
}

TEST_F(AtomicFile, ReplacesALinkWhereAsked) {
  write_file_atomically(folder_ / "real", "old");
  fs::create_symlink("real", folder_ / "link");
  fs::create_symlink("later", folder_ / "dangling");
  fs::create_symlink("loop", folder_ / "loop");
  for (const char* name : {"link", "dangling", "loop", "none"}) {
    write_file_atomically(folder_ / name, "new", Links::kReplace);
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / name))) << name;
    EXPECT_EQ(content_of(folder_ / name), "new");
  }
  EXPECT_EQ(content_of(folder_ / "real"), "old");
  EXPECT_FALSE(fs::exists(folder_ / "later"));
}

TEST_F(AtomicFile, CharactersOneByOneReachTheFileInWholeBuffers) {
  std::string wanted;
  for (int i = 0; i < 300'000; ++i) wanted.push_back(static_cast<char>('a' + i % 26));
  write_file_atomically(folder_ / "a", [&](std::ostream& out) {
    for (const char c : wanted) out.put(c);
  });
  EXPECT_TRUE(content_of(folder_ / "a") == wanted);
}

TEST_F(AtomicFile, EveryMixOfSmallAndLargeWrites) {
  std::string want;
  write_file_atomically(folder_ / "a", [&](std::ostream& out) {
    for (const size_t n : {0, 1, 65'535, 1, 1, 65'536, 65'537, 3, 200'000, 7}) {
      const std::string piece(n, char('a' + want.size() % 26));
      out.write(piece.data(), std::streamsize(n));
      want += piece;
      out.put('|');
      want += '|';
    }
    out.flush();
  });
  EXPECT_EQ(content_of(folder_ / "a"), want);
  write_file_atomically(folder_ / "a", "");
  EXPECT_EQ(content_of(folder_ / "a"), "");
  const std::string longest(255, 'n');
  write_file_atomically(folder_ / longest, "x");
  EXPECT_EQ(content_of(folder_ / longest), "x");
}

TEST_F(AtomicFile, ReadersSeeOneOrTheOtherWhole) {
  const std::string a(300'000, 'a'), b(300'000, 'b');
  write_file_atomically(folder_ / "f", a);
  std::thread one([&] {
    for (int i = 0; i < 10; ++i) write_file_atomically(folder_ / "f", a);
  });
  std::thread two([&] {
    for (int i = 0; i < 10; ++i) write_file_atomically(folder_ / "f", b);
  });
  for (int i = 0; i < 50; ++i) {
    const std::string seen = content_of(folder_ / "f");
    EXPECT_TRUE(seen == a || seen == b) << seen.size();
  }
  one.join();
  two.join();
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace mantissa::atomic_file_test
