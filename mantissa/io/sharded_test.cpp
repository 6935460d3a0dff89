#include "mantissa/io/sharded.h"

#include <csignal>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/atomic_file.h"

namespace mantissa::sharded_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Sharded : public InFolder {
 protected:
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      names.push_back(entry.path().lexically_relative(folder_).string());
    std::sort(names.begin(), names.end());
    return names;
  }

  /// Returns 40 bytes of "a", 8 of each of "b" to "e", an empty tensor and a scalar.
  static std::map<std::string, at::Tensor> tensors() {
    return {{"a", at::arange(10, at::kFloat).view({2, 5})},
            {"b", at::arange(4, at::kHalf)},
            {"c", at::arange(8, at::kByte)},
            {"d", at::ones({}, at::kDouble)},
            {"e", at::arange(2, at::kInt)},
            {"empty", at::empty({0, 3})}};
  }
  static SafetensorsHeader header_of(const std::map<std::string, at::Tensor>& tensors) {
    SafetensorsHeader header;
    for (const auto& [name, tensor] : tensors)
      header.tensors[name] = {tensor.scalar_type(), tensor.sizes().vec(), 0, 0};
    return header;
  }
  static GiveElements give(const std::map<std::string, at::Tensor>& tensors, int64_t piece = 3) {
    return [tensors, piece](const std::string& name, const TakeElements& take) {
      const at::Tensor row = tensors.at(name).reshape({-1});
      for (int64_t i = 0; i < row.numel(); i += piece)
        take(row.narrow(0, i, std::min(piece, row.numel() - i)));
    };
  }
  void write(const fs::path& out, uint64_t max_bytes) const {
    SafetensorsHeader header = header_of(tensors());
    header.metadata = {{"format", "pt"}};
    write_safetensors_files(lay_out_safetensors(out, header, max_bytes), give(tensors()));
  }
};

TEST_F(Sharded, WritesShardsAndReadsThemBack) {
  write(folder_ / "new" / "model", 20);
  EXPECT_THAT(listing(), ElementsAre("new", "new/model", "new/model/model-00001-of-00003.safetensors",
                                     "new/model/model-00002-of-00003.safetensors",
                                     "new/model/model-00003-of-00003.safetensors",
                                     "new/model/model.safetensors.index.json"));
  for (const fs::path& path : {folder_ / "new/model", folder_ / "new/model/model.safetensors.index.json"}) {
    const SafetensorsModel model(path);
    EXPECT_TRUE(model.is_sharded());
    EXPECT_EQ(model.files().size(), 4U);
    EXPECT_EQ(model.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
    EXPECT_EQ(model.entries().size(), tensors().size());
    for (const auto& [name, tensor] : tensors()) {
      EXPECT_TRUE(at::equal(model.read(name), tensor)) << name;
      EXPECT_EQ(model.read(name).sizes(), tensor.sizes()) << name;
      EXPECT_EQ(model.read(name).scalar_type(), tensor.scalar_type()) << name;
    }
    std::vector<std::string> pieces;
    const at::Tensor buffer = at::empty({17}, at::kByte);
    model.read_pieces("a", buffer, 100, [&](const at::Tensor& piece) {
      pieces.push_back(std::to_string(piece.numel()) + " from " +
                       std::to_string(int(piece[0].item<float>())));
      EXPECT_EQ(piece.data_ptr(), buffer.data_ptr());
    });
    EXPECT_THAT(pieces, ElementsAre("4 from 0", "4 from 4", "2 from 8"));
    model.read_pieces("empty", buffer, 1, [&](const at::Tensor&) { FAIL(); });
    EXPECT_THAT(error_of([&] { model.read_pieces("a", buffer.narrow(0, 0, 3), 9, {}); }),
                HasSubstr("hold no element"));
    EXPECT_THAT(error_of([&] { model.read("A"); }), HasSubstr("has no tensor 'A'; did you mean 'a'?"));
  }
  EXPECT_THAT(content_of(folder_ / "new/model/model.safetensors.index.json"),
              HasSubstr("\"total_size\": 72"));
  const SafetensorsFile large(folder_ / "new/model/model-00001-of-00003.safetensors");
  EXPECT_EQ(large.entries().size(), 1U) << "a tensor over the limit has a file of its own";
}

TEST_F(Sharded, OneFileIsTheOneThatSaveSafetensorsWrites) {
  write(folder_ / "one.safetensors", 0);
  save_safetensors(folder_ / "two.safetensors", tensors(), {{"format", "pt"}});
  EXPECT_EQ(content_of(folder_ / "one.safetensors"), content_of(folder_ / "two.safetensors"));
  write(folder_ / "large", 1'000'000);
  EXPECT_EQ(content_of(folder_ / "large/model.safetensors"), content_of(folder_ / "two.safetensors"));
  // Another writer's temporary file is no second model.
  write_file_atomically(folder_ / "large/.model.tmp-1-1.safetensors", "unfinished");
  EXPECT_FALSE(SafetensorsModel(folder_ / "large").is_sharded());
}

TEST_F(Sharded, NamesOfShards) {
  const SafetensorsHeader header = header_of(tensors());
  const auto layout = lay_out_safetensors(folder_ / "net.safetensors", header, 1);
  EXPECT_EQ(layout.files.size(), 5U) << "the empty tensor lies with another";
  EXPECT_EQ(layout.files[1].path, folder_ / "net-00002-of-00005.safetensors");
  EXPECT_EQ(layout.index, folder_ / "net.safetensors.index.json");
  EXPECT_EQ(lay_out_safetensors(folder_ / "net.safetensors.index.json", header, 1).index, layout.index);
  EXPECT_EQ(lay_out_safetensors("net", {}, 1).files.front().path, fs::path("net/model.safetensors"));
}

TEST_F(Sharded, TheLimitIsNeverPassedAndAlmostReached) {
  for (const uint64_t limit : {8, 16, 24, 39, 40, 41, 48, 71, 72}) {
    const auto layout = lay_out_safetensors("net", header_of(tensors()), limit);
    uint64_t total = 0;
    for (const auto& file : layout.files) {
      uint64_t bytes = 0;
      for (const auto& [name, entry] : file.header.tensors) bytes += entry.end - entry.begin;
      EXPECT_TRUE(bytes <= limit || file.header.tensors.size() == 1) << limit;
      total += bytes;
    }
    EXPECT_EQ(total, 72U);
    EXPECT_EQ(layout.files.size() == 1, limit >= 72) << limit;
  }
}

TEST_F(Sharded, FillsOneFileAfterTheOther) {
  const std::map<uint64_t, size_t> files_at{{8, 5},  {15, 5}, {16, 3}, {23, 3}, {24, 3}, {31, 3}, {32, 2},
                                            {40, 2}, {47, 2}, {48, 2}, {71, 2}, {72, 1}, {0, 1}};
  for (const auto& [limit, files] : files_at) {
    const auto layout = lay_out_safetensors("net", header_of(tensors()), limit);
    EXPECT_EQ(layout.files.size(), files) << limit;
    EXPECT_EQ(layout.index.empty(), files == 1) << limit;
  }
}

TEST_F(Sharded, TheLayoutSaysWhereEachTensorLiesInItsFile) {
  const auto layout = lay_out_safetensors(folder_ / "net", header_of(tensors()), 20);
  write_safetensors_files(layout, give(tensors()));
  ASSERT_EQ(layout.files.size(), 3U);
  for (const auto& file : layout.files) {
    const SafetensorsFile written(file.path);
    for (const auto& [name, entry] : file.header.tensors) {
      EXPECT_EQ(entry.begin, written.entries().at(name).begin) << name;
      EXPECT_EQ(entry.end, written.entries().at(name).end) << name;
    }
  }
}

TEST_F(Sharded, NumbersOfFiveDigitsAreNotPadded) {
  SafetensorsHeader header;
  for (int i = 0; i < 10'000; ++i) header.tensors[std::to_string(i)] = {at::kByte, {1}, 0, 0};
  const auto layout = lay_out_safetensors("net.safetensors", header, 1);
  EXPECT_EQ(layout.files.front().path, "net-00001-of-10000.safetensors");
  EXPECT_EQ(layout.files.back().path, "net-10000-of-10000.safetensors");
}

TEST_F(Sharded, PiecesNeedABufferOfBytes) {
  save_safetensors(folder_ / "a.safetensors", {{"a", at::arange(4, at::kFloat)}});
  const SafetensorsModel model(folder_ / "a.safetensors");
  const auto error = [&](const at::Tensor& buffer, int64_t max_elements) {
    return error_of([&] { model.read_pieces("a", buffer, max_elements, [](const at::Tensor&) {}); });
  };
  EXPECT_EQ(error(at::empty({4}, at::kByte), 1), "no error");
  EXPECT_THAT(error(at::empty({4}, at::kByte), 0),
              HasSubstr("pieces of 0 elements hold no element of Float"));
  EXPECT_THAT(error(at::empty({8}, at::kChar), 1), HasSubstr("a buffer of 8 Char"));
  EXPECT_THAT(error(at::empty({2, 4}, at::kByte), 1), HasSubstr("give a larger one of bytes"));
}

TEST_F(Sharded, TheFormOfTheIndex) {
  EXPECT_EQ(
      make_shard_index({{{"w", "m-00001-of-00001.safetensors"}}, {{"k", "v"}}}, 7),
      "{\n  \"metadata\": {\n    \"k\": \"v\",\n    \"total_size\": 7\n  },\n  \"weight_map\": {\n    \"w\": "
      "\"m-00001-of-00001.safetensors\"\n  }\n}\n");
  const ShardIndex index = parse_shard_index(
      R"({"metadata":{"total_size":1.5e9,"k":"v"},"weight_map":{"w":"s/f.safetensors"},"x":[]})", "i");
  EXPECT_EQ(index.weight_map.at("w"), "s/f.safetensors");
  EXPECT_EQ(index.metadata, (std::map<std::string, std::string>{{"k", "v"}}));
  EXPECT_TRUE(
      parse_shard_index(R"({"metadata":{"total_size":"8"},"weight_map":{"w":"f"}})", "i").metadata.empty());
  EXPECT_THAT(error_of([] { make_shard_index({{{"\xff", "f"}}, {}}, 1); }), HasSubstr("not valid UTF-8"));
  EXPECT_TRUE(parse_shard_index(R"({"metadata":"x","weight_map":{"w":"f"}})", "i").metadata.empty());
  EXPECT_EQ(parse_shard_index(R"({"x":[[[[[[[]]]]]]],"weight_map":{"w":"f"}})", "i").weight_map.size(), 1U);
}

TEST_F(Sharded, DamagedIndexesAreRefused) {
  const auto refused = [](const std::string& text, const std::string& because) {
    EXPECT_THAT(error_of([&] { parse_shard_index(text, "some.json"); }),
                AllOf(HasSubstr("safetensors index 'some.json': "), HasSubstr(because)))
        << text;
  };
  refused("", "not valid JSON");
  refused("[]", "no weight_map");
  refused("{}", "no weight_map");
  refused(R"({"weight_map":[]})", "no weight_map");
  refused(R"({"weight_map":{}})", "is empty");
  refused(R"({"weight_map":{"w":3}})", "must be a file name");
  refused(R"({"weight_map":{"w":"f","w":"g"}})", "names 'w' twice");
  refused(std::string(100, '['), "nests deeper");
  refused(R"({"x":[[[[[[[[]]]]]]]],"weight_map":{"w":"f"}})", "nests deeper");
  for (const char* path : {"", "/etc/passwd", "../f", "a/../../f", "a/", ".", "a/.", "f\\u0000.safetensors"})
    refused(std::string(R"({"weight_map":{"w":")") + path + "\"}}", "not a file below the index's folder");
}

TEST_F(Sharded, IndexAndShardsMustFit) {
  const fs::path index = folder_ / "m.safetensors.index.json";
  save_safetensors(folder_ / "1.safetensors", {{"a", at::ones({2})}});
  save_safetensors(folder_ / "2.safetensors", {{"b", at::ones({2})}});
  const auto error = [&](const std::string& map) {
    write_file_atomically(index, R"({"weight_map":{)" + map + "}}");
    return error_of([&] { SafetensorsModel model(index); });
  };
  EXPECT_EQ(error(R"("a":"1.safetensors","b":"2.safetensors")"), "no error");
  EXPECT_THAT(error(R"("a":"1.safetensors","b":"3.safetensors")"),
              HasSubstr("names the shard '3.safetensors', which is not there"));
  EXPECT_THAT(error(R"("a":"1.safetensors","c":"1.safetensors")"),
              HasSubstr("'1.safetensors' has no tensor 'c'"));
  save_safetensors(folder_ / "2.safetensors", {{"b", at::ones({2})}, {"a", at::zeros({2})}});
  EXPECT_THAT(error(R"("a":"1.safetensors","b":"2.safetensors")"),
              HasSubstr("'2.safetensors' has a tensor 'a', which the index does not give to it"));
  fs::resize_file(folder_ / "1.safetensors", 20);
  EXPECT_THAT(error(R"("a":"1.safetensors")"), HasSubstr("truncated"));
  EXPECT_THAT(error_of([&] { SafetensorsModel model(folder_ / "none.index.json"); }),
              HasSubstr("No such file"));
}

TEST_F(Sharded, AFileFarTooLargeIsNoIndex) {
  const fs::path index = folder_ / "m.safetensors.index.json";
  write_file_atomically(index, "{}");
  fs::resize_file(index, 1'000'000'001);  // the file has no data on the disk
  EXPECT_THAT(error_of([&] { SafetensorsModel model(index); }),
              HasSubstr("its 1000000001 bytes are over the limit of 1000000000"));
}

TEST_F(Sharded, MetadataThatDiffersIsNamed) {
  save_safetensors(folder_ / "1.safetensors", {{"a", at::ones({2})}}, {{"k", "1"}, {"same", "s"}});
  save_safetensors(folder_ / "2.safetensors", {{"b", at::ones({2})}},
                   {{"k", "2"}, {"same", "s"}, {"more", "m"}});
  write_file_atomically(folder_ / "m.safetensors.index.json",
                        R"({"metadata":{"index":"i","more":"n"},)"
                        R"("weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  const SafetensorsModel model(folder_);
  EXPECT_EQ(model.metadata(),
            (std::map<std::string, std::string>{{"index", "i"}, {"k", "1"}, {"more", "m"}, {"same", "s"}}));
  EXPECT_THAT(model.conflicting_metadata(), ElementsAre("k", "more"));
}

TEST_F(Sharded, AFolderMustHoldOneModel) {
  const auto error = [&] { return error_of([&] { SafetensorsModel model(folder_); }); };
  EXPECT_THAT(error(), HasSubstr("holds no *.safetensors"));
  save_safetensors(folder_ / "a.safetensors", {});
  write_file_atomically(folder_ / ".b.safetensors.tmp-1-2", "");
  EXPECT_EQ(error(), "no error");
  save_safetensors(folder_ / "b.safetensors", {});
  EXPECT_THAT(error(), HasSubstr("holds 2 models (a.safetensors, b.safetensors)"));
}

TEST_F(Sharded, WrongPiecesLeaveNothing) {
  const auto layout = lay_out_safetensors(folder_ / "new/net", header_of(tensors()), 20);
  const auto error = [&](const GiveElements& give) {
    const std::string message = error_of([&] { write_safetensors_files(layout, give); });
    EXPECT_THAT(listing(), testing::IsEmpty());
    return message;
  };
  const auto only_e = [&](const at::Tensor& e) {
    return [&, e](const std::string& name, const TakeElements& take) {
      take(name == "e" ? e : tensors().at(name));
    };
  };
  EXPECT_THAT(error(only_e(at::ones({3}, at::kInt))), HasSubstr("has room for 8 bytes"));
  EXPECT_THAT(error(only_e(at::ones({2}, at::kFloat))),
              HasSubstr("2 elements of Float were given for tensor 'e'"));
  EXPECT_THAT(error(only_e(at::ones({1}, at::kInt))),
              HasSubstr("the last 4 bytes of tensor 'e' were not given"));
  EXPECT_THROW(write_safetensors_files(layout,
                                       [](const std::string& name, const TakeElements& take) {
                                         if (name == "e") throw std::runtime_error("stop");
                                         take(tensors().at(name));
                                       }),
               std::runtime_error);
  EXPECT_THAT(listing(), testing::IsEmpty());
}

TEST_F(Sharded, AFullDiskLeavesNothing) {
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{300, old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const std::string message = error_of([&] { write(folder_ / "net", 40); });
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(message, HasSubstr("File too large"));
  EXPECT_THAT(listing(), testing::IsEmpty());
}

TEST_F(Sharded, AFileInPlaceOfTheFolderStays) {
  write_file_atomically(folder_ / "file", "x");
  EXPECT_THAT(error_of([&] { write(folder_ / "file" / "net", 20); }),
              AllOf(HasSubstr("' cannot be made: "), HasSubstr("; choose another place")));
  EXPECT_EQ(content_of(folder_ / "file"), "x");
}

TEST_F(Sharded, ExistingFilesStay) {
  write(folder_ / "net", 20);
  const std::string before = content_of(folder_ / "net/model-00001-of-00003.safetensors");
  EXPECT_THAT(error_of([&] { write(folder_ / "net", 20); }), HasSubstr("cannot be replaced in one move"));
  EXPECT_EQ(content_of(folder_ / "net/model-00001-of-00003.safetensors"), before);
  EXPECT_TRUE(fs::exists(folder_ / "net/model.safetensors.index.json"));
  // A single shard of another model, whose index is elsewhere.
  for (const char* name : {"00001-of-00003.safetensors", "00003-of-00003.safetensors"})
    fs::remove(folder_ / "net" / c10::str("model-", name));
  fs::remove(folder_ / "net/model.safetensors.index.json");
  const fs::path shard = folder_ / "net/model-00002-of-00003.safetensors";
  write_file_atomically(shard, "precious");
  EXPECT_THAT(error_of([&] { write(folder_ / "net", 20); }), HasSubstr(shard.string() + "' already exists"));
  EXPECT_EQ(content_of(shard), "precious");
  write(folder_ / "one.safetensors", 0);
  EXPECT_THROW(write_safetensors_files(
                   lay_out_safetensors(folder_ / "one.safetensors", header_of(tensors()), 0),
                   [](const std::string&, const TakeElements&) { throw std::runtime_error("stop"); }),
               std::runtime_error);
  EXPECT_TRUE(at::equal(SafetensorsModel(folder_ / "one.safetensors").read("a"), tensors().at("a")));
}

}  // namespace
}  // namespace mantissa::sharded_test
