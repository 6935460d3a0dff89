#pragma once

// For the tests of every room: the message of a call that fails, libtorch's warnings, files and folders.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/error_message.h"

namespace mantissa {

/// Returns the message of the Error that `f` throws, or "no error". Any other exception is let through.
template <typename Error = c10::Error, typename F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return message_of(error);
  }
  return "no error";
}

/// Collects the warnings of whoever makes it their handler, such as set_thread_warning_handler().
class KeptWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  mutable std::vector<std::string> texts;  // a scope's collector is const for the test, not for libtorch
};

/// Collects the warnings of this thread in this scope, including those that appear only once.
class Warnings final : public KeptWarnings {
 private:
  c10::WarningUtils::WarnAlways always_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// Returns the path of a file of mantissa_test_data(). It is beside the test program, also in a package.
inline std::filesystem::path test_data(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "testdata" / name;
}

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Gives each test a folder that is removed with its contents.
class InFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "mantissa-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

}  // namespace mantissa
