#pragma once

// For the tests of every room: what a call says when it fails, and libtorch when it warns; files and folders.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

namespace mantissa {

/// The message of the c10::Error that `f` throws, or "no error".
template <typename F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

/// What libtorch would warn of in this scope, once-only warnings included.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;

 private:
  c10::WarningUtils::WarnAlways always_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// A file of mantissa_test_data(), which lies beside the program of the test, in a package too.
inline std::filesystem::path test_data(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "testdata" / name;
}

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Each test gets a folder that is removed with all that lies in it.
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
