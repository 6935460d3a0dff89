// Tests of convert with quantized weights: --to, --dequantize, and --dtype on a quantized file.
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::weight_conversion_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct StoredTensor {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};
using Stored = std::map<std::string, StoredTensor>;

template <typename Value>
std::string bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

StoredTensor floats(const std::vector<uint64_t>& shape, const std::vector<float>& values) {
  return {"F32", shape, bytes_of(values)};
}

/// Returns values between -1 and 1 that follow no pattern.
StoredTensor noise(uint64_t rows, uint64_t columns, uint32_t seed = 1) {
  std::vector<float> values;
  uint32_t state = seed;
  for (uint64_t i = 0; i < rows * columns; ++i) {
    state = state * 1664525U + 1013904223U;
    values.push_back(static_cast<float>(static_cast<int32_t>(state)) / 2147483648.0F);
  }
  return floats({rows, columns}, values);
}

std::string safetensors(const Stored& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
}

Stored parse(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  Stored tensors;
  const json header = json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = entry["data_offsets"].get<std::vector<uint64_t>>();
    tensors[name] = {entry["dtype"], entry["shape"].get<std::vector<uint64_t>>(),
                     file.substr(8 + length + offsets[0], offsets[1] - offsets[0])};
  }
  return tensors;
}

std::vector<float> values_of(const StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

class WeightConversion : public Program {
 protected:
  Stored stored(const std::string& name) const { return parse(read(folder_ / name)); }

  /// Expects success and returns the tensors of out.safetensors.
  Stored convert(const std::string& arguments) const {
    const Outcome done = run("convert --overwrite " + arguments + " out.safetensors");
    EXPECT_EQ(done.status, 0) << done.err;
    return done.status == 0 ? stored("out.safetensors") : Stored();
  }

  /// Like a small network of Hugging Face: embeddings, a norm, biases and two Linear layers.
  Stored network() const {
    return {{"model.embed_tokens.weight", noise(10, 16, 2)},
            {"model.layers.0.fc.weight", noise(24, 16, 3)},
            {"model.layers.0.fc.bias", floats({24}, std::vector<float>(24, 0.1F))},
            {"model.layers.0.norm.weight", floats({16}, std::vector<float>(16, 1))},
            {"model.layers.0.proj.weight", noise(5, 7, 4)},
            {"lm_head.weight", noise(10, 16, 5)},
            {"table", noise(3, 4, 6)},
            {"ids", {"I64", {2}, std::string(16, '\1')}}};
  }
};

TEST_F(WeightConversion, Q6_ABlockIsStoredAsBitsandbytesDoes) {
  std::vector<float> values(32, 0);
  values[0] = 2;
  values[1] = -2;
  write("in.safetensors", safetensors({{"w.weight", floats({1, 32}, values)}}));
  for (const auto& [format, first, rest] :
       {std::tuple("nf4", '\xF0', '\x77'), std::tuple("fp4", '\x3B', '\0')}) {
    const Stored out = convert("in.safetensors --blocksize 32 --to " + std::string(format));
    ASSERT_EQ(out.size(), 4U);
    EXPECT_EQ(out.at("w.weight").dtype, "U8");
    EXPECT_EQ(out.at("w.weight").shape, (std::vector<uint64_t>{16, 1}));
    EXPECT_EQ(out.at("w.weight").bytes, first + std::string(15, rest));
    EXPECT_EQ(values_of(out.at("w.weight.absmax")), std::vector<float>{2});
    EXPECT_EQ(out.at("w.weight.quant_map").shape, std::vector<uint64_t>{16});
    const std::string state = out.at("w.weight.quant_state.bitsandbytes__" + std::string(format)).bytes;
    EXPECT_EQ(json::parse(state),
              (json{{"quant_type", format}, {"blocksize", 32}, {"dtype", "float32"}, {"shape", {1, 32}}}));
  }
}

TEST_F(WeightConversion, DoubleQuantizationAndInt8HaveTheirTensors) {
  write("in.safetensors", safetensors({{"w.weight", noise(40, 33)}}));
  const Stored nested = convert("in.safetensors --to nf4-dq");
  ASSERT_EQ(nested.size(), 6U);
  EXPECT_EQ(nested.at("w.weight").shape, (std::vector<uint64_t>{660, 1}));
  EXPECT_EQ(nested.at("w.weight.absmax").dtype, "U8");
  EXPECT_EQ(nested.at("w.weight.absmax").shape, std::vector<uint64_t>{21});
  EXPECT_EQ(nested.at("w.weight.nested_absmax").shape, std::vector<uint64_t>{1});
  EXPECT_EQ(nested.at("w.weight.nested_quant_map").shape, std::vector<uint64_t>{256});
  const json state = json::parse(nested.at("w.weight.quant_state.bitsandbytes__nf4").bytes);
  EXPECT_EQ(state["nested_blocksize"], 256);
  EXPECT_NEAR(state["nested_offset"].get<double>(), 0.98, 0.02) << "the mean of the largest of 64 values";

  const Stored rows = convert("in.safetensors --to int8");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows.at("w.weight").dtype, "I8");
  EXPECT_EQ(rows.at("w.weight").shape, (std::vector<uint64_t>{40, 33}));
  EXPECT_EQ(rows.at("w.SCB").shape, std::vector<uint64_t>{40});
  EXPECT_EQ(rows.at("w.weight_format").bytes, std::string(1, '\0'));
  EXPECT_TRUE(rows.at("w.weight_format").shape.empty());
}

// The largest value of a block is restored exactly, so a second quantization finds the same codes and scales.
TEST_F(WeightConversion, ThereAndBackAndThereAgainIsTheSame) {
  write("in.safetensors", safetensors(network()));
  for (const char* format : {"nf4", "fp4", "int8", "nf4 --blocksize 128", "fp4 --blocksize 4096"}) {
    for (const char* shards : {"", " --max-shard-size 200B"}) {
      fs::remove_all(folder_ / "first");
      fs::remove_all(folder_ / "second");
      ASSERT_EQ(run("convert in.safetensors first --to " + std::string(format) + shards).status, 0);
      ASSERT_EQ(run("convert first back.safetensors --overwrite --dequantize --dtype fp32").status, 0);
      ASSERT_EQ(run("convert back.safetensors second --to " + std::string(format) + shards).status, 0);
      // FP4 has two zeros, and only one is made.
      if (format[0] != 'f') {
        for (const auto& entry : fs::directory_iterator(folder_ / "first"))
          EXPECT_EQ(read(entry.path()), read(folder_ / "second" / entry.path().filename())) << entry.path();
      }
      ASSERT_EQ(run("convert second again.safetensors --overwrite --dequantize --dtype fp32").status, 0);
      EXPECT_TRUE(read(folder_ / "again.safetensors") == read(folder_ / "back.safetensors")) << format;
      const Stored in = network(), back = stored("back.safetensors");
      ASSERT_EQ(back.size(), in.size());
      for (const auto& [name, tensor] : in) {
        EXPECT_EQ(back.at(name).shape, tensor.shape);
        EXPECT_EQ(back.at(name).dtype, tensor.dtype);
        const bool is_quantized = name.find("layers") != std::string::npos && tensor.shape.size() == 2;
        EXPECT_EQ(back.at(name).bytes == tensor.bytes, !is_quantized) << name;
        const std::vector<float> was = values_of(tensor), is = values_of(back.at(name));
        for (size_t i = 0; is_quantized && i < was.size(); ++i)
          EXPECT_NEAR(is[i], was[i], 0.17F) << name << i;
      }
    }
  }
}

TEST_F(WeightConversion, LinearLayersInSharedExpertsAndNormsAreQuantized) {
  write("in.safetensors", safetensors({{"mlp.shared_expert.gate_proj.weight", noise(16, 16, 1)},
                                       {"mlp.shared.up_proj.weight", noise(16, 16, 2)},
                                       {"norm1.linear.weight", noise(16, 16, 3)},
                                       {"shared.weight", noise(16, 16, 4)},
                                       {"layers.0.final_layernorm.weight", noise(16, 16, 5)}}));
  const Outcome done = run("convert in.safetensors out.safetensors --to int8");
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("quantized to int8: 3 weights, "));
  EXPECT_THAT(done.out, HasSubstr("left in float: layers.0.final_layernorm.weight, shared.weight\n"));
}

TEST_F(WeightConversion, TheDefaultLeavesEmbeddingsHeadsAndNorms) {
  write("in.safetensors", safetensors(network()));
  const Outcome done = run("convert in.safetensors out.safetensors --to nf4-dq");
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("quantized to nf4-dq: 2 weights, "));
  EXPECT_THAT(done.out, HasSubstr("left in float: lm_head.weight, model.embed_tokens.weight, table\n"));
  const Stored out = stored("out.safetensors");
  EXPECT_EQ(out.at("model.layers.0.fc.weight").dtype, "U8");
  EXPECT_EQ(out.at("model.layers.0.proj.weight").dtype, "U8");
  for (const auto& [name, tensor] : network())
    if (name.find("layers.0.fc.weight") == std::string::npos && name.find("proj") == std::string::npos) {
      EXPECT_EQ(out.at(name).bytes, tensor.bytes) << name;
    }
}

TEST_F(WeightConversion, PatternsChoose) {
  write("in.safetensors", safetensors(network()));
  const auto dtypes = [&](const std::string& arguments) {
    std::map<std::string, std::string> result;
    for (const auto& [name, tensor] : convert("in.safetensors " + arguments))
      if (network().contains(name)) result[name] = tensor.dtype;
    return result;
  };
  auto got = dtypes("--to nf4 --ignore '*proj*'");
  EXPECT_EQ(got.at("model.layers.0.proj.weight"), "F32");
  EXPECT_EQ(got.at("model.layers.0.fc.weight"), "U8");
  got = dtypes("--to nf4 --only table --only '*embed*'");
  EXPECT_EQ(got.at("table"), "U8");
  EXPECT_EQ(got.at("model.embed_tokens.weight"), "U8");
  EXPECT_EQ(got.at("model.layers.0.fc.weight"), "F32");
  got = dtypes("--to int8 --dtype bf16 --keep-fp32 '*fc*'");
  EXPECT_EQ(got.at("model.layers.0.proj.weight"), "I8");
  EXPECT_EQ(got.at("model.layers.0.fc.weight"), "F32") << "kept, and so not quantized";
  EXPECT_EQ(got.at("model.layers.0.norm.weight"), "BF16");
  EXPECT_EQ(got.at("ids"), "I64");
}

TEST_F(WeightConversion, ADtypeIsCastToBeforeItIsQuantized) {
  write("in.safetensors", safetensors({{"w.weight", noise(8, 16)}}));
  const Stored at_once = convert("in.safetensors --to nf4 --dtype fp16");
  EXPECT_EQ(json::parse(at_once.at("w.weight.quant_state.bitsandbytes__nf4").bytes)["dtype"], "float16");
  ASSERT_EQ(run("convert in.safetensors half.safetensors --dtype fp16").status, 0);
  const Stored in_steps = convert("half.safetensors --to nf4");
  EXPECT_EQ(at_once.at("w.weight").bytes, in_steps.at("w.weight").bytes);
  EXPECT_EQ(at_once.at("w.weight.absmax").bytes, in_steps.at("w.weight.absmax").bytes);
  EXPECT_EQ(convert("half.safetensors --to nf4").size(), 4U);
  ASSERT_EQ(run("convert half.safetensors q.safetensors --to nf4").status, 0);
  EXPECT_EQ(convert("q.safetensors --dequantize").at("w.weight").dtype, "F16") << "as it was quantized from";
  EXPECT_EQ(convert("q.safetensors --dequantize --dtype fp64").at("w.weight").dtype, "F64");
  EXPECT_EQ(convert("q.safetensors --dequantize --dtype fp8-e4m3").at("w.weight").dtype, "F8_E4M3");
  EXPECT_EQ(convert("q.safetensors --dequantize --dtype bf16 --keep-fp32 '*'").at("w.weight").dtype, "F32");
}

TEST_F(WeightConversion, ACastLeavesCodesAndScalesOfQuantizedFiles) {
  write("in.safetensors", safetensors(network()));
  for (const char* format : {"nf4", "nf4-dq", "fp4", "int8"}) {
    ASSERT_EQ(run("convert in.safetensors q.safetensors --overwrite --to " + std::string(format)).status, 0);
    const Stored before = stored("q.safetensors"), after = convert("q.safetensors --dtype fp16");
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [name, tensor] : before) {
      const bool is_plain = network().contains(name) && tensor.dtype == "F32";
      EXPECT_EQ(after.at(name).dtype, is_plain ? "F16" : tensor.dtype) << name;
      EXPECT_EQ(after.at(name).bytes == tensor.bytes, !is_plain) << name;
    }
    const Stored renamed = convert("q.safetensors --strip-prefix model.");
    EXPECT_EQ(renamed.at("layers.0.fc.weight").bytes, before.at("model.layers.0.fc.weight").bytes);
  }
}

TEST_F(WeightConversion, NamesAndShardsChangeAsWithoutIt) {
  write("in.safetensors", safetensors(network()));
  const Outcome done =
      run("convert in.safetensors net --to nf4-dq --strip-prefix model. --rename 'proj=>out' "
          "--max-shard-size 300B");
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_TRUE(fs::exists(folder_ / "net/model.safetensors.index.json"));
  const Stored out = convert("net");
  EXPECT_TRUE(out.contains("layers.0.out.weight.absmax"));
  EXPECT_TRUE(out.contains("layers.0.out.weight.quant_state.bitsandbytes__nf4"));
  const Stored back = convert("net --dequantize --add-prefix m.");
  EXPECT_EQ(back.size(), network().size());
  EXPECT_EQ(back.at("m.layers.0.out.weight").shape, (std::vector<uint64_t>{5, 7}));
}

TEST_F(WeightConversion, OnlySomeWeightsAreRestored) {
  write("in.safetensors", safetensors(network()));
  ASSERT_EQ(run("convert in.safetensors q.safetensors --to nf4").status, 0);
  const Stored out = convert("q.safetensors --dequantize --only '*fc.weight'");
  EXPECT_EQ(out.at("model.layers.0.fc.weight").dtype, "F32");
  EXPECT_FALSE(out.contains("model.layers.0.fc.weight.absmax"));
  EXPECT_EQ(out.at("model.layers.0.proj.weight").bytes,
            stored("q.safetensors").at("model.layers.0.proj.weight").bytes);
  EXPECT_TRUE(out.contains("model.layers.0.proj.weight.absmax"));
}

TEST_F(WeightConversion, JsonAndDryRunListTheTensors) {
  write("in.safetensors", safetensors(network()));
  const auto list = json::parse(run("convert in.safetensors out.safetensors --to int8 --json --dry-run").out);
  EXPECT_EQ(list["left_in_float"], (json{"lm_head.weight", "model.embed_tokens.weight", "table"}));
  std::map<std::string, std::string> sources;
  for (const auto& tensor : list["tensors"]) sources[tensor["name"]] = tensor["source"];
  EXPECT_EQ(sources.at("model.layers.0.fc.SCB"), "model.layers.0.fc.weight");
  EXPECT_FALSE(fs::exists(folder_ / "out.safetensors"));
  EXPECT_THAT(run("convert in.safetensors out.safetensors --to nf4 --dry-run").out,
              HasSubstr("model.layers.0.fc.weight => model.layers.0.fc.weight.absmax F32\n"));
}

TEST_F(WeightConversion, EmptyMatricesWork) {
  write("in.safetensors", safetensors({{"a.weight", floats({0, 4}, {})}, {"b.weight", floats({4, 0}, {})}}));
  for (const char* format : {"nf4", "nf4-dq", "int8"}) {
    ASSERT_EQ(run("convert in.safetensors q.safetensors --overwrite --to " + std::string(format)).status, 0);
    const Stored back = convert("q.safetensors --dequantize");
    EXPECT_EQ(back.at("a.weight").shape, (std::vector<uint64_t>{0, 4}));
    EXPECT_EQ(back.at("b.weight").shape, (std::vector<uint64_t>{4, 0}));
  }
}

TEST_F(WeightConversion, OptionsThatContradictEachOtherAreRefused) {
  write("in.safetensors", safetensors(network()));
  const auto refused = [&](const std::string& arguments, const std::vector<std::string>& parts,
                           int status = 2) {
    expect_error(run("convert in.safetensors out/new.safetensors " + arguments), status, parts);
  };
  refused("--to bf16", {"--to bf16", "give --dtype bf16"});
  refused("--dtype int8", {"--dtype int8", "give --to int8"});
  refused("--to nf5", {"'nf5'", "did you mean 'nf4'?", "nf4, nf4-dq, fp4, fp4-dq, int8"});
  refused("--to 4bit", {"'4bit'", "did you mean 'nf4' (", "or 'nf4-dq' ("});
  refused("--to 8bit", {"'8bit'", "did you mean 'int8' ("});
  refused("--to int8-training", {"did you mean 'int8' ("});
  refused("--to nf4 --blocksize 48", {"--blocksize 48", "blocks of 48 values"});
  refused("--to int8 --blocksize 64", {"--blocksize 64 with --to int8"});
  refused("--blocksize 64", {"give --to"});
  refused("--ignore x", {"--ignore", "give --to"});
  refused("--to nf4 --dequantize", {"give one of them"});
  refused("--to nf4 --dtype fp64", {"--to nf4 with --dtype fp64"});
  refused("--to nf4 --dtype fp8-e5m2", {"fp32, fp16 or bf16"});
  refused("--to nf4 --only '*norm*'", {"'model.layers.0.norm.weight'", "[16]", "only matrices"}, 1);
  refused("--to nf4 --only ids", {"'ids'", "only matrices"}, 1);
  refused("--to nf4 --ignore 'nothing*'", {"'nothing*' matches none"}, 1);
  refused("--to nf4 --ignore '*'", {"none of the 8 tensors", "--only"}, 1);
  refused("--dequantize", {"none of the 8 tensors is a quantized weight"}, 1);
  refused("--to nf4 --rename 'table=>model.layers.0.fc.weight.absmax'",
          {"would be named 'model.layers.0.fc.weight.absmax'"}, 1);
  ASSERT_EQ(run("convert in.safetensors q.safetensors --to nf4").status, 0);
  expect_error(
      run("convert q.safetensors new.safetensors --to fp4"), 1,
      {"2 weights are quantized already, the first of them 'model.layers.0.fc.weight'", "--dequantize"});
}

TEST_F(WeightConversion, WeightsThatAreNotFiniteAreNamedAndNothingIsLeft) {
  Stored tensors = network();
  std::vector<float> values = values_of(tensors.at("model.layers.0.proj.weight"));
  values[3] = NAN;
  tensors["model.layers.0.proj.weight"] = floats({5, 7}, values);
  write("in.safetensors", safetensors(tensors));
  for (const char* format : {"nf4", "nf4-dq", "int8"})
    for (const char* out : {"new/out.safetensors", "new --max-shard-size 100B"})
      expect_error(run("convert in.safetensors " + std::string(out) + " --to " + format), 1,
                   {"'model.layers.0.proj.weight' has 1 values that are inf or nan"});
}

TEST_F(WeightConversion, DamagedStatesAreNamedAndNothingIsLeft) {
  write("in.safetensors", safetensors({{"w.weight", noise(8, 16)}}));
  const auto damaged = [&](const char* format, const auto& change, const std::vector<std::string>& parts) {
    ASSERT_EQ(run("convert in.safetensors q.safetensors --overwrite --to " + std::string(format)).status, 0);
    Stored tensors = stored("q.safetensors");
    change(tensors);
    write("damaged.safetensors", safetensors(tensors));
    expect_error(run("convert damaged.safetensors new/out.safetensors --dequantize"), 1, parts);
  };
  const std::string json_name = "w.weight.quant_state.bitsandbytes__nf4";
  damaged("nf4", [](Stored& t) { t.erase("w.weight.absmax"); }, {"there is no tensor 'w.weight.absmax'"});
  damaged("nf4", [&](Stored& t) { t.erase(json_name); },
          {"'w.weight' has components", "no 'w.weight.quant_state"});
  damaged("nf4", [](Stored& t) { t.erase("w.weight"); }, {"but no 'w.weight'"});
  damaged("nf4",
          [&](Stored& t) {
            t[json_name].bytes.pop_back();
            t[json_name].bytes.pop_back();
            t[json_name].shape[0] -= 2;
          },
          {json_name});
  damaged("nf4",
          [&](Stored& t) {
            const size_t at = t[json_name].bytes.find("[8, 16]");
            t[json_name].bytes.replace(at, 7, "[9, 16]");
          },
          {"'w.weight' has 64 bytes of codes", "[9, 16]"});
  damaged("nf4",
          [](Stored& t) { t["w.weight.absmax"].bytes.replace(0, 4, bytes_of(std::vector<float>{NAN})); },
          {"'w.weight.absmax' has inf or nan"});
  damaged("nf4-dq", [](Stored& t) { t.erase("w.weight.nested_absmax"); }, {"w.weight.nested_absmax"});
  // The scales are beyond float16.
  write("large.safetensors",
        safetensors({{"w.weight", {"F32", {1, 4}, bytes_of(std::vector<float>{1e5, 1, 2, 3})}}}));
  ASSERT_EQ(run("convert large.safetensors large4.safetensors --to nf4").status, 0);
  expect_error(run("convert large4.safetensors new/out.safetensors --dequantize --dtype fp16"), 1,
               {"'w.weight' has values that Half cannot hold", "bf16"});
  damaged("int8", [](Stored& t) { t.erase("w.SCB"); },
          {"'w.weight' is an int8 weight", "'w.SCB', are missing"});
  damaged("int8", [](Stored& t) { t["w.weight_format"].bytes = "\2"; }, {"'w.weight_format' is not 0"});
  damaged("int8",
          [](Stored& t) {
            t["w.SCB"].bytes.resize(16);
            t["w.SCB"].shape = {4};
          },
          {"'w.SCB'", "4 elements"});
}

TEST_F(WeightConversion, ThePrecisionInTheMetadataIsThatOfTheNewWeights) {
  write("plain.safetensors", safetensors(network()));
  ASSERT_EQ(run("convert plain.safetensors in.safetensors --metadata precision=32-true").status, 0);
  const auto header_after = [&](const std::string& arguments, const std::string& in = "in.safetensors") {
    convert(in + " " + arguments);
    return read(folder_ / "out.safetensors");
  };
  for (const std::string format : {"nf4", "nf4-dq", "fp4", "fp4-dq", "int8"})
    EXPECT_THAT(header_after("--to " + format), HasSubstr("\"precision\":\"" + format + "\"")) << format;
  EXPECT_THAT(header_after("--dtype bf16"), HasSubstr("\"precision\":\"bf16-true\""));
  EXPECT_THAT(header_after("--dtype fp16"), HasSubstr("\"precision\":\"16-true\""));
  EXPECT_THAT(header_after("--dtype fp16 --only ids --only table"), HasSubstr("\"precision\":\"32-true\""));
  EXPECT_THAT(header_after("--dtype fp8-e4m3"), Not(HasSubstr("precision")));
  EXPECT_THAT(header_after("--to nf4 --metadata precision=mine"), HasSubstr("\"precision\":\"mine\""));
  EXPECT_THAT(header_after("--to nf4", "plain.safetensors"), Not(HasSubstr("precision")));
  ASSERT_EQ(run("convert in.safetensors quantized.safetensors --to int8").status, 0);
  EXPECT_THAT(header_after("--dtype bf16", "quantized.safetensors"), HasSubstr("\"precision\":\"int8\""));
  EXPECT_THAT(header_after("--dequantize --dtype fp32", "quantized.safetensors"),
              HasSubstr("\"precision\":\"32-true\""));
  ASSERT_EQ(run("convert plain.safetensors mixed.safetensors --metadata precision=16-mixed").status, 0);
  EXPECT_THAT(header_after("--add-prefix a.", "mixed.safetensors"), HasSubstr("\"precision\":\"16-mixed\""))
      << "no dtype has changed";
}

TEST_F(WeightConversion, AFolderGetsNoSecondModel) {
  write("in.safetensors", safetensors(network()));
  ASSERT_EQ(run("convert in.safetensors shards --to nf4 --max-shard-size 1kB").status, 0);
  ASSERT_EQ(run("convert in.safetensors one").status, 0);
  expect_error(run("convert shards shards --dequantize"), 2, {"'shards' is the input itself"});
  expect_error(run("convert shards shards/. --dequantize --overwrite"), 2, {"is the input itself"});
  expect_error(run("convert one one --max-shard-size 1kB"), 2, {"'one' is the input itself"});
  expect_error(run("convert shards shards/model.safetensors --dequantize"), 1,
               {"'shards/model.safetensors.index.json' already exists", "second model", "another place"});
  expect_error(run("convert in.safetensors shards --overwrite"), 1, {"second model"});
  expect_error(run("convert in.safetensors one --max-shard-size 1kB"), 1,
               {"'one/model.safetensors' already exists", "second model"});
  EXPECT_EQ(run("convert shards one --dequantize --overwrite").status, 0);
}

// Three matrices of 64 MiB of zeros. The file is sparse, so it takes no disk space.
TEST_F(WeightConversion, PeakMemoryIsAtMostTwoTensors) {
  constexpr uint64_t kTensor = 64ULL << 20;
  json header = json::object();
  for (uint64_t i = 0; i < 3; ++i)
    header[std::string(1, static_cast<char>('a' + i)) + ".weight"] = {
        {"dtype", "F32"}, {"shape", {4096, 4096}}, {"data_offsets", {i * kTensor, (i + 1) * kTensor}}};
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  write("in.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + text);
  fs::resize_file(folder_ / "in.safetensors", 8 + length + 3 * kTensor);
  const auto peak_kib = [&](const std::string& arguments) {
    const Outcome outcome =
        run(arguments +
            " >/dev/null & pid=$!; peak=0; while [ -e /proc/$pid/status ]; do "
            "now=$(sed -n 's/VmHWM:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/$pid/status); "
            "[ \"${now:-0}\" -gt $peak ] && peak=$now; sleep 0.02; done; echo $peak; wait $pid");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return std::atoll(outcome.out.c_str());
  };
  const int64_t least = peak_kib("inspect --no-values in.safetensors");
  for (const char* format : {"nf4", "nf4-dq", "int8"}) {
    const std::string to = std::string("q-") + format + ".safetensors";
    const int64_t peak = peak_kib("convert in.safetensors " + to + " --to " + format);
    EXPECT_GT(peak, least + (64 << 10)) << "the whole weight is in memory";
    EXPECT_LT(peak - least, (2 * 64 + 48) << 10) << format;
    EXPECT_LT(peak_kib("convert " + to + " back.safetensors --overwrite --dequantize --dtype fp32") - least,
              (2 * 64 + 48) << 10)
        << format;
  }
  // From shards of one tensor to shards of several.
  ASSERT_EQ(run("convert in.safetensors wide --max-shard-size 64MiB").status, 0);
  EXPECT_LT(peak_kib("convert wide narrow --to nf4-dq --max-shard-size 20MB") - least, (2 * 64 + 48) << 10);
  EXPECT_LT(peak_kib("convert narrow back --dequantize --dtype fp32 --max-shard-size 64MiB") - least,
            (2 * 64 + 48) << 10);
}

TEST_F(WeightConversion, AnInterruptLeavesNothing) {
  write("in.safetensors", safetensors({{"w.weight", noise(2000, 2000)}, {"x.weight", noise(2000, 2000)}}));
  const Outcome outcome =
      run("convert in.safetensors new/out.safetensors --to nf4-dq & pid=$!; for i in $(seq 300); do "
          "ls new/.out* >/dev/null 2>&1 && break; sleep 0.005; done; kill -TERM $pid; wait $pid");
  if (outcome.status == 0) GTEST_SKIP() << "it was done before the signal came";
  EXPECT_EQ(outcome.status, 143);
  EXPECT_THAT(outcome.left, testing::IsEmpty());
}

}  // namespace
}  // namespace mantissa::cli::weight_conversion_test
