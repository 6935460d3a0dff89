#include "mantissa/io/files_internal.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/json_internal.h"

namespace mantissa::files_internal_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using FilesInternal = InFolder;

TEST_F(FilesInternal, ASiblingsNameIsReadBack) {
  const std::vector<std::tuple<std::string, std::string, std::string, pid_t>> good{
      {".a.tmp-1-0", "a", "tmp", 1},         {".a.tmp-12-34", "a", "tmp", 12},
      {".a.b.c.old-7-1", "a.b.c", "old", 7}, {".step-9.csv.tmp-10-2", "step-9.csv", "tmp", 10},
      {"..a.tmp-1-0", ".a", "tmp", 1},       {".a.-1-0", "a", "", 1}};
  for (const auto& [file, name, kind, pid] : good) {
    const auto parts = parse_sibling(file);
    ASSERT_TRUE(parts.has_value()) << file;
    EXPECT_EQ(parts->name, name);
    EXPECT_EQ(parts->kind, kind);
    EXPECT_EQ(parts->pid, pid);
  }
  for (const char* file : {"",
                           "-",
                           "--",
                           "-1",
                           "a-1",
                           ".a",
                           ".a.tmp",
                           ".a.tmp-1",
                           "a.tmp-1-0",
                           ".tmp-1-0",
                           "..tmp-1-0",
                           ".a.tmp-0-1",
                           ".a.tmp-1-",
                           ".a.tmp--0",
                           ".a.tmp-1x-0",
                           ".a.tmp-x1-0",
                           ".a.tmp-1-0x",
                           ".a.tmp-1-x0",
                           ".a.tmp-99999999999-0",
                           ".a.tmp-1-99999999999999999999",
                           "xa.tmp-1-0"})
    EXPECT_FALSE(parse_sibling(file).has_value()) << file;
}

TEST_F(FilesInternal, SiblingsAreUniqueAndFitIntoAName) {
  const fs::path first = sibling(folder_ / "a", "tmp"), second = sibling(folder_ / "a", "tmp");
  EXPECT_NE(first, second);
  EXPECT_EQ(first.parent_path(), folder_);
  const std::string longest(255, 'n');
  const auto parts = parse_sibling(sibling(folder_ / longest, "old").filename().string());
  ASSERT_TRUE(parts.has_value());
  EXPECT_EQ(parts->name, std::string(kMaxNameBytes, 'n'));
  EXPECT_EQ(parts->kind, "old");
  EXPECT_EQ(parts->pid, ::getpid());
}

TEST_F(FilesInternal, WhoHasWrittenItDecidesWhatIsAbandoned) {
  const fs::path file = folder_ / "file";
  std::ofstream(file) << "x";
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  EXPECT_TRUE(is_abandoned(file, dead));
  EXPECT_TRUE(is_abandoned(file, ::getpid()));
  EXPECT_FALSE(is_abandoned(file, ::getppid()));
  EXPECT_FALSE(is_abandoned(file, 1)) << "a process of another user lives, too";
  EXPECT_FALSE(is_abandoned(folder_ / "none", dead));
  const FileDescriptor held(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(try_lock(held));
  EXPECT_FALSE(is_abandoned(file, dead));
  EXPECT_FALSE(is_abandoned(file, ::getpid()));
}

// The question of whether a process lives is put to the system, and the process notices nothing.
TEST_F(FilesInternal, ALivingWriterIsLeftInPeace) {
  const fs::path file = folder_ / "file";
  std::ofstream(file) << "x";
  const pid_t writer = ::fork();
  if (writer == 0) {
    std::signal(SIGHUP, SIG_DFL);
    for (;;) ::pause();
  }
  errno = ESRCH;  // a call that succeeds leaves it so
  EXPECT_FALSE(is_abandoned(file, writer));
  ::kill(writer, SIGKILL);
  int status = 0;
  ::waitpid(writer, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST_F(FilesInternal, FilesOfOtherUsersStay) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may give a file away";
  const std::string ours = ".a.tmp-" + std::to_string(::getpid()) + "-999998";
  const std::string others = ".a.tmp-" + std::to_string(::getpid()) + "-999999";
  for (const std::string& name : {ours, others}) std::ofstream(folder_ / name) << "x";
  if (::chown((folder_ / others).c_str(), 65534, 65534) != 0) GTEST_SKIP() << "may not give a file away";
  remove_abandoned_files(folder_, {"b"});
  EXPECT_TRUE(fs::exists(folder_ / ours)) << "it belongs to another file";
  remove_abandoned_files(folder_, {"a", "b"});
  EXPECT_FALSE(fs::exists(folder_ / ours));
  EXPECT_TRUE(fs::exists(folder_ / others));
}

TEST_F(FilesInternal, ControlCharactersAreReplacedAndLongTextsCut) {
  EXPECT_EQ(fit_for_message(" a b\x1f~\x7fü!"), " a b?~?ü!");
  EXPECT_EQ(fit_for_message(std::string("\0\n", 2)), "??");
  EXPECT_EQ(fit_for_message(std::string(100, 'x')), std::string(100, 'x'));
  EXPECT_EQ(fit_for_message(std::string(101, 'x')), std::string(100, 'x'));
}

TEST_F(FilesInternal, JsonKeepsEveryKindOfValue) {
  const auto parsed = [](const std::string& text, int max_depth = 4) {
    return parse_json(text, max_depth, [](const std::string& what) { throw std::runtime_error(what); });
  };
  const std::string text = R"({"a":[null,true,false,-1,1,18446744073709551615,0.5,"x"],"b":{"c":{},"d":[]}})";
  EXPECT_EQ(parsed(text).dump(), text);
  EXPECT_EQ(parsed("3").dump(), "3");
  EXPECT_EQ(parsed("[[[[]]]]").dump(), "[[[[]]]]");
  const auto error = [&](const std::string& bad) {
    try {
      parsed(bad);
    } catch (const std::runtime_error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error("[[[[[]]]]]"), "nests deeper than the format allows");
  EXPECT_EQ(error(R"({"a":1,"b":2,"a":3})"), "names 'a' twice");
  EXPECT_THAT(error("[1,"), testing::StartsWith("is not valid JSON (parse error at line 1, column 4: "));
  EXPECT_THAT(error("{"), testing::EndsWith("unexpected end of input)")) << "without half a word more";
}

}  // namespace
}  // namespace mantissa::files_internal_test
