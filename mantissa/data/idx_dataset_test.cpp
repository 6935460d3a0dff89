#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/torch.h>

#include "mantissa/data/idx.h"

namespace mantissa::idx_dataset_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class IdxFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mantissa-set-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, std::vector<uint8_t> shape, const std::string& data) const {
    std::string out{0, 0, 8, char(shape.size())};
    for (const uint8_t n : shape) out += std::string{0, 0, 0, char(n)};
    std::ofstream(folder_ / name, std::ios::binary) << out << data;
  }
  /// Writes images of 1 x 2 pixels, all of value `pixel`, and their labels.
  void write_pair(const std::string& prefix, const std::string& labels, int pixel) const {
    write(prefix + "images-idx3-ubyte", {uint8_t(labels.size()), 1, 2},
          std::string(2 * labels.size(), char(pixel)));
    write(prefix + "labels-idx1-ubyte", {uint8_t(labels.size())}, labels);
  }
  std::string load_error() const { return load_error(folder_); }
  static std::string load_error(const fs::path& path) {
    try {
      load_idx_dataset(path);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }
  fs::path folder_;
};

TEST_F(IdxFolder, NothingToRead) {
  EXPECT_THAT(load_error(),
              AllOf(HasSubstr(folder_.string()), HasSubstr("no file PREFIXimages-idx3-ubyte[.gz]")));
  EXPECT_THAT(load_error(folder_ / "none"), HasSubstr("No such file or directory; give a folder"));
  std::ofstream(folder_ / "a.txt") << "x";
  EXPECT_THAT(load_error(folder_ / "a.txt"), HasSubstr("is not named PREFIXimages-idx3-ubyte[.gz]"));
  write("train-images-idx3-ubyte", {1, 1, 2}, "ab");
  EXPECT_THAT(load_error(), HasSubstr("has no labels"));
}

TEST_F(IdxFolder, InconsistentPairs) {
  write("images-idx3-ubyte", {2, 1, 1}, "ab");
  write("labels-idx1-ubyte", {3}, "abc");
  EXPECT_THAT(load_error(), AllOf(HasSubstr((folder_ / "images-idx3-ubyte").string()),
                                  HasSubstr("labels-idx1-ubyte: 3 labels, but ")));
  write("labels-idx1-ubyte", {2, 1}, "ab");
  EXPECT_THAT(load_error(), HasSubstr("labels must be uint8 of 1 dimension"));
  write("images-idx3-ubyte", {2}, "ab");
  EXPECT_THAT(load_error(), HasSubstr("images must be uint8 of 3 dimensions"));
  write("images-idx3-ubyte", {0, 1, 1}, "");
  write("labels-idx1-ubyte", {0}, "");
  EXPECT_THAT(load_error(), HasSubstr("no images (shape [0, 1, 1])"));
  write("images-idx3-ubyte", {2, 0, 1}, "");
  write("labels-idx1-ubyte", {2}, "ab");
  EXPECT_THAT(load_error(), HasSubstr("no images"));
  write("labels-idx1-ubyte", {3}, "ab");
  EXPECT_THAT(load_error(), HasSubstr("truncated"));
}

TEST_F(IdxFolder, LabelOutOfRange) {
  const at::Tensor images = at::zeros({3, 1, 1}, at::kByte), labels = at::tensor({0, 9, 10}, at::kByte);
  EXPECT_NO_THROW(make_idx_dataset(images, labels, "set"));
  try {
    make_idx_dataset(images, labels, "set", 10);
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                HasSubstr("set: label 10 of image 2 is out of range for 10 classes"));
  }
  write_pair("train-", std::string("\x00\x0b", 2), 255);
  write_pair("t10k-", std::string("\x0c", 1), 255);
  EXPECT_THAT(load_error(),
              AllOf(HasSubstr("t10k-labels"), HasSubstr("label 12 of image 0 is out of range for 12")));
}

TEST_F(IdxFolder, TrainAndTestPartShareOneScale) {
  write_pair("train-", std::string("\x00\x0b", 2), 200);
  write_pair("t10k-", std::string("\x01", 1), 8);  // dark, but not in the digits' range
  const IdxDataset set = load_idx_dataset(folder_);
  EXPECT_EQ(set.train->data().sizes(), (std::vector<int64_t>{2, 1, 1, 2}));
  EXPECT_EQ(set.train->data().scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(set.train->data().max().item<float>(), 200.f / 255.f);
  ASSERT_NE(set.val, nullptr);
  EXPECT_FLOAT_EQ(set.val->data().max().item<float>(), 8.f / 255.f);
  EXPECT_TRUE(at::equal(set.train->target(), at::tensor({0, 11}, at::kLong)));
  EXPECT_EQ(set.classes, 12);
}

TEST_F(IdxFolder, TrainAndTestPartHaveImagesOfOneSize) {
  write_pair("train-", std::string("\x00\x01", 2), 200);
  write("t10k-labels-idx1-ubyte", {1}, "\x01");
  write("t10k-images-idx3-ubyte", {1, 2, 1}, "ab");  // the same number of bytes, but upright
  EXPECT_THAT(load_error(),
              AllOf(HasSubstr((folder_ / "t10k-images-idx3-ubyte").string() + ": images of 2 x 1 pixels"),
                    HasSubstr((folder_ / "train-images-idx3-ubyte").string() + " have 1 x 2")));
  write("t10k-images-idx3-ubyte", {1, 1, 3}, "abc");
  EXPECT_THAT(load_error(), HasSubstr("images of 1 x 3 pixels"));
  write("t10k-images-idx3-ubyte", {1, 1, 2}, "ab");
  EXPECT_EQ(load_error(), "no error");
}

TEST_F(IdxFolder, OnePairIsAllThereIs) {
  write_pair("digits-", std::string("\x00\x03", 2), 16);
  const IdxDataset set = load_idx_dataset(folder_);
  EXPECT_EQ(set.val, nullptr);
  EXPECT_EQ(set.classes, 10);
  EXPECT_EQ(set.train->data().max().item<float>(), 1.f);
}

TEST_F(IdxFolder, LabelsAreNotLookedForWhereTheyAreIgnored) {
  write("new-images-idx3-ubyte", {2, 1, 2}, "abcd");
  EXPECT_THAT(load_error(), HasSubstr("has no labels"));
  for (const fs::path& path : {folder_, folder_ / "new-images-idx3-ubyte"}) {
    const IdxDataset set = load_idx_dataset(path, 0, IdxLabels::kIgnore);
    EXPECT_EQ(set.train->size(), 2);
    EXPECT_TRUE(set.train->get_batch(at::arange(2)).target.equal(at::zeros({2}, at::kLong)));
  }
}

TEST_F(IdxFolder, SeveralSetsNeedAChoice) {
  write_pair("a-", std::string("\x00", 1), 16);
  write_pair("b-", std::string("\x00\x01", 2), 16);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("a-images-idx3-ubyte, b-images-idx3-ubyte"),
                                  HasSubstr("give the path of one")));
  EXPECT_EQ(load_idx_dataset(folder_ / "b-images-idx3-ubyte").train->size(), 2);
}

}  // namespace
}  // namespace mantissa::idx_dataset_test
