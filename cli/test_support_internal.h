// Runs the program as a user does and checks exit status, one-line errors, and files left behind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <vector>

namespace mantissa::cli {

struct Outcome {
  int status = -1;
  std::string out, err;
  std::vector<std::string> left = {};  ///< files and folders that were not there before
};

inline std::string read(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

/// Returns the beginning of an IDX file.
inline std::string idx_header(unsigned char type, const std::vector<uint32_t>& sizes) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(sizes.size())};
  for (const uint32_t size : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xff);
  return bytes;
}

class Program : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "mantissa-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::set<std::string> listing() const {
    std::set<std::string> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
      paths.insert(entry.path().lexically_relative(folder_).string());
    return paths;
  }

  Outcome run(const std::string& arguments) const {
    std::set<std::string> before = listing();
    before.insert({"out.txt", "err.txt"});
    // A shell without a terminal makes its background jobs ignore Ctrl-C, and the program would respect that.
    const std::string command = "cd '" + folder_.string() +
                                "' && { env --default-signal=INT,HUP " MANTISSA_PROGRAM " " + arguments +
                                "; } >out.txt 2>err.txt";
    const int status = std::system(command.c_str());
    Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                    read(folder_ / "out.txt"), read(folder_ / "err.txt")};
    const std::set<std::string> after = listing();
    std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                        std::back_inserter(outcome.left));
    return outcome;
  }
  /// Runs `mantissa fit`, on the CPU and quietly.
  Outcome fit(const std::string& arguments) const { return run("fit --device cpu --quiet " + arguments); }

  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }

  /// Expects this status, a single line on stderr that contains all parts, and no new files.
  void expect_error(const Outcome& outcome, int status, const std::vector<std::string>& parts) const {
    using testing::HasSubstr;
    using testing::MatchesRegex;
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_THAT(outcome.err, MatchesRegex("mantissa: error: [^\n]*\n"));
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_THAT(outcome.left, testing::IsEmpty()) << "a failed run left files";
  }

  std::filesystem::path folder_;
};

}  // namespace mantissa::cli
