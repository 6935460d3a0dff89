#include "mantissa/io/checkpoint.h"

#include <atomic>
#include <chrono>
#include <future>
#include <gmock/gmock.h>
#include <thread>
#include <unistd.h>

#include "mantissa/io/background_writer.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/checkpoint_internal.h"
#include "mantissa/io/checkpoint_test_support_internal.h"
#include "mantissa/io/safetensors.h"

namespace mantissa::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

using CheckpointFiles = InCheckpointFolder;

TEST_F(CheckpointFiles, ReadsWhatWasWritten) {
  const Checkpoint want = a_checkpoint(7);
  save_checkpoint(folder_ / "step=7", want);
  EXPECT_EQ(difference(as_state(load_checkpoint(folder_ / "step=7")), as_state(want)), "");
  EXPECT_THAT(names(), ElementsAre("step=7"));
  // A trailing slash does not change the name.
  save_checkpoint(folder_ / "step=7" / "", a_checkpoint(8));
  EXPECT_EQ(load_checkpoint(folder_ / "step=7" / "").step, 8);
  EXPECT_THAT(names(), ElementsAre("step=7"));
}

TEST_F(CheckpointFiles, NothingAtAll) {
  save_checkpoint(folder_ / "empty", {});
  EXPECT_EQ(difference(as_state(load_checkpoint(folder_ / "empty")), as_state({})), "");
}

TEST_F(CheckpointFiles, WeightsAreAFileOfTheirOwnUnderTheirNames) {
  save_checkpoint(folder_ / "a", a_checkpoint(3));
  const Safetensors weights = load_safetensors(folder_ / "a" / "weights.safetensors");
  EXPECT_EQ(weights.tensors.size(), 2u);
  EXPECT_TRUE(at::equal(weights.tensors.at("0.weight"), at::arange(100, at::kFloat).add(3)));
  EXPECT_EQ(weights.metadata.at("format"), "pt");
  // The other tensors are named by their paths in the tree.
  const SafetensorsFile state(folder_ / "a" / "state.safetensors");
  EXPECT_TRUE(state.entries().contains("optimizers.0.state.0.exp_avg"));
  const Manifest manifest = read_manifest(folder_ / "a");
  EXPECT_EQ(manifest.step, 3);
  EXPECT_EQ(manifest.libtorch_version, TORCH_VERSION);
  EXPECT_TRUE(manifest.weights.at("0.weight").is_meta());
  EXPECT_EQ(manifest.weights.at("0.weight").sizes(), at::IntArrayRef({100}));
}

TEST_F(CheckpointFiles, PlacesOfTheSamePathKeepTheirTensors) {
  const Checkpoint want{
      0,
      {},
      {{"a.b", at::ones({1})}, {"a", StateDict{{"b", at::zeros({2})}}}, {"__metadata__", at::ones({3})}}};
  save_checkpoint(folder_ / "a", want);
  EXPECT_EQ(difference(as_state(load_checkpoint(folder_ / "a")), as_state(want)), "");
}

TEST_F(CheckpointFiles, TensorsReadShareNoMemory) {
  const at::Tensor tied = at::ones({4});
  save_checkpoint(folder_ / "a",
                  {0, {{"in", tied}, {"out", tied}}, {{"x", tied}, {"y", tied[0].expand({3})}}});
  Checkpoint loaded = load_checkpoint(folder_ / "a");
  loaded.weights.at("in").zero_();
  EXPECT_TRUE(at::equal(loaded.weights.at("out"), tied));
  EXPECT_TRUE(at::equal(StateReader(loaded.state).at("y").to_tensor(), at::ones({3})));
}

TEST_F(CheckpointFiles, RefusesWhatCannotBeStoredAndWritesNothing) {
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  const auto error = [&](const StateDict& state) {
    return error_of([&] { save_checkpoint(folder_ / "a", {2, {}, state}); });
  };
  EXPECT_THAT(error({{"x", StateList{at::quantize_per_tensor(at::ones({2}), 1, 0, at::kQInt8)}}}),
              HasSubstr("x.0: a tensor of dtype QInt8 cannot be stored in a file"));
  EXPECT_THAT(error({{"x", at::ones({2}, at::kMeta)}}), HasSubstr("meta device"));
  EXPECT_THAT(error({{"x", at::ones({2}).to_sparse()}}), HasSubstr("'x' is sparse"));
  EXPECT_THAT(error({{"x", StateList{"\xff"}}}), HasSubstr("x.0: its text or name is not valid UTF-8"));
  EXPECT_THAT(error({{"\xff", 1}}), HasSubstr("not valid UTF-8"));
  StateValue deep = 1;
  for (int i = 0; i < kMaxStateDepth; ++i) deep = StateList{deep};
  EXPECT_THAT(error({{"x", deep}}), HasSubstr("nests deeper than 64"));
  EXPECT_THAT(error_of([&] {
                save_checkpoint(folder_ / "a", {2, {{"w", at::Tensor()}}, {}});
              }),
              HasSubstr("weight 'w' is undefined"));
  EXPECT_THAT(error_of([&] { save_checkpoint(folder_ / "a", {-1, {}, {}}); }), HasSubstr("its step is -1"));
  EXPECT_THAT(error_of([&] {
                save_checkpoint(folder_ / "a", {kMaxCount + 1, {}, {}});
              }),
              HasSubstr("its step is 9007199254740993; give the number of steps taken, from 0 to"));
  EXPECT_THAT(error_of([&] {
                snapshot(Checkpoint{2, {{"w", at::Tensor()}}, {}});
              }),
              HasSubstr("snapshot: weight 'w' is undefined"));
  for (const char* name : {".", "..", "a/.", "a/.."})
    EXPECT_THAT(error_of([&] { save_checkpoint(folder_ / name, a_checkpoint(2)); }),
                HasSubstr("names no folder"));
  EXPECT_EQ(load_checkpoint(folder_ / "a").step, 1);
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(CheckpointFiles, TheDeepestStateGoesThereAndBack) {
  StateValue deep = at::ones({2});
  for (int i = 1; i < kMaxStateDepth; ++i) deep = StateList{deep};
  const Checkpoint want{0, {}, {{"x", deep}}};
  save_checkpoint(folder_ / "a", want);
  EXPECT_EQ(difference(as_state(load_checkpoint(folder_ / "a")), as_state(want)), "");
}

TEST_F(CheckpointFiles, ReplacesOnlyCheckpoints) {
  fs::create_directory(folder_ / "data");
  write(folder_ / "data" / "photo", "x");
  write(folder_ / "file", "x");
  for (const char* name : {"data", "file", ".hidden", ""}) {
    EXPECT_NE(error_of([&] { save_checkpoint(folder_ / name, a_checkpoint(1)); }), "no error") << name;
  }
  EXPECT_THAT(error_of([&] { save_checkpoint(folder_ / std::string(201, 'n'), {}); }),
              HasSubstr("shorter name"));
  EXPECT_THAT(error_of([&] { save_checkpoint(folder_ / "none" / "a", {}); }),
              HasSubstr("No such file or directory; create its folder first"));
  EXPECT_EQ(content_of(folder_ / "data" / "photo"), "x");
  EXPECT_THAT(names(), ElementsAre("data", "file"));
  fs::create_directory(folder_ / "empty");
  save_checkpoint(folder_ / "empty", a_checkpoint(1));
  save_checkpoint(folder_ / std::string(200, 'n'), a_checkpoint(2));
  EXPECT_EQ(load_checkpoint(folder_ / std::string(200, 'n')).step, 2);
}

// Web pages and browser extensions have a manifest.json too.
TEST_F(CheckpointFiles, AManifestOfSomethingElseIsNoCheckpoint) {
  const auto make = [&](const char* name, const std::vector<std::pair<const char*, const char*>>& files) {
    fs::create_directory(folder_ / name);
    for (const auto& [file, text] : files) write(folder_ / name / file, text);
  };
  make("web", {{"manifest.json", R"({"name": "page"})"}, {"main.js", "x"}});
  make("alone", {{"manifest.json", R"({"name": "page"})"}});
  make("model", {{"weights.safetensors", "x"}, {"tokenizer.json", "x"}});
  for (const auto& [name, reason] :
       {std::pair("web", "holds 'main.js'"), std::pair("alone", "neither a manifest of one nor weights"),
        std::pair("model", "holds 'tokenizer.json'")}) {
    EXPECT_THAT(error_of([&, name = name] { save_checkpoint(folder_ / name, a_checkpoint(1)); }),
                HasSubstr(reason));
    EXPECT_THAT(error_of([&, name = name] { remove_checkpoint(folder_ / name); }), HasSubstr(reason));
  }
  EXPECT_EQ(content_of(folder_ / "web" / "main.js"), "x");
  EXPECT_EQ(content_of(folder_ / "web" / "manifest.json"), R"({"name": "page"})");
  EXPECT_TRUE(fs::exists(folder_ / "alone" / "manifest.json"));
  EXPECT_TRUE(fs::exists(folder_ / "model" / "tokenizer.json"));
  EXPECT_THAT(names(), ElementsAre("alone", "model", "web"));
}

TEST_F(CheckpointFiles, ADamagedOneIsStillReplacedAndRemoved) {
  const auto damage = [&](const fs::path& path, const std::string& how) {
    save_checkpoint(path, a_checkpoint(1));
    if (how == "cut") fs::resize_file(path / "manifest.json", 200);
    if (how == "empty") write(path / "manifest.json", "");
    if (how == "other") write(path / "manifest.json", "{}");
    if (how == "none") fs::remove(path / "manifest.json");
    if (how == "lightning") write(path / "lightning.json", "{}");
    if (how == "lightning") fs::remove(path / "manifest.json");
    if (how.starts_with("only ")) {
      for (const char* name : {"manifest.json", "weights.safetensors", "state.safetensors"})
        if (how != std::string("only ") + name) fs::remove(path / name);
    }
    if (how == "noted") write(path / "notes.txt", "the best so far");  // its manifest is whole
  };
  for (const char* how : {"cut", "empty", "other", "none", "lightning", "noted", "only manifest.json",
                          "only weights.safetensors", "only state.safetensors"}) {
    damage(folder_ / "a", how);
    EXPECT_EQ(error_of([&] { save_checkpoint(folder_ / "a", a_checkpoint(2)); }), "no error") << how;
    EXPECT_EQ(load_checkpoint(folder_ / "a").step, 2) << how;
    damage(folder_ / "b", how);
    EXPECT_EQ(error_of([&] { remove_checkpoint(folder_ / "b"); }), "no error") << how;
    EXPECT_THAT(names(), ElementsAre("a")) << how;
  }
}

TEST_F(CheckpointFiles, TheLastStepThatCanBeCounted) {
  save_checkpoint(folder_ / "a", {kMaxCount, {}, {}});
  EXPECT_EQ(load_checkpoint(folder_ / "a").step, kMaxCount);
}

TEST_F(CheckpointFiles, IsDatedWhenItIsWritten) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const int64_t before = now();
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  const int64_t written = read_manifest(folder_ / "a").written_unix_ms;
  EXPECT_GE(written, before);
  EXPECT_LE(written, now());
}

TEST_F(CheckpointFiles, AManifestFarTooLargeIsRefused) {
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  fs::resize_file(folder_ / "a" / "manifest.json",
                  1'000'000'001);  // sparse: the disk holds no more than before
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "a"); }),
              HasSubstr("has 1000000001 bytes, which are over the limit of 1000000000 for a manifest"));
}

TEST_F(CheckpointFiles, FollowsALink) {
  save_checkpoint(folder_ / "step=1", a_checkpoint(1));
  fs::create_directory_symlink("step=1", folder_ / "last");
  save_checkpoint(folder_ / "last", a_checkpoint(2));
  EXPECT_TRUE(fs::is_symlink(folder_ / "last"));
  EXPECT_EQ(load_checkpoint(folder_ / "step=1").step, 2);
}

// Without RENAME_EXCHANGE, which some file systems lack, two renames replace a checkpoint.
TEST_F(CheckpointFiles, ReplacesAlsoInTwoMoves) {
  save_checkpoint(folder_ / "old", a_checkpoint(1));
  save_checkpoint(folder_ / "new", a_checkpoint(2));
  put_in_place(folder_ / "new", folder_ / "old", /*may_exchange=*/false);
  EXPECT_EQ(load_checkpoint(folder_ / "old").step, 2);
  EXPECT_EQ(load_checkpoint(folder_ / "new").step, 1);
  EXPECT_THAT(names(), ElementsAre("new", "old"));
  EXPECT_NE(error_of([&] { put_in_place(folder_ / "none", folder_ / "old", false); }), "no error");
  EXPECT_EQ(load_checkpoint(folder_ / "old").step, 2);
  EXPECT_THAT(names(), ElementsAre("new", "old"));
}

TEST_F(CheckpointFiles, IsFoundBetweenTheTwoMoves) {
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  fs::rename(folder_ / "a", folder_ / ".a.old-4194305-0");  // no process has an id this high
  EXPECT_EQ(load_checkpoint(folder_ / "a").step, 1);
  EXPECT_EQ(load_newest(folder_)->checkpoint.step, 1);
  EXPECT_THAT(remove_leftovers(folder_), ElementsAre(".a.old-4194305-0"));
  EXPECT_THAT(names(), ElementsAre("a"));
  EXPECT_EQ(load_checkpoint(folder_ / "a").step, 1);
  fs::rename(folder_ / "a", folder_ / ".a.tmp-4194305-0");
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "a"); }), HasSubstr("No such file"))
      << "it was being written or removed";
}

TEST_F(CheckpointFiles, SnapshotIsOfTheMoment) {
  Checkpoint run = a_checkpoint(1);
  const Checkpoint copy = snapshot(run);
  run.weights.at("0.weight").zero_();
  EXPECT_EQ(difference(as_state(copy), as_state(a_checkpoint(1))), "");
}

TEST_F(CheckpointFiles, WrittenLaterAreOfTheMomentOfTheCall) {
  Checkpoint run = a_checkpoint(1);
  {
    BackgroundWriter writer;
    for (int64_t step = 1; step <= 5; ++step) {
      run.step = step;
      save_checkpoint_later(writer, folder_ / c10::str("s", step), run);
      run.weights.at("0.weight").add_(1);
    }
    save_checkpoint_later(writer, folder_ / "none" / "a", run);
    // Either call may report the error of "none". The checkpoint "last" is written in both cases.
    EXPECT_THAT(error_of([&] {
                  save_checkpoint_later(writer, folder_ / "last", run);
                  writer.flush();
                }),
                HasSubstr("create its folder first"));
    save_checkpoint_later(writer, folder_ / "s1", run);
  }
  for (int64_t step = 2; step <= 5; ++step) {
    const Checkpoint read = load_checkpoint(folder_ / c10::str("s", step));
    EXPECT_TRUE(at::equal(read.weights.at("0.weight"), at::arange(100, at::kFloat).add(step)));
  }
  EXPECT_EQ(difference(as_state(load_checkpoint(folder_ / "last")), as_state(run)), "");
  EXPECT_EQ(difference(as_state(load_checkpoint(folder_ / "s1")), as_state(run)), "");
}

// A copy of the tensors that waited for room, too, would take memory for one checkpoint more.
TEST_F(CheckpointFiles, IsCopiedOnlyWhenThereIsRoomForIt) {
  std::promise<void> gate;
  const std::shared_future<void> is_open = gate.get_future().share();
  std::atomic<bool> is_opening = false;
  BackgroundWriter writer(1);
  std::promise<void> runs;
  writer.post([&] {
    runs.set_value();
    is_open.wait();
  });
  runs.get_future().wait();
  writer.post([] {});  // waits for the first, so that there is no room
  std::thread caller([&] {
    // Only the copy finds the mistake.
    EXPECT_THAT(error_of([&] {
                  save_checkpoint_later(writer, folder_ / "a", {2, {{"w", at::Tensor()}}, {}});
                }),
                HasSubstr("snapshot: weight 'w' is undefined"));
    EXPECT_TRUE(is_opening);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  is_opening = true;
  gate.set_value();
  caller.join();
}

}  // namespace
}  // namespace mantissa::checkpoint_test
