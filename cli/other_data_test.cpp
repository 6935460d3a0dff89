// Tests of a trained model with data other than its run's.
#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::other_data_test {
namespace {

namespace fs = std::filesystem;

class OtherData : public Program {
 protected:
  /// Writes an image set `name` without a test part.
  void write_images(const std::string& name, const std::string& labels, uint32_t height,
                    uint32_t width) const {
    const auto count = static_cast<uint32_t>(labels.size());
    std::string pixels;
    for (uint32_t i = 0; i < count * height * width; ++i) pixels += static_cast<char>(i * 37 % 251);
    write(name + "/a-images-idx3-ubyte", idx_header(8, {count, height, width}) + pixels);
    write(name + "/a-labels-idx1-ubyte", idx_header(8, {count}) + labels);
  }
  Outcome train(const std::string& arguments) const {
    return fit("--max-steps 1 --val-fraction 0.5 --output run " + arguments);
  }
};

const std::string kFew("\0\1\2\3\4\0\1\2", 8), kMany("\0\1\2\3\4\5\6\xc7", 8);  // 5 classes, 200 classes

TEST_F(OtherData, TheModelSaysHowManyClassesThereAre) {
  write_images("few", kFew, 4, 4);
  write_images("many", kMany, 4, 4);
  for (const std::string model : {"mlp", "convnet", "resnet-tiny"}) {
    const Outcome trained = train("--data idx:many --model " + model);
    ASSERT_EQ(trained.status, 0) << trained.err;
    for (const auto& [command, samples] : {std::pair("validate", 4), {"test", 8}}) {
      const Outcome outcome = run(std::string(command) + " run --quiet --data idx:few --json -");
      ASSERT_EQ(outcome.status, 0) << model << ": " << outcome.err;
      EXPECT_EQ(nlohmann::json::parse(outcome.out)["samples"], samples);
    }
    const Outcome predicted = run("predict run --quiet --data idx:few");
    ASSERT_EQ(predicted.status, 0) << model << ": " << predicted.err;
    EXPECT_EQ(std::count(predicted.out.begin(), predicted.out.end(), '\n'), 9);
    // The weights of the newest checkpoint also give the number of classes.
    fs::remove(folder_ / "run/weights.safetensors");
    const Outcome from_checkpoint = run("test run --quiet --data idx:few");
    EXPECT_EQ(from_checkpoint.status, 0) << model << ": " << from_checkpoint.err;
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(OtherData, LabelsThatTheModelDoesNotKnowAreRefused) {
  write_images("few", kFew, 4, 4);
  write_images("many", kMany, 4, 4);
  ASSERT_EQ(train("--data idx:few --classes 5 --model mlp").status, 0);
  ASSERT_EQ(run("test run --quiet --data idx:few").status, 0);
  for (const char* command : {"test", "predict"})
    expect_error(run(std::string(command) + " run --quiet --data idx:many"), 1,
                 {"--data idx:many has the label 199", "the run's model has 5 classes, 0 to 4"});
}

TEST_F(OtherData, ImagesOfAnotherSizeAreRefusedUnlessTheModelReadsAny) {
  write_images("few", kFew, 4, 4);
  write_images("wide", kFew, 12, 10);
  for (const std::string model : {"mlp", "convnet"}) {
    ASSERT_EQ(train("--data idx:few --model " + model).status, 0);
    for (const char* command : {"validate", "test", "predict"})
      expect_error(run(std::string(command) + " run --quiet --data idx:wide"), 1,
                   {"the run's model reads images of 4 x 4 pixels; --data idx:wide has 12 x 10"});
    fs::rename(folder_ / "few", folder_ / "gone");
    expect_error(run("test run --quiet --data idx:wide"), 1,
                 {"the run's model reads images of another size; --data idx:wide has 12 x 10"});
    fs::rename(folder_ / "gone", folder_ / "few");
    fs::remove_all(folder_ / "run");
  }
  ASSERT_EQ(train("--data idx:few --model resnet-tiny").status, 0);
  const Outcome outcome = run("test run --quiet --data idx:wide");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

}  // namespace
}  // namespace mantissa::cli::other_data_test
