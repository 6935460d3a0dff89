#include "mantissa/io/append_file.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/file_size_limit_internal.h"

namespace mantissa::append_file_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using enum AppendFile::Mode;

class AppendFileTest : public InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    path_ = folder_ / "rows";
  }

  std::string content() const { return content_of(path_); }
  void write(const std::string& content) const { std::ofstream(path_, std::ios::binary) << content; }

  fs::path path_;
};

TEST_F(AppendFileTest, ContinuesAfterTheLastWholeLine) {
  const std::string long_line(10'000, 'x');  // longer than the blocks in which the end is searched
  const struct {
    std::string before, kept;
  } cases[] = {{"", ""},        {"a\n", "a\n"}, {"a\nb", "a\n"},
               {"cut", ""},     {"c", ""},      {"a\n" + long_line, "a\n"},
               {long_line, ""}, {"\n", "\n"}};
  for (const auto& [before, kept] : cases) {
    write(before);
    AppendFile file(path_, kContinue);
    EXPECT_EQ(file.size(), kept.size());
    file.append("next\n");
    EXPECT_EQ(content(), kept + "next\n") << before.substr(0, 10);
  }
}

TEST_F(AppendFileTest, ANewFileMustNotBeThere) {
  write("precious");
  EXPECT_THAT(error_of([&] { AppendFile(path_, kCreate); }), HasSubstr("File exists"));
  EXPECT_EQ(content(), "precious");
}

TEST_F(AppendFileTest, EditsAndDropsLinesThenContinues) {
  write("1\n2\n3\n");
  AppendFile file(path_, kContinue);
  file.edit_lines([](std::string& line) {
    line += "!";
    return line != "2!";
  });
  file.append("4\n");
  EXPECT_EQ(content(), "1!\n3!\n4\n");
  EXPECT_EQ(file.size(), content().size());
}

TEST_F(AppendFileTest, AThrowWhileEditingLeavesTheFileAsItWas) {
  write("1\n2\n");
  AppendFile file(path_, kContinue);
  EXPECT_THROW(file.edit_lines([](std::string& line) -> bool {
    if (line == "2") throw std::runtime_error("stop");
    return false;
  }),
               std::runtime_error);
  file.append("3\n");
  EXPECT_EQ(content(), "1\n2\n3\n");
}

TEST_F(AppendFileTest, HasOneWriterAtATime) {
  AppendFile first(path_, kContinue);
  const auto open_again = [&] { AppendFile(path_, kContinue); };
  EXPECT_THAT(error_of(open_again), HasSubstr("another run is writing it"));
  first.append("a\n");
  first.edit_lines([](std::string& /*line*/) { return true; });  // another file under the same name
  EXPECT_THAT(error_of(open_again), HasSubstr("another run is writing it"));
}

TEST_F(AppendFileTest, ReportsThatItsFileOrFolderWasRemoved) {
  AppendFile file(path_, kContinue);
  file.append("a\n");
  fs::remove_all(folder_);
  const std::string told = "rows': it was removed, or its folder was";
  EXPECT_THAT(error_of([&] { file.append("b\n"); }), HasSubstr(told));
  EXPECT_THAT(error_of([&] { file.sync(); }), HasSubstr(told));
  EXPECT_THAT(error_of([&] { file.edit_lines([](std::string& /*line*/) { return true; }); }),
              HasSubstr(told));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(AppendFileTest, AFolderMayMove) {
  AppendFile file(path_, kContinue);
  const fs::path moved = folder_.string() + "-moved";
  fs::rename(folder_, moved);
  file.append("a\n");
  folder_ = moved;
  path_ = moved / "rows";
  EXPECT_EQ(content(), "a\n");
}

TEST_F(AppendFileTest, ReportsWhyItCannotBeOpened) {
  EXPECT_THAT(error_of([&] { AppendFile(folder_ / "none" / "rows", kContinue); }),
              HasSubstr("No such file or directory; create its folder first"));
  EXPECT_THAT(error_of([&] { AppendFile(folder_, kContinue); }), HasSubstr("opening failed: Is a directory"));
  EXPECT_THAT(error_of([&] { AppendFile("/dev/null", kContinue); }), HasSubstr("not a regular file"));
}

TEST_F(AppendFileTest, APieceThatDoesNotFitLeavesNoPartOfItself) {
  AppendFile file(path_, kContinue);
  file.append("0123456789\n");
  {
    const FileSizeLimit limit(16);
    EXPECT_THAT(error_of([&] { file.append("abcdefghij\n"); }), HasSubstr("writing failed: File too large"));
  }
  EXPECT_EQ(content(), "0123456789\n");
  file.append("abcdefghij\n");
  EXPECT_EQ(content(), "0123456789\nabcdefghij\n");
}

TEST_F(AppendFileTest, DoesNotFollowALink) {
  const fs::path other = folder_ / "precious";
  std::ofstream(other) << "no line's end";
  fs::create_symlink(other, path_);
  for (const auto mode : {kCreate, kContinue})
    EXPECT_NE(error_of([&] { AppendFile(path_, mode); }), "no error");
  EXPECT_THAT(error_of([&] { AppendFile(path_, kContinue); }), HasSubstr("remove the symbolic link"));
  EXPECT_EQ(content_of(other), "no line's end");
  // A link that was put there later, when the file is rewritten.
  fs::remove(path_);
  AppendFile file(path_, kContinue);
  file.append("1\n");
  fs::rename(path_, folder_ / "rows-elsewhere");
  fs::create_symlink(other, path_);
  EXPECT_THAT(error_of([&] { file.edit_lines([](std::string& /*line*/) { return true; }); }),
              HasSubstr("remove the symbolic link"));
  EXPECT_EQ(content_of(other), "no line's end");
}

TEST_F(AppendFileTest, ANewFileThatNothingFitsIntoIsRemoved) {
  for (const auto mode : {kCreate, kContinue}) {
    const FileSizeLimit limit(0);
    {
      AppendFile file(path_, mode);
      EXPECT_THAT(error_of([&] { file.append("row\n"); }), HasSubstr("File too large"));
    }
    EXPECT_FALSE(fs::exists(path_));
  }
  write("");  // an empty file that we did not make
  { AppendFile file(path_, kContinue); }
  EXPECT_TRUE(fs::exists(path_));
}

// In a process that has closed its standard input, 0 is a descriptor like any other, and a call that succeeds leaves
// errno as an earlier one has set it.
TEST_F(AppendFileTest, AFileThatIsDescriptor0IsMadeOnce) {
  const int standard_input = ::fcntl(0, F_DUPFD_CLOEXEC, 3);
  for (const int before : {0, EINTR, EEXIST}) {
    for (const auto mode : {kCreate, kContinue}) {
      ::close(0);
      const FileSizeLimit limit(0);
      EXPECT_THAT(error_of([&] {
                    errno = before;
                    AppendFile file(path_, mode);
                    file.append("row\n");
                  }),
                  HasSubstr("File too large"));
      EXPECT_FALSE(fs::exists(path_)) << "it was new, and nothing fits into it";
      EXPECT_EQ(::fcntl(0, F_GETFD), -1);
    }
  }
  if (standard_input >= 0) ::dup2(standard_input, 0);
  ::close(standard_input);
}

TEST_F(AppendFileTest, SweepsUpAfterAKilledRewrite) {
  const pid_t dead = ::fork();
  if (dead == 0) {  // killed in the middle of the rewrite
    AppendFile file(path_, kContinue);
    file.append("1\n2\n");
    file.edit_lines([](std::string& /*line*/) -> bool { ::_exit(0); });
  }
  ::waitpid(dead, nullptr, 0);
  const auto files = [&] { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); };
  ASSERT_EQ(files(), 2) << "a temporary file was to stay";
  const std::string stale = ".tmp-" + std::to_string(dead) + "-7";
  std::ofstream(folder_ / (".other" + stale)) << "not of this file";
  fs::create_directory(folder_ / (".rows" + stale));
  std::ofstream(folder_ / (".rows.tmp-" + std::to_string(::getppid()) + "-7")) << "of a living process";
  ASSERT_EQ(::mkfifo((folder_ / (".rows.tmp-" + std::to_string(dead) + "-8")).c_str(), 0600), 0);
  AppendFile file(path_, kContinue);
  EXPECT_EQ(files(), 5);
  EXPECT_EQ(content(), "1\n2\n");
}

TEST_F(AppendFileTest, WhatWasAppendedOutlivesAKill) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  // The test runs again in a new process, which does not know the name of this one's folder.
  fs::remove_all(folder_);
  const fs::path file = fs::temp_directory_path() / "mantissa-append-killed";
  EXPECT_EXIT(
      {
        fs::remove(file);
        AppendFile rows(file, kContinue);
        rows.append("a\n");
        std::raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  path_ = file;
  EXPECT_EQ(content(), "a\n");
  fs::remove(file);
}

}  // namespace
}  // namespace mantissa::append_file_test
