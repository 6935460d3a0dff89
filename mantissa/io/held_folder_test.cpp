#include "mantissa/io/held_folder.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::held_folder_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class HeldFolderTest : public InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    run_ = folder_ / "runs" / "1";
    fs::create_directories(run_ / "checkpoints");
  }

  fs::path run_;
};

TEST_F(HeldFolderTest, IsMadeAgainWhereItWas) {
  HeldFolder held(run_ / "checkpoints");
  EXPECT_FALSE(held.is_lost());
  for (const fs::path& gone : {run_ / "checkpoints", run_, folder_ / "runs"}) {
    fs::remove_all(gone);
    EXPECT_TRUE(held.is_lost());
    EXPECT_EQ(held.replace(), run_ / "checkpoints");
    EXPECT_TRUE(fs::is_directory(run_ / "checkpoints"));
    EXPECT_FALSE(held.is_lost());
  }
  fs::rename(run_, folder_ / "archive");
  EXPECT_TRUE(held.is_lost());
  EXPECT_EQ(held.replace(), run_ / "checkpoints");
  EXPECT_TRUE(fs::is_empty(run_ / "checkpoints"));
}

TEST_F(HeldFolderTest, AnothersFolderOfTheSameNameIsLeftAlone) {
  HeldFolder held(run_ / "checkpoints" / "");
  // The inode number of a removed file may be reused, but not while the file is open.
  fs::remove_all(run_);
  fs::create_directories(run_ / "checkpoints");
  EXPECT_TRUE(held.is_lost());
  EXPECT_EQ(held.replace(), folder_ / "runs" / "1-rescued-1" / "checkpoints");
  EXPECT_FALSE(held.is_lost());
  EXPECT_TRUE(fs::is_empty(run_ / "checkpoints"));
}

TEST_F(HeldFolderTest, OneThatCameBackMeanwhileIsLeftAlone) {
  HeldFolder held(run_ / "checkpoints");
  EXPECT_EQ(held.replace(), run_ / "checkpoints-rescued-1");
  EXPECT_FALSE(held.is_lost());
  EXPECT_TRUE(fs::is_directory(run_ / "checkpoints"));
}

TEST_F(HeldFolderTest, TheFirstReplacedFolderOfThePathGetsAnotherName) {
  HeldFolder held(run_ / "checkpoints");
  fs::rename(run_, folder_ / "archive");
  fs::create_directory(run_);
  std::ofstream(folder_ / "runs" / "1-rescued-1") << "taken";
  EXPECT_EQ(held.replace(), folder_ / "runs" / "1-rescued-2" / "checkpoints");
  fs::rename(folder_ / "runs" / "1-rescued-2" / "checkpoints", folder_ / "moved");
  // A link that leads to another folder.
  fs::create_directory_symlink(folder_ / "moved", folder_ / "runs" / "1-rescued-2" / "checkpoints");
  EXPECT_FALSE(held.is_lost()) << "it is the folder itself";
  fs::remove(folder_ / "runs" / "1-rescued-2" / "checkpoints");
  fs::create_directory_symlink(folder_ / "absent", folder_ / "runs" / "1-rescued-2" / "checkpoints");
  EXPECT_TRUE(held.is_lost());
  EXPECT_EQ(held.replace(), folder_ / "runs" / "1-rescued-2" / "checkpoints-rescued-1");
}

TEST_F(HeldFolderTest, WhereNothingCanBeMadeItIsMadeForTemporaryFiles) {
  const fs::path run = folder_ / ("a" + std::string(249, 'x'));  // leaves no room for a longer name
  fs::create_directories(run / "checkpoints");
  HeldFolder held(run / "checkpoints");
  fs::rename(run, folder_ / "moved");
  fs::create_directory(run);
  const fs::path place = held.replace();
  EXPECT_FALSE(held.is_lost());
  EXPECT_EQ(place.parent_path().parent_path(), fs::temp_directory_path());
  EXPECT_THAT(place.string(), testing::MatchesRegex(".*/ax+-rescued-[0-9]+/checkpoints"));
  fs::remove_all(place.parent_path());
}

TEST_F(HeldFolderTest, AFileInThePlaceOfAFolderIsLeftAlone) {
  HeldFolder held(run_ / "checkpoints");
  fs::remove_all(run_);
  std::ofstream(run_) << "precious";
  EXPECT_TRUE(held.is_lost());
  EXPECT_EQ(held.replace(), folder_ / "runs" / "1-rescued-1" / "checkpoints");
  EXPECT_EQ(content_of(run_), "precious");
}

TEST_F(HeldFolderTest, ReportsWhyItCannotBeOpened) {
  EXPECT_THAT(error_of([&] { HeldFolder held(folder_ / "none"); }), HasSubstr("create its folder first"));
}

}  // namespace
}  // namespace mantissa::held_folder_test
