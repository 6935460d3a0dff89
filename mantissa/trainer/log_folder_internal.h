#pragma once

// For the tests of loggers: a folder of a test's own, and what lies in it.

#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <unistd.h>

#include <c10/util/Exception.h>

namespace mantissa {

class LogFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "mantissa-log-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string content(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string error_of(const std::function<void()>& f) {
    try {
      f();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

  std::filesystem::path folder_;
};

}  // namespace mantissa
