// Tests of folders of images, and of packed images, on the command line.
#include <cstdint>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"
#include "mantissa/data/images/codecs_internal.h"
#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::cli::images_test {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Images : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    write_part("photos/train", 6);
    write_part("photos/val", 3);
  }
  /// Writes JPEG images of two classes, which are dark and bright.
  void write_part(const std::string& part, int64_t images) const {
    for (const bool is_bright : {false, true})
      for (int64_t i = 0; i < images; ++i) {
        Image image = gradient_image(40 + 3 * i, 60 - 2 * i);
        for (int64_t byte = 0; byte < image.bytes(); ++byte)
          image.data()[byte] = static_cast<uint8_t>(image.data()[byte] / 2 + (is_bright ? 127 : 0));
        const std::string name = std::to_string(i) + ".jpg";
        write(part + (is_bright ? "/light/" : "/dark/") + name, encode_jpeg(image, 90, name));
      }
  }
  Outcome train(const std::string& arguments) const {
    return fit("--model resnet-tiny --image-size 24 --batch-size 4 --precision 32-true " + arguments);
  }
  static double loss_of(const Outcome& outcome) { return json::parse(outcome.out)["val_loss"].get<double>(); }
};

TEST_F(Images, AFolderTrainsAndIsEvaluated) {
  const Outcome trained = train(
      "--data images:photos --max-epochs 8 --lr 0.05 --output run --color-jitter 0.2 "
      "--rand-augment 3");
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(trained.err, "");
  const Outcome validated = run("validate run --quiet --json -");
  ASSERT_EQ(validated.status, 0) << validated.err;
  EXPECT_EQ(json::parse(validated.out)["samples"], 6);
  EXPECT_LT(loss_of(validated), 0.69) << "less than log 2";
  const Outcome predicted = run("predict run --quiet --data images:photos/train");
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  EXPECT_EQ(std::count(predicted.out.begin(), predicted.out.end(), '\n'), 13) << "a header and 12 images";
}

TEST_F(Images, OtherFoldersHaveTheNumbersOfTheRun) {
  ASSERT_EQ(train("--data images:photos --max-epochs 12 --lr 0.05 --output run").status, 0);
  EXPECT_EQ(json::parse(read(folder_ / "run/data.json"))["classes"],
            (std::vector<std::string>{"dark", "light"}));
  fs::create_directories(folder_ / "few");
  fs::rename(folder_ / "photos/val/light", folder_ / "few/light");
  const Outcome tested = run("test run --quiet --json - --data images:few");
  ASSERT_EQ(tested.status, 0) << tested.err;
  EXPECT_EQ(json::parse(tested.out)["test_accuracy"], 1) << "light is class 1, although it is alone";
  fs::rename(folder_ / "few/light", folder_ / "few/anything");
  expect_error(run("test run --quiet --data images:few"), 1,
               {"the class 'anything', which is none of the 2"});
  const Outcome predicted = run("predict run --quiet --data images:few");
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  EXPECT_THAT(predicted.out,
              testing::MatchesRegex(
                  "index,class,probability,name,file\n(.,1,[0-9.]+,light,few/anything/.\\.jpg\n)+"));
  write("few/anything/1.jpg", "this is no image");
  const Outcome skipped = run("predict run --quiet --data images:few --corrupt-images skip");
  ASSERT_EQ(skipped.status, 0) << skipped.err;
  EXPECT_THAT(skipped.out,
              AllOf(HasSubstr("\n0,1,"), Not(HasSubstr("\n1,")), HasSubstr("\n2,1,"), HasSubstr("/2.jpg\n")))
      << "an image keeps its number where another is left out";
  expect_error(run("predict run --data images:few --output few/anything/0.jpg --overwrite"), 2,
               {"a file of the input 'few'"});
}

TEST_F(Images, PredictionsNeedNoFolderOfAClass) {
  ASSERT_EQ(train("--data images:photos --max-steps 1 --output run").status, 0);
  const Outcome predicted = run("predict run --quiet --data images:photos/val/dark");
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  EXPECT_THAT(predicted.out, testing::MatchesRegex("index,class,probability,name,file\n"
                                                   "0,.,[0-9.]+,[a-z]+,photos/val/dark/0.jpg\n"
                                                   "1,.,[0-9.]+,[a-z]+,photos/val/dark/1.jpg\n"
                                                   "2,.,[0-9.]+,[a-z]+,photos/val/dark/2.jpg\n"));
  for (const std::string part : {"val", "train"}) {
    fs::create_directories(folder_ / "bare");
    fs::copy(folder_ / "photos/val/dark", folder_ / "bare" / part);
    const Outcome of_part = run("predict run --quiet --data images:bare");
    EXPECT_EQ(of_part.status, 0) << of_part.err;
    EXPECT_THAT(of_part.out, AllOf(HasSubstr("\n0,"), HasSubstr(",bare/" + part + "/2.jpg\n")));
    expect_error(run("test run --quiet --data images:bare"), 1, {"has no folders in it"});
    fs::remove_all(folder_ / "bare");
  }
  expect_error(run("test run --quiet --data images:photos/val/dark"), 1, {"has no folders in it"});
  expect_error(train("--data images:photos/val/dark --output other"), 1, {"has no folders in it"});
  fs::rename(folder_ / "photos/val/dark/0.jpg", folder_ / "photos/train/0.jpg");
  const Outcome stray = run("predict run --quiet --data images:photos/train");
  EXPECT_EQ(stray.status, 0) << stray.err;
  EXPECT_EQ(std::count(stray.out.begin(), stray.out.end(), '\n'), 13) << "a header, and 12 images in folders";
  EXPECT_THAT(stray.err,
              HasSubstr("beside the folders of its classes, such as '0.jpg' (1 in all), which are left out"));
}

TEST_F(Images, WithoutASplitAPartIsHeldOut) {
  const Outcome trained = train("--data images:photos/train --val-fraction 0.25 --max-steps 1 --output run");
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Outcome validated = run("validate run --quiet --json -");
  EXPECT_EQ(json::parse(validated.out)["samples"], 3);
}

TEST_F(Images, ARunIsResumedInTheMiddleOfAnEpochBitForBit) {
  const std::string common =
      "--data images:photos --mixup 0.2 --cutmix 1 --color-jitter 0.3 --num-workers 2 --lr-schedule "
      "constant ";
  ASSERT_EQ(train(common + "--max-steps 8 --output whole").status, 0);
  ASSERT_EQ(train(common + "--max-steps 4 --output run").status, 0);
  const Outcome resumed = run("resume run --quiet --max-steps 8");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(read(folder_ / "run/weights.safetensors"), read(folder_ / "whole/weights.safetensors"));
}

TEST_F(Images, MixedImagesHaveMixedTargets) {
  const std::string common = "--data images:photos --max-steps 3 ";
  ASSERT_EQ(train(common + "--output plain").status, 0);
  for (const std::string option : {"--mixup 0.8", "--cutmix 1"}) {
    const Outcome mixed = train(common + option + " --output mixed");
    ASSERT_EQ(mixed.status, 0) << mixed.err;
    EXPECT_NE(read(folder_ / "mixed/weights.safetensors"), read(folder_ / "plain/weights.safetensors"));
    fs::remove_all(folder_ / "mixed");
  }
}

TEST_F(Images, PackedPixelsTrainAsTheirFilesDo) {
  for (const std::string part : {"train", "val"}) {
    const Outcome packed = run("pack photos/" + part + " -o packed-" + part + ".pack --json -");
    ASSERT_EQ(packed.status, 0) << packed.err;
    EXPECT_EQ(json::parse(packed.out)["images"], part == "train" ? 12 : 6);
    EXPECT_EQ(json::parse(packed.out)["classes"], 2);
    EXPECT_THAT(packed.err, HasSubstr("images of 2 classes"));
    fs::create_directories(folder_ / "packed");
    fs::rename(folder_ / ("packed-" + part + ".pack"), folder_ / ("packed/" + part + ".pack"));
  }
  ASSERT_EQ(train("--data images:photos --exact-decoding --max-steps 3 --output run").status, 0);
  const Outcome packed = train("--data images:packed --max-steps 3 --output other");
  ASSERT_EQ(packed.status, 0) << packed.err;
  EXPECT_EQ(read(folder_ / "run/weights.safetensors"), read(folder_ / "other/weights.safetensors"));
  EXPECT_EQ(train("--data images:packed/train.pack --max-steps 1 --output third").status, 0);
  const Outcome jpeg = run("pack photos/train -o small.pack --shorter-side 16 --quality 80 --quiet");
  EXPECT_EQ(jpeg.status, 0) << jpeg.err;
  EXPECT_EQ(jpeg.err, "");
  EXPECT_LT(fs::file_size(folder_ / "small.pack"), fs::file_size(folder_ / "packed/train.pack"));
}

TEST_F(Images, ABadImageIsNamedAndSkippedIfAsked) {
  write("photos/train/dark/text.jpg", "this is no image");
  expect_error(train("--data images:photos --max-epochs 1 --output run"), 1, {"text.jpg"});
  expect_error(run("pack photos/train -o photos.pack"), 1, {"text.jpg"});
  const Outcome skipped = train("--data images:photos --max-epochs 1 --corrupt-images skip --output run");
  EXPECT_EQ(skipped.status, 0) << skipped.err;
  EXPECT_THAT(skipped.err, HasSubstr("text.jpg"));
  const Outcome packed = run("pack photos/train -o photos.pack --skip-corrupt --json -");
  EXPECT_EQ(packed.status, 0) << packed.err;
  expect_error(run("pack photos/train -o photos.pack --skip-corrupt"), 1, {"already exists", "--overwrite"});
  expect_error(run("pack photos/train -o photos/train/dark/0.jpg --overwrite"), 2, {"a file of the input"});
  expect_error(run("pack photos -o other.pack"), 1, {"has the parts train and val"});
  EXPECT_THAT(packed.err, HasSubstr("text.jpg"));
  EXPECT_EQ(json::parse(packed.out)["skipped"], 1);
}

TEST_F(Images, FoldersThatDoNotFitAreRefused) {
  fs::create_directories(folder_ / "photos/val/grey");
  expect_error(train("--data images:photos --max-steps 1 --output run"), 1, {"grey"});
  write_part("photos/val/grey", 1);
  fs::rename(folder_ / "photos/val/grey/dark", folder_ / "grey");
  fs::remove_all(folder_ / "photos/val/grey");
  fs::rename(folder_ / "grey", folder_ / "photos/val/grey");
  expect_error(train("--data images:photos --max-steps 1 --output run"), 1,
               {"the class 'grey' is in one of train and val alone"});
  fs::remove_all(folder_ / "photos/val");
  expect_error(train("--data images:photos --max-steps 1 --output run"), 1, {"a part train, but no val"});
  expect_error(train("--data images:none --max-steps 1 --output run"), 1, {"none"});
  write("broken.pack", "MANTISSA?");
  expect_error(train("--data images:broken.pack --max-steps 1 --output run"), 1, {"broken.pack"});
  expect_error(run("pack photos -o photos.pack --quality 101"), 1, {"101"});
  expect_error(run("pack photos/train -o none/photos.pack"), 1, {"none"});
}

TEST_F(Images, ABatchOfBadImagesIsLeftOut) {
  write("photos/train/dark/text.jpg", "this is no image");
  const std::string alone =
      "--data images:photos --corrupt-images skip --model resnet-tiny --image-size 24 --batch-size 1 "
      "--precision 32-true --lr-schedule constant --mixup 0.2 ";
  ASSERT_EQ(fit(alone + "--max-epochs 1 --output whole").status, 0);
  EXPECT_EQ(json::parse(read(folder_ / "whole/result.json"))["steps"], 13) << "the batch is counted";
  ASSERT_EQ(fit(alone + "--max-steps 7 --output run").status, 0);
  ASSERT_EQ(run("resume run --quiet --max-steps 13").status, 0);
  EXPECT_TRUE(read(folder_ / "run/weights.safetensors") == read(folder_ / "whole/weights.safetensors"));
  fs::create_directories(folder_ / "bad/dark");
  fs::rename(folder_ / "photos/train/dark/text.jpg", folder_ / "bad/dark/text.jpg");
  for (const char* const command : {"test", "predict"}) {
    const Outcome outcome = run(std::string(command) + " run --quiet --data images:bad");
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("none of the 1 batches to evaluate has a sample"));
  }
}

TEST_F(Images, ClassesThatARunCannotNameAreRefused) {
  fs::rename(folder_ / "photos/val/dark", folder_ / "photos/val/caf\xe9");
  const std::string reason = "the class 'caf\xe9', whose name is not UTF-8";
  expect_error(train("--data images:photos/val --max-steps 1 --output run"), 1,
               {"--data images:photos/val has " + reason, "rename its folder"});
  expect_error(run("pack photos/val -o photos.pack"), 1, {"'photos/val' has " + reason});
  fs::rename(folder_ / "photos/val/caf\xe9", folder_ / "photos/val/caf\xc3\xa9");
  ASSERT_EQ(train("--data images:photos/val --max-steps 1 --val-fraction 0.5 --output run").status, 0);
  EXPECT_EQ(json::parse(read(folder_ / "run/data.json"))["classes"], (json{"caf\xc3\xa9", "light"}));
  EXPECT_EQ(run("validate run --quiet").status, 0);
}

TEST_F(Images, CifarTrainsWithAndWithoutATestPart) {
  std::string records;
  for (int i = 0; i < 20; ++i)
    records += static_cast<char>(i % 10) + std::string(3072, static_cast<char>(10 * i));
  write("cifar/data_batch_2.bin", records);
  const std::string common = "--data cifar10:cifar --model resnet-tiny --batch-size 5 --precision 32-true ";
  const Outcome split = fit(common + "--max-steps 2 --val-fraction 0.25 --output run");
  ASSERT_EQ(split.status, 0) << split.err;
  EXPECT_EQ(json::parse(run("validate run --quiet --json -").out)["samples"], 5);
  EXPECT_EQ(json::parse(run("test run --quiet --json - --data cifar10:cifar").out)["samples"], 20);
  write("cifar/test_batch.bin", records.substr(0, 3 * 3073));
  ASSERT_EQ(fit(common + "--max-steps 4 --mixup 0.2 --output whole").status, 0);
  ASSERT_EQ(fit(common + "--max-steps 3 --mixup 0.2 --output half").status, 0);
  ASSERT_EQ(run("resume half --quiet --max-steps 4").status, 0);
  EXPECT_EQ(json::parse(run("validate whole --quiet --json -").out)["samples"], 3);
  expect_error(fit(common + "--shift 32 --max-steps 1 --output other"), 1,
               {"--shift 32: --data cifar10:cifar has images of 32 x 32 pixels", "choose less"});
  write("cifar/test_batch.bin", "no record");
  expect_error(fit(common + "--max-steps 1 --output other"), 1, {"test_batch.bin", "no records"});
  expect_error(fit("--data cifar100:cifar --max-steps 1 --output other"), 1, {"has no train.bin"});
}

TEST_F(Images, SmallImagesMoveInTraining) {
  const std::string common = "--lr-schedule constant --limit-val-batches 1 --mixup 0.2 --num-workers 2 ";
  ASSERT_EQ(fit(common + "--shift 1 --max-steps 4 --output whole").status, 0);
  ASSERT_EQ(fit(common + "--shift 1 --max-steps 2 --output run").status, 0);
  ASSERT_EQ(run("resume run --quiet --max-steps 4").status, 0);
  EXPECT_EQ(read(folder_ / "run/weights.safetensors"), read(folder_ / "whole/weights.safetensors"));
  ASSERT_EQ(fit(common + "--max-steps 4 --output still").status, 0);
  EXPECT_NE(read(folder_ / "still/weights.safetensors"), read(folder_ / "whole/weights.safetensors"));
  expect_error(fit(common + "--shift 8 --max-steps 4 --output other"), 1,
               {"--shift 8: --data digits has images of 8 x 8 pixels"});
}

TEST_F(Images, CifarMovesBy4UnlessAskedOtherwise) {
  std::string records;
  for (int i = 0; i < 20; ++i)
    for (int byte = 0; byte < 3073; ++byte) records += static_cast<char>(byte == 0 ? i % 10 : byte * i % 251);
  write("cifar/data_batch_1.bin", records);
  const auto weights = [&](const std::string& folder, const std::string& option) {
    const Outcome trained =
        fit("--data cifar10:cifar --model resnet-tiny --batch-size 5 --precision 32-true --max-steps 2 "
            "--val-fraction 0.25 --output " +
            folder + option);
    EXPECT_EQ(trained.status, 0) << trained.err;
    return read(folder_ / folder / "weights.safetensors");
  };
  const std::string by_default = weights("default", "");
  EXPECT_TRUE(by_default == weights("four", " --shift 4"));
  EXPECT_FALSE(by_default == weights("none", " --shift 0"));
}

TEST_F(Images, OptionsWithoutEffectAreWarnedOf) {
  const Outcome digits =
      fit("--max-steps 1 --limit-val-batches 1 --image-size 32 --mixup 0.2 --shift 1 --output run");
  EXPECT_THAT(digits.err,
              AllOf(HasSubstr("--image-size has no effect with --data digits"),
                    Not(HasSubstr("--mixup has no effect")), Not(HasSubstr("--shift has no effect"))));
  const Outcome photos = train("--data images:photos --max-steps 1 --shift 1 --output photos-run");
  EXPECT_THAT(photos.err, HasSubstr("--shift has no effect with --data images:photos"));
  write("text.txt", std::string(4000, 'a'));
  const Outcome text =
      fit("--data text:text.txt --context 8 --max-steps 1 --limit-val-batches 1 --mixup 0.2 --output other");
  EXPECT_THAT(text.err, HasSubstr("--mixup has no effect with --data text:text.txt"));
}

TEST_F(Images, AShareToHoldOutIsInVainWhereThereIsAValidationPart) {
  for (const char* const file :
       {"idx/train-images-idx3-ubyte", "idx/t10k-images-idx3-ubyte", "cifar/test_batch.bin", "cifar/test.bin",
        "npy/train_data.npy", "npy/val_data.npy", "tokens/val.bin", "packed/val.pack",
        "one/train-images-idx3-ubyte", "one/data_batch_1.bin", "one/data.npy", "one/val_data.npy"})
    write(file, "");
  const auto warning = [&](const std::string& data) {
    return fit("--print-config --val-fraction 0.3 --data " + data).err;
  };
  for (const std::string data : {"idx:idx", "cifar10:cifar", "cifar100:cifar", "images:photos",
                                 "images:packed", "npy:npy", "tokens:tokens", "chat:tokens --tokenizer t"})
    EXPECT_THAT(warning(data), HasSubstr("--val-fraction has no effect with --data " +
                                         data.substr(0, data.find(' ')) + ", which has a part of its own"));
  for (const std::string data :
       {"digits", "idx:one", "idx:one/train-images-idx3-ubyte", "idx:none", "cifar10:one",
        "images:photos/train", "npy:one", "npy:none", "csv:none", "tokens:one/data.npy", "text:one/data.npy"})
    EXPECT_EQ(warning(data), "") << data;
  EXPECT_EQ(fit("--print-config --data idx:idx").err, "");
}

}  // namespace
}  // namespace mantissa::cli::images_test
