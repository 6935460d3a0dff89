#include "mantissa/data/images/image_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/images/codecs_internal.h"
#include "mantissa/data/images/image_folder.h"
#include "mantissa/data/images/packed_images.h"
#include "mantissa/data/images/test_support_internal.h"
#include "mantissa/data/loader.h"

namespace mantissa::image_dataset_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class ImageDatasets : public InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    for (int i = 0; i < 6; ++i)
      write_image_file(root() / (i % 2 == 0 ? "cat" : "ant") / (std::to_string(i) + ".JPG"),
                       encode_jpeg(gradient_image(20 + 7 * i, 30), 90, "a"));
    write_image_file(root() / "cat" / "notes.txt", "no image");
  }
  std::filesystem::path root() const { return folder_ / "images"; }
  void spoil(const std::string& name) const { write_image_file(root() / name, "this is no image"); }
  std::shared_ptr<const ImageFolder> images() const { return std::make_shared<ImageFolder>(root()); }
  std::shared_ptr<ImageDataset> dataset(const ImageDatasetOptions& options = {}) const {
    return std::make_shared<ImageDataset>(
        images(), std::make_shared<ImageAugmentation>(ImageAugmentationOptions{.size = 16}), options);
  }
};
using ImageDatasetTest = ImageDatasets;
using ImageFolderTest = ImageDatasets;
using PackedImagesTest = ImageDatasets;

std::vector<Batch> epoch_of(DataLoader loader) {
  std::vector<Batch> batches;
  while (auto batch = loader.next()) batches.push_back(*batch);
  return batches;
}

TEST_F(ImageDatasetTest, ReadsAFolder) {
  const Batch batch = *DataLoader(dataset(), {.batch_size = 6}).next();
  EXPECT_EQ(batch.data.sizes(), at::IntArrayRef({6, 3, 16, 16}));
  EXPECT_EQ(batch.data.scalar_type(), at::kFloat);
  EXPECT_TRUE(batch.target.equal(at::tensor({0, 0, 0, 1, 1, 1}, at::kLong)));
}

TEST_F(ImageDatasetTest, WorkersAndAResumeGiveEqualBits) {
  const DataLoaderOptions options{.batch_size = 2, .shuffle = true, .seed = 7};
  DataLoaderOptions with_workers = options;
  with_workers.num_workers = 3;
  const auto wanted = epoch_of(DataLoader(dataset(), options)),
             got = epoch_of(DataLoader(dataset(), with_workers));
  ASSERT_EQ(got.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(got[i].data.equal(wanted[i].data)) << i;
  DataLoader resumed(dataset(), options);
  resumed.skip(2);
  EXPECT_TRUE(resumed.next()->data.equal(wanted[2].data));
  DataLoader later(dataset(), options);
  later.set_epoch(1);
  EXPECT_FALSE(later.next()->data.equal(wanted[0].data));
}

TEST_F(ImageDatasetTest, ASubsetDrawsTheSameNumbers) {
  const auto all = dataset();
  const Subset subset(all, at::tensor({4, 1}, at::kLong));
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(3),
                      same = at::make_generator<at::CPUGeneratorImpl>(3);
  const Batch got = subset.draw_batch(at::tensor({1, 0}, at::kLong), generator);
  EXPECT_TRUE(got.data.equal(all->draw_batch(at::tensor({1, 4}, at::kLong), same).data));
}

TEST_F(ImageDatasetTest, ACorruptImageIsRefusedByName) {
  spoil("cat/2.JPG");
  EXPECT_THAT(error_of([&] { DataLoader(dataset(), {.batch_size = 6}).next(); }),
              AllOf(HasSubstr("cat/2.JPG"), HasSubstr("neither JPEG nor PNG")));
}

TEST_F(ImageDatasetTest, ACorruptImageIsSkippedAndReportedOnce) {
  spoil("cat/2.JPG");
  const auto data = dataset({.corrupt = CorruptImages::kSkip});
  Warnings warnings;
  for (int i = 0; i < 2; ++i) {
    const Batch batch = *DataLoader(data, {.batch_size = 6}).next();
    EXPECT_EQ(batch.data.size(0), 5);
    EXPECT_TRUE(batch.target.equal(at::tensor({0, 0, 0, 1, 1}, at::kLong)));
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cat/2.JPG")));
  const Batch none = data->get_batch(at::tensor({4}, at::kLong));
  EXPECT_TRUE(none.is_empty()) << "it is left out, and counted";
  EXPECT_EQ(none.data.size(1), 3);
}

TEST_F(ImageFolderTest, SaysWhatIsMissing) {
  EXPECT_THAT(images()->classes(), ElementsAre("ant", "cat"));
  EXPECT_THAT(error_of([&] { ImageFolder(folder_ / "nowhere"); }), HasSubstr("nowhere': No such file"));
  EXPECT_THAT(error_of([&] { ImageFolder(root() / "cat"); }), HasSubstr("has no folders in it"));
  std::filesystem::create_directory(root() / "bird");
  EXPECT_THAT(error_of([&] { images(); }), HasSubstr("the class 'bird' has no images"));
}

TEST_F(ImageFolderTest, MayHaveImagesWithoutClasses) {
  const auto open = [](const std::filesystem::path& path) {
    return ImageFolder(path, ImageClasses::kFoldersOrNone);
  };
  const ImageFolder flat = open(root() / "cat");
  ASSERT_EQ(flat.size(), 3);
  EXPECT_TRUE(flat.classes().empty());
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(flat.name(i), (root() / "cat" / (std::to_string(2 * i) + ".JPG")).string());
    EXPECT_EQ(flat.label(i), 0);
  }
  EXPECT_THAT(open(root()).classes(), ElementsAre("ant", "cat")) << "folders are classes as ever";
  std::filesystem::copy_file(root() / "cat" / "2.JPG", root() / "stray.jpg");
  EXPECT_THAT(error_of([&] { ImageFolder(root() / "cat"); }), HasSubstr("has no folders in it"));
  std::filesystem::create_directory(folder_ / "empty");
  EXPECT_THAT(error_of([&] { open(folder_ / "empty"); }), HasSubstr("give one that has images, or a folder"));
}

TEST_F(ImageFolderTest, ImagesBesideTheFoldersAreLeftOut) {
  for (const char* const name : {"stray.jpg", "other.jpg"})
    std::filesystem::copy_file(root() / "cat" / "2.JPG", root() / name);
  for (const ImageClasses classes : {ImageClasses::kFolders, ImageClasses::kFoldersOrNone}) {
    Warnings warnings;
    const ImageFolder folder(root(), classes);
    EXPECT_EQ(folder.size(), 6);
    EXPECT_THAT(folder.classes(), ElementsAre("ant", "cat"));
    EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("has images beside the folders of its classes, such as "
                                                      "'other.jpg' (2 in all), which are left out; move")));
  }
}

TEST_F(ImageFolderTest, LinksAreFollowedButNotInACircle) {
  std::filesystem::create_directory_symlink(root() / "ant", root() / "ant" / "itself");
  std::filesystem::create_symlink("nowhere", root() / "ant" / "leads nowhere");
  EXPECT_EQ(images()->size(), 6);
  std::filesystem::create_directory_symlink(root(), root() / "ant" / "all");
  EXPECT_EQ(images()->size(), 9) << "the link adds the cats, and not the folder that it is in";
}

TEST_F(ImageFolderTest, AFileThatHasGoneIsNamed) {
  const auto data = dataset();
  std::filesystem::remove(root() / "ant" / "1.JPG");
  EXPECT_THAT(error_of([&] { data->get_batch(at::tensor({0}, at::kLong)); }),
              HasSubstr("ant/1.JPG': No such file"));
}

TEST_F(PackedImagesTest, HoldTheSamePixels) {
  const PackSummary summary = pack_images(*images(), folder_ / "packed");
  EXPECT_EQ(summary.images, 6);
  EXPECT_EQ(summary.bytes, std::filesystem::file_size(folder_ / "packed"));
  const auto packed = std::make_shared<PackedImages>(folder_ / "packed");
  EXPECT_EQ(packed->classes(), images()->classes());
  const auto pipeline = std::make_shared<ImageEvaluation>(16, 18);
  const at::Tensor all = at::arange(6, at::kLong);
  const Batch got = ImageDataset(packed, pipeline).get_batch(all);
  const Batch wanted = ImageDataset(images(), pipeline, {.scaled_decoding = false}).get_batch(all);
  EXPECT_TRUE(got.data.equal(wanted.data));
  EXPECT_TRUE(got.target.equal(wanted.target));
}

TEST_F(PackedImagesTest, AreReducedAndCompressed) {
  pack_images(*images(), folder_ / "packed", {.shorter_side = 10, .jpeg_quality = 90});
  const PackedImages packed(folder_ / "packed");
  std::string buffer;
  const auto decoder = open_image(packed.read(0, buffer), "a");
  EXPECT_EQ(decoder->height(), 10);
  EXPECT_EQ(decoder->width(), 11);
  EXPECT_THAT(error_of([&] { pack_images(*images(), folder_ / "x", {.jpeg_quality = 101}); }),
              HasSubstr("jpeg_quality 101"));
}

TEST_F(PackedImagesTest, LeaveOutCorruptImagesOrWriteNothing) {
  spoil("cat/2.JPG");
  EXPECT_THAT(error_of([&] { pack_images(*images(), folder_ / "packed"); }), HasSubstr("cat/2.JPG"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "packed"));
  std::vector<std::string> skipped;
  const auto skip = [&](const std::string& why) { skipped.push_back(why); };
  EXPECT_EQ(pack_images(*images(), folder_ / "packed", {.skip = skip}).images, 5);
  EXPECT_THAT(skipped, ElementsAre(HasSubstr("cat/2.JPG")));
}

TEST_F(PackedImagesTest, EveryTruncationIsRefused) {
  pack_images(*images(), folder_ / "packed", {.shorter_side = 2});
  const std::string whole = content_of(folder_ / "packed");
  for (size_t size = 0; size < whole.size(); ++size) {
    write_image_file(folder_ / "cut", std::string_view(whole).substr(0, size));
    EXPECT_THAT(error_of([&] { PackedImages(folder_ / "cut"); }), HasSubstr("mantissa pack")) << size;
  }
}

}  // namespace
}  // namespace mantissa::image_dataset_test
