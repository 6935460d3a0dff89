// Tests of a trained model with data other than its run's.
#include <array>
#include <map>

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/api/module.h>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::other_data_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

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

/// Returns a file of numpy.save() with values of one byte, or of 8.
std::string npy(const std::string& descr, const std::string& shape, const std::string& values) {
  const std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  return std::string("\x93NUMPY\1\0", 8) + static_cast<char>(header.size()) + '\0' + header + values;
}

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
  for (const char* command : {"test", "validate"})
    expect_error(run(std::string(command) + " run --quiet --data idx:many"), 1,
                 {"--data idx:many has the label ", "the run's model has 5 classes, 0 to 4"});
  EXPECT_EQ(run("predict run --quiet --data idx:many").status, 0) << "no label is read";
}

TEST_F(OtherData, PredictionsOfAnImageSetNeedNoLabels) {
  write_images("few", kFew, 4, 4);
  ASSERT_EQ(train("--data idx:few --model mlp").status, 0);
  const Outcome labelled = run("predict run --quiet --data idx:few");
  fs::remove(folder_ / "few/a-labels-idx1-ubyte");
  for (const char* data : {"idx:few", "idx:few/a-images-idx3-ubyte"}) {
    const Outcome predicted = run(std::string("predict run --quiet --data ") + data);
    ASSERT_EQ(predicted.status, 0) << predicted.err;
    EXPECT_EQ(predicted.out, labelled.out);
  }
  expect_error(run("test run --quiet --data idx:few"), 1, {"has no labels"});
}

TEST_F(OtherData, ATorchScriptModelWithTooFewClassesIsRefusedBeforeItTrains) {
  for (const int64_t classes : {5, 7, 10, 12}) {
    torch::jit::Module net("Net");
    net.register_parameter("weight", at::zeros({classes, 64}).requires_grad_(), /*is_buffer=*/false);
    net.define("def forward(self, x):\n    return torch.linear(torch.flatten(x, 1), self.weight)\n");
    net.save(folder_ / ("net" + std::to_string(classes) + ".pt"));
  }
  write_images("few", kFew, 8, 8);
  write_images("many", kMany, 8, 8);
  for (const char* sanity : {"", " --num-sanity-val-steps 0", " --plan"})
    expect_error(fit(std::string("--model jit:net7.pt --precision 32-true --output run") + sanity), 1,
                 {"--data digits has the label 9, but --model jit:net7.pt has 7 classes, 0 to 6",
                  "give data of those classes, or a model with at least 10"});
  EXPECT_EQ(train("--model jit:net5.pt --precision 32-true --data idx:few").status, 0) << "labels 0 to 4";
  fs::remove_all(folder_ / "run");
  for (const std::string mixing : {"--mixup 0.2", "--cutmix 1", "--mixup 0.2 --cutmix 1"}) {
    const std::string words = "--model jit:net5.pt --precision 32-true --data idx:few " + mixing;
    for (const char* const more : {"", " --num-sanity-val-steps 0", " --plan"})
      expect_error(train(words + more), 1,
                   {"--mixup and --cutmix make targets of the 10 classes of --data idx:few, but --model "
                    "jit:net5.pt has 5; give --classes 5"});
    EXPECT_EQ(train(words + " --classes 5").status, 0);
    fs::remove_all(folder_ / "run");
  }
  expect_error(train("--model jit:net12.pt --precision 32-true --mixup 0.2"), 1,
               {"--data digits, but --model jit:net12.pt has 12; leave them out, or give a model with 10"});
  ASSERT_EQ(train("--model jit:net10.pt --precision 32-true").status, 0);
  EXPECT_EQ(run("test run --quiet --data idx:few").status, 0);
  expect_error(run("test run --quiet --data idx:many"), 1,
               {"--data idx:many has the label 199, but the run's model has 10 classes"});
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

TEST_F(OtherData, ImagesWithOtherChannelsAreRefusedByThese) {
  write("cifar/data_batch_1.bin", std::string(20 * 3073, '\3'));
  write_images("small", kFew, 16, 16);
  write_images("alike", kFew, 32, 32);
  for (const std::string model : {"convnet", "resnet-tiny"}) {
    ASSERT_EQ(train("--data cifar10:cifar --batch-size 5 --model " + model).status, 0);
    const std::string images = model == "convnet" ? "alike" : "small";  // resnet-tiny reads any size
    const std::vector<std::string> parts{"the run's model reads images with 3 channels; --data idx:" +
                                         images + " has 1; give images with the same channels"};
    expect_error(run("predict run --quiet --data idx:" + images), 1, parts);
    fs::rename(folder_ / "cifar", folder_ / "gone");
    expect_error(run("predict run --quiet --data idx:" + images), 1, parts);
    fs::rename(folder_ / "gone", folder_ / "cifar");
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(OtherData, ATableTrainsAndIsEvaluated) {
  std::string table = "width,height,kind\n";
  for (int i = 0; i < 60; ++i)
    table += std::to_string(i % 7) + "," + std::to_string(i % 3 * 2) + (i % 3 == 0 ? ",oak\n" : ",ash\n");
  write("trees.csv", table);
  const Outcome trained =
      fit("--data csv:trees.csv --precision 32-true --max-epochs 20 --batch-size 8 --output run");
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(trained.err, "");
  const Outcome validated = run("validate run --quiet --json -");
  EXPECT_EQ(nlohmann::json::parse(validated.out)["samples"], 12);
  EXPECT_GT(nlohmann::json::parse(validated.out)["val_accuracy"].get<double>(), 0.9);
  EXPECT_EQ(nlohmann::json::parse(run("test run --quiet --json - --data csv:trees.csv").out)["samples"], 60);
  expect_error(fit("--data csv:trees.csv --target kinds --output other"), 1, {"did you mean 'kind'?"});
  write("bad.csv", table + "1,x,oak\n");
  expect_error(fit("--data csv:bad.csv --output other"), 1, {"bad.csv', line 62, column 'height': 'x'"});
}

TEST_F(OtherData, NamesOfOtherDataAreNotThoseOfTheRun) {
  write("rows/data.npy", npy("|u1", "(6, 2)", std::string(12, '\1')));
  std::string targets;
  for (int i = 0; i < 6; ++i) targets += static_cast<char>(i % 2) + std::string(7, '\0');
  write("rows/target.npy", npy("<i8", "(6,)", targets));
  ASSERT_EQ(train("--data npy:rows --model mlp").status, 0);
  write("animals.csv", "a,b,kind\n1,2,ant\n3,4,zebra\n");
  const Outcome predicted = run("predict run --quiet --data csv:animals.csv");
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  EXPECT_THAT(predicted.out, testing::MatchesRegex("index,class,probability\n0,.,[0-9.]+\n1,.,[0-9.]+\n"))
      << "class 1 of the run has nothing to do with a zebra";
}

TEST_F(OtherData, ClassesAndColumnsOfATableAreFoundByTheirNames) {
  std::string table = "width,height,kind\n";
  for (int i = 0; i < 60; ++i)
    table += std::to_string(i % 3) + "," + std::to_string(i % 5) + "," +
             std::array{"ash", "elm", "\"oak, red\""}[static_cast<size_t>(i % 3)] + "\n";
  write("trees.csv", table);
  const std::string words =
      "--data csv:trees.csv --model mlp --precision 32-true --max-epochs 30 --batch-size 8 --lr 0.01 "
      "--output run";
  const Outcome trained = fit(words);
  ASSERT_EQ(trained.status, 0) << trained.err;
  // The first class is missing, the columns have another order, and there is one more.
  write("others.csv", "kind,height,id,width\n\"oak, red\",3,x,2\nelm,1,y,1\n\"oak, red\",2,z,2\n");
  const Outcome tested = run("test run --quiet --json - --data csv:others.csv");
  ASSERT_EQ(tested.status, 0) << tested.err;
  EXPECT_EQ(json::parse(tested.out)["test_accuracy"], 1);
  write("new.csv", "height,width\n3,2\n1,1\n4,0\n");
  const Outcome predicted = run("predict run --quiet --data csv:new.csv");
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  EXPECT_THAT(predicted.out, testing::MatchesRegex("index,class,probability,name\n0,2,[0-9.]+,\"oak, red\"\n"
                                                   "1,1,[0-9.]+,elm\n2,0,[0-9.]+,ash\n"));
  expect_error(run("test run --quiet --data csv:new.csv"), 1, {"'new.csv' has no column 'kind'"});
  write("bad.csv", "width,height,kind\n1,1,elms\n");
  expect_error(run("test run --quiet --data csv:bad.csv"), 1,
               {"'bad.csv' has the class 'elms', which is none of the 3 classes", "did you mean 'elm'?"});
  // A run is continued with its own numbers, although its first class is gone.
  const std::string ash = ",ash\n";
  for (size_t at = table.find(ash); at != std::string::npos; at = table.find(ash, at)) {
    table.replace(at, ash.size(), ",elm\n");
    table[table.rfind('\n', at) + 1] = '1';
  }
  write("trees.csv", table);
  const Outcome resumed = run("resume run --quiet --max-epochs 31 --json -");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(json::parse(resumed.out)["val_accuracy"], 1);
  const std::string names = read(folder_ / "run/data.json");
  for (const char* const bad :
       {"", "[]", "{}", R"({"classes": []})", R"({"classes": ["a", "a"]})", R"({"classes": 3})",
        R"({"classes": ["a"], "columns": ["b"]})", R"({"train_samples": 48})",
        R"({"train_samples": 48, "val_samples": -1})", R"({"train_samples": 48, "val_samples": "12"})"}) {
    write("run/data.json", bad);
    expect_error(run("test run --quiet"), 1, {"data.json' is damaged"});
  }
  fs::remove(folder_ / "run/data.json");
  const Outcome unnamed = run("test run --quiet --data csv:trees.csv");
  EXPECT_THAT(unnamed.err, testing::HasSubstr("has no data.json"))
      << "another table could be numbered otherwise";
}

TEST_F(OtherData, ATableThatIsSeldomMeantIsWarnedOf) {
  const auto warning = [&](const std::string& rows) {
    write("rows.csv", rows);
    const Outcome outcome = fit("--data csv:rows.csv --max-steps 1 --val-fraction 0.5 --output run");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    fs::remove_all(folder_ / "run");
    return outcome.err;
  };
  EXPECT_THAT(warning(",x,kind\n0,1,a\n1,3,b\n2,4,a\n3,5,b\n"),
              HasSubstr("has a column of numbers without a name"));
  EXPECT_THAT(warning("x,price\n0,1\n1,2.5\n2,1\n3,2\n"),
              HasSubstr("each different number in the target 'price', such as 2.5, is a class"));
  EXPECT_THAT(warning("x,kind\n0,a\n1,a\n2,a\n3,a\n"), HasSubstr("has one class only"));
  EXPECT_THAT(warning("5.1,3.5,oak\n4.9,3,oak\n4.7,3.2,elm\n4.6,3.1,elm\n7,3,elm\n"),
              HasSubstr("write names above it if it is a row"));
  EXPECT_THAT(
      warning("x,kind\n0,0\n1,1\n2,4000\n3,1\n"),
      HasSubstr("'rows.csv': the target 'kind' has samples of 3 classes, whose numbers go up to 4000"));
  EXPECT_EQ(warning("x,kind\n0,NaN\n1,Inf\n2,b\n3,b\n"), "") << "these are names of classes";
  EXPECT_EQ(warning("x,kind\n0,1\n1,2\n2,1\n3,2\n"), "");
}

TEST_F(OtherData, FeaturesOfATableAreChosenByName) {
  std::string table = "id,width,height,kind\n";
  for (int i = 0; i < 40; ++i)
    table += c10::str('n', i, ',', i % 7, ',', i % 2, i % 2 == 0 ? ",oak\n" : ",ash\n");
  write("trees.csv", table);
  expect_error(fit("--data csv:trees.csv --output run"), 1,
               {"'n0' is no number", "choose other columns as --features", "give --target 'id'"});
  const std::string words = "--data csv:trees.csv --precision 32-true --max-epochs 2 --output ";
  const Outcome trained = fit(words + "run --features height,width");
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(trained.err, "");
  EXPECT_EQ(json::parse(read(folder_ / "run/data.json"))["columns"],
            (std::vector<std::string>{"height", "width"}));
  EXPECT_EQ(json::parse(read(folder_ / "run/data.json"))["target"], "kind");
  write("new.csv", "width,height\n3,1\n4,0\n");
  const Outcome predicted = run("predict run --quiet --data csv:new.csv");
  EXPECT_EQ(predicted.status, 0) << predicted.err;
  EXPECT_EQ(std::count(predicted.out.begin(), predicted.out.end(), '\n'), 3);
  const Outcome resumed = run("resume run --quiet --max-epochs 3 --json -");
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(run("validate run --quiet").status, 0);
  write("trees.yaml", "data: csv:trees.csv\nfeatures: [height]\ntarget: width\n");
  const Outcome listed = fit("--config trees.yaml --max-steps 1 --output listed");
  EXPECT_EQ(listed.status, 0) << listed.err;
  EXPECT_EQ(json::parse(read(folder_ / "listed/data.json"))["columns"], std::vector<std::string>{"height"});
  expect_error(fit(words + "other --features heigth"), 1, {"no column 'heigth'; did you mean 'height'?"});
  expect_error(fit(words + "other --features height,height"), 1, {"'height' is twice", "--features"});
  expect_error(fit(words + "other --features height,kind"), 1,
               {"the column 'kind' has the classes, and is among --features, too", "another --target"});
  expect_error(fit(words + "other --features height,"), 2, {"--features 'height,' has an empty name"});
  EXPECT_THAT(fit("--features a --print-config").err,
              HasSubstr("--features has no effect with --data digits"));
  write("blanks.csv", "a, b,b, kind\n1,2,3,x\n4,5,6,y\n7,8,9,x\n1,0,2,y\n");
  write("blanks.yaml", "data: csv:blanks.csv\nfeatures: [\" b\"]\ntarget: kind\n");
  const std::string of_blanks = "--data csv:blanks.csv --val-fraction 0.5 ";
  for (const auto& [arguments, columns] : std::map<std::string, std::vector<std::string>>{
           {of_blanks + "--features 'a, b' --target kind", {"a", " b"}},
           {of_blanks + "--features ' a ,b'", {"a", "b"}},
           {"--config blanks.yaml --val-fraction 0.5", {" b"}}}) {
    const Outcome named = fit(arguments + " --max-steps 1 --output named");
    EXPECT_EQ(named.status, 0) << named.err;
    EXPECT_EQ(json::parse(read(folder_ / "named/data.json"))["columns"], columns) << arguments;
    EXPECT_EQ(run("test named --quiet --data csv:blanks.csv").status, 0);
    fs::remove_all(folder_ / "named");
  }
  write("tabs.csv", "a\tkind\n1\tx\n");
  expect_error(fit("--data csv:tabs.csv --output other"), 1, {"has one column", "only a comma separates"});
}

TEST_F(OtherData, RowsOfFeaturesAreMixedAndNothingElse) {
  write("rows.csv", "x,y,kind\n0,1,a\n1,3,b\n2,4,a\n3,5,b\n4,6,a\n5,7,b\n");
  std::string values, targets;
  for (int i = 0; i < 6; ++i) {
    values += std::string(2, static_cast<char>(i));
    targets += std::string(1, static_cast<char>(i % 2)) + std::string(7, '\0');
  }
  write("rows/data.npy", npy("|u1", "(6, 2)", values));
  write("rows/target.npy", npy("<i8", "(6,)", targets));
  const auto weights = [&](const std::string& arguments, const std::string& warnings) {
    fs::remove_all(folder_ / "run");
    const Outcome trained =
        fit("--precision 32-true --max-steps 2 --val-fraction 0.3 --output run --data " + arguments);
    EXPECT_EQ(trained.status, 0) << trained.err;
    EXPECT_THAT(trained.err, testing::MatchesRegex(warnings)) << arguments;
    return read(folder_ / "run/weights.safetensors");
  };
  for (const std::string data : {"csv:rows.csv", "npy:rows"}) {
    const std::string plain = weights(data, "");
    EXPECT_TRUE(weights(data + " --shift 1 --cutmix 1",
                        "(mantissa: warning: --(shift|cutmix) has no effect with --data " + data +
                            "[^\n]*; leave it out\n){2}") == plain);
    EXPECT_FALSE(weights(data + " --mixup 0.5", "") == plain);
  }
  EXPECT_THAT(fit("--data npy:rows --print-config").out, HasSubstr("model: mlp"));
  expect_error(fit("--data npy:rows --model convnet --output other"), 1,
               {"--model convnet halves images", "--data npy:rows has some of 1 x 2 pixels", "--model mlp"});
}

TEST_F(OtherData, TooFewSamplesToHoldSomeOutNameTheData) {
  write("one.csv", "a,b\n1,x\n");
  expect_error(fit("--data csv:one.csv --model mlp --output run"), 1,
               {"--data csv:one.csv: holding out 0.2 of 1"});
}

TEST_F(OtherData, ArraysOfNumpyTrainAndAreEvaluated) {
  std::string pixels, targets;
  for (int i = 0; i < 20; ++i) {
    pixels += std::string(6 * 5, static_cast<char>(i % 2 == 0 ? 10 : 200));
    targets += std::string(1, static_cast<char>(i % 2)) + std::string(7, '\0');
  }
  write("all/data.npy", npy("|u1", "(20, 6, 5)", pixels));
  write("all/target.npy", npy("<i8", "(20,)", targets));
  const std::string words = "--model mlp --precision 32-true --max-epochs 10 --batch-size 4 --output ";
  const Outcome trained = fit("--data npy:all " + words + "run");
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(trained.err, "");
  const Outcome tested = run("test run --quiet --json - --data npy:all");
  EXPECT_EQ(nlohmann::json::parse(tested.out)["samples"], 20);
  EXPECT_EQ(nlohmann::json::parse(tested.out)["test_accuracy"], 1);
  for (const std::string part : {"train", "val"}) {
    write("split/" + part + "_data.npy", npy("|u1", "(20, 6, 5)", pixels));
    write("split/" + part + "_target.npy", npy("<i8", "(20,)", targets));
  }
  ASSERT_EQ(fit("--data npy:split " + words + "other").status, 0);
  EXPECT_EQ(nlohmann::json::parse(run("validate other --quiet --json -").out)["samples"], 20);
  write("split/val_data.npy", npy("|i1", "(20, 6, 5)", pixels));
  expect_error(fit("--data npy:split " + words + "third"), 1,
               {"bytes are divided by 255", "save both alike"});
  fs::remove(folder_ / "all/target.npy");
  const Outcome predicted = run("predict run --quiet --data npy:all");
  EXPECT_EQ(predicted.status, 0) << predicted.err;
  EXPECT_EQ(std::count(predicted.out.begin(), predicted.out.end(), '\n'), 21) << "no target is needed";
  write("all/data.npy", npy("|i1", "(20, 6, 5)", pixels));
  expect_error(run("predict run --quiet --data npy:all"), 1,
               {"Char values", "the data of the run has uint8 values"});
  write("all/data.npy", npy("|u1", "(20, 6, 5)", pixels));
  write("split/val_data.npy", npy("|u1", "(20, 5, 6)", pixels));
  expect_error(fit("--data npy:split " + words + "third"), 1, {"give both the same"});
  write("all/target.npy", npy("<i8", "(19,)", targets.substr(8)));
  expect_error(fit("--data npy:all " + words + "third"), 1, {"has 19 numbers", "has 20 samples"});
  write("all/target.npy", npy("<f8", "(20,)", targets));
  expect_error(fit("--data npy:all " + words + "third"), 1, {"numbers of the classes"});
  fs::remove(folder_ / "all/target.npy");
  expect_error(fit("--data npy:all " + words + "third"), 1, {"target.npy': no such file"});
  expect_error(fit("--data npy:all/data.npy " + words + "third"), 1, {"give the folder that has it"});
  write("last/data.npy", npy("|u1", "(20, 6, 5, 1)", pixels));
  write("last/target.npy", npy("<i8", "(20,)", targets));
  EXPECT_THAT(fit("--data npy:last " + words + "third").err, HasSubstr("if the channels are last"));
  write("bool/data.npy", npy("|b1", "(4, 6)", std::string(24, '\1')));
  expect_error(fit("--data npy:bool " + words + "third"), 1,
               {"values of the dtype bool, which is not supported", "uint8"});
  write("bool/data.npy", npy("|u1", "(0, 6)", ""));
  expect_error(fit("--data npy:bool " + words + "third"), 1, {"'bool/data.npy' is [0, 6] and has no rows"});
  write("bool/data.npy", npy("|u1", "(6,)", "123456"));
  expect_error(fit("--data npy:bool " + words + "third"), 1, {"is Byte [6]; give images"});
  write("gaps/data.npy", npy("|u1", "(3, 2)", "abcdef"));
  write("gaps/target.npy", npy("<i2", "(3,)", std::string("\0\0\1\0\x40\x1f", 6)));
  EXPECT_THAT(fit("--data npy:gaps " + words + "gaps-run").err,
              HasSubstr("--data npy:gaps has samples of 3 classes, whose numbers go up to 8000"));
  write("nan/data.npy", npy("<f4", "(1, 2)", std::string("\0\0\0\0\0\0\xc0\x7f", 8)));
  write("nan/target.npy", npy("<i8", "(1,)", std::string(8, '\0')));
  expect_error(fit("--data npy:nan " + words + "third"), 1,
               {"nan/data.npy' has nan or inf", "1 of 2 values"});
}

}  // namespace
}  // namespace mantissa::cli::other_data_test
