#include "mantissa/io/event_file.h"

#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <limits>
#include <string>
#include <unistd.h>

#include <torch/csrc/jit/serialization/export.h>
#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/crc32c.h"
#include "mantissa/io/file_size_limit_internal.h"

namespace mantissa::event_file_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const Event kScalars{.wall_time = 1.7e9 + 0.25, .step = 7, .scalars = {{"loss", 0.5F}, {"zero", 0.0F}}};

TEST(EventFile, KeepsEveryField) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<Event> events{
      {.wall_time = 1.5, .file_version = "brain.Event:2"},
      {.wall_time = 2, .step = 1LL << 40, .restarts = true},
      kScalars,
      {.wall_time = 3, .step = -1, .scalars = {{"inf", kInf}, {"-inf", -kInf}, {"λ/x y", 1e-40F}}},
      {.wall_time = 4, .texts = {{"note", "**bold** ü"}, {"empty", ""}}},
      {.wall_time = 5,
       .hparams = {{{"lr", 0.0}, {"fused", false}, {"name", std::string()}, {"other", std::string("x")}}}},
      {.wall_time = 6, .hparams = {std::map<std::string, Event::HParam>()}},
      {.wall_time = 7, .succeeded = true},
      {.wall_time = 8, .succeeded = false}};
  std::string bytes;
  for (const Event& event : events) bytes += event_record(event);
  const EventFile file = parse_events(bytes);
  EXPECT_EQ(file.events, events);
  EXPECT_FALSE(file.is_cut);
}

TEST(EventFile, KeepsNan) {
  const EventFile file = parse_events(event_record({.scalars = {{"loss", std::nanf("")}}}));
  EXPECT_TRUE(std::isnan(file.events.at(0).scalars.at(0).second));
}

TEST(EventFile, IsWhatTensorFlowWrites) {
  // The first record of every event file, with time 1.0, as TensorFlow's own writer writes it.
  const std::string message(
      "\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d"
      "brain.Event:2",
      24);
  const std::string record = event_record({.wall_time = 1, .file_version = "brain.Event:2"});
  EXPECT_EQ(record.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(8, 4), "\xa3\x7f\x4b\x22");
  EXPECT_EQ(record.substr(12, message.size()), message);
  EXPECT_EQ(record.size(), 12 + message.size() + 4);
}

/// TensorBoard's table of hyperparameters reads a run's start and end from inside their records.
TEST(EventFile, ARunsStartAndEndHaveTheirTimes) {
  const double time = kScalars.wall_time;
  const std::string bytes(reinterpret_cast<const char*>(&time), sizeof time);
  const auto times_in = [&](Event event) {
    event.wall_time = time;
    const std::string record = event_record(event);
    int count = 0;
    for (size_t at = record.find(bytes); at != std::string::npos; at = record.find(bytes, at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(times_in({}), 1) << "when it was written";
  EXPECT_EQ(times_in({.hparams = {{{"lr", 0.5}}}}), 2);
  EXPECT_EQ(times_in({.succeeded = true}), 2);
  EXPECT_EQ(times_in({.succeeded = false}), 2);
}

/// Returns a field of protobuf that holds a text or a message of less than 128 bytes.
std::string field(int number, const std::string& content) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(content.size()) + content;
}

/// Returns a record of any message, with right checksums.
std::string record_of(const std::string& message) {
  const auto sum = [](std::string_view bytes) {
    const uint32_t crc = crc32c(bytes), masked = (crc >> 15 | crc << 17) + 0xa282ead8;
    return std::string(reinterpret_cast<const char*>(&masked), sizeof masked);
  };
  const uint64_t size = message.size();
  const std::string length(reinterpret_cast<const char*>(&size), sizeof size);
  return length + sum(length) + message + sum(message);
}

const std::string kTime1("\x09\0\0\0\0\0\0\xf0\x3f", 9), kTensorClass("\x20\x02");

/// TensorBoard's form has a type and a shape for each tensor, and says that the data are of the class of tensors.
TEST(EventFile, TextsAndHyperparametersAreWhatTensorBoardReads) {
  const std::string string_of_no_dimensions = "\x08\x07" + field(2, "") + field(8, "hi");
  EXPECT_EQ(event_record({.wall_time = 1, .texts = {{"note", "hi"}}}),
            record_of(kTime1 + field(5, field(1, field(1, "note") + field(8, string_of_no_dimensions) +
                                                     field(9, field(1, field(1, "text")) + kTensorClass)))));
  const std::string no_floats = "\x08\x01" + field(2, field(2, ""));
  const std::string end = "\x08\x01\x11" + kTime1.substr(1);  // successful, at time 1
  EXPECT_EQ(event_record({.wall_time = 1, .succeeded = true}),
            record_of(kTime1 +
                      field(5, field(1, field(1, "_hparams_/session_end_info") + field(8, no_floats) +
                                            field(9, field(1, field(1, "hparams") + field(2, field(4, end))) +
                                                         kTensorClass)))));
}

/// Other programs write values that we do not know.
TEST(EventFile, OnlyTheTextsOfTheTextPluginAreTexts) {
  const auto read = [](const std::string& plugin, const std::string& tensor) {
    const std::string value = field(1, "tag") + field(8, tensor) + field(9, field(1, field(1, plugin)));
    return parse_events(record_of(kTime1 + field(5, field(1, value)))).events.at(0);
  };
  const Event empty{.wall_time = 1};
  EXPECT_EQ(read("text", field(8, "hi") + field(8, "more")),
            (Event{.wall_time = 1, .texts = {{"tag", "hi"}}}));
  EXPECT_EQ(read("text", ""), empty);
  EXPECT_EQ(read("images", field(8, "hi")), empty);
}

TEST(EventFile, ReadsWhatIsThereOfACutFile) {
  const std::string one = event_record(kScalars), two = one + one;
  for (size_t n = 0; n <= two.size(); ++n) {
    const EventFile file = parse_events(std::string_view(two).substr(0, n));
    EXPECT_EQ(file.events.size(), n / one.size()) << n;
    EXPECT_EQ(file.is_cut, n % one.size() != 0) << n;
  }
}

TEST(EventFile, ALengthAndItsChecksumAreEnoughToFindDamage) {
  const std::string good = event_record(kScalars).substr(0, 12);
  EXPECT_TRUE(parse_events(good).is_cut);
  EXPECT_TRUE(parse_events("12345678901").is_cut);
  EXPECT_THAT(error_of([] { parse_events("123456789012"); }), HasSubstr("a length whose checksum is wrong"));
}

TEST(EventFile, EveryFlippedBitIsFound) {
  const std::string good = event_record(kScalars);
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good + good;
    bad[good.size() + bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_THAT(error_of([&] { parse_events(bad); }),
                HasSubstr("the record at byte " + std::to_string(good.size()) + " has a"));
  }
}

TEST(EventFile, AGoodChecksumDoesNotMakeAnEvent) {
  // An empty message is an event without values. The checksums are TFRecord's for a length of 0 and for no
  // bytes.
  std::string empty(8, '\0');
  empty += "\x29\x03\x98\x07";
  empty += std::string("\xd8\xea\x82\xa2", 4);
  EXPECT_EQ(parse_events(empty).events, std::vector<Event>(1));
  EXPECT_THAT(error_of([] { parse_events("<html>this is another file</html>"); }),
              HasSubstr("no TensorBoard event file"));
  EXPECT_THAT(error_of([] { parse_events(record_of("\xff")); }),
              HasSubstr("the record at byte 0 holds no event"));
}

using EventFileWriterTest = InFolder;

TEST_F(EventFileWriterTest, BeginsWithTheVersionAndHasANameOfItsOwn) {
  EventFileWriter first(folder_), second(folder_);
  EXPECT_NE(first.path(), second.path());
  EXPECT_THAT(first.path().filename().string(),
              testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]+\\..+\\." + std::to_string(getpid()) +
                                    "\\.[0-9]+"));
  first.write(std::vector{kScalars, kScalars});
  const EventFile file = parse_events(content_of(first.path()));
  ASSERT_EQ(file.events.size(), 3U);
  EXPECT_EQ(file.events[0].file_version, "brain.Event:2");
  EXPECT_EQ(file.events[1], kScalars);
}

TEST_F(EventFileWriterTest, LeavesNoEmptyFileWhereThereIsNoRoom) {
  {
    const FileSizeLimit limit(0);
    EXPECT_THAT(error_of([&] { EventFileWriter writer(folder_); }), HasSubstr("File too large"));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

/// libtorch_cpu holds another version of protobuf, for ONNX. Both work in one process, in turn.
TEST_F(EventFileWriterTest, TwoProtobufsLiveInOneProcess) {
  // A ModelProto {ir_version: 8, graph {name: "g"}, opset_import {version: 17}}, and the same with an empty
  // name.
  const std::string good("\x08\x08\x3a\x03\x12\x01g\x42\x02\x10\x11", 11);
  const std::string nameless("\x08\x08\x3a\x02\x12\0\x42\x02\x10\x11", 10);
  for (int turn = 0; turn < 3; ++turn) {
    EventFileWriter writer(folder_);
    writer.write({&kScalars, 1});
    EXPECT_NO_THROW(torch::jit::check_onnx_proto(good));
    EXPECT_ANY_THROW(torch::jit::check_onnx_proto(nameless));
    EXPECT_ANY_THROW(torch::jit::check_onnx_proto("\xff\xff no protobuf"));
    EXPECT_EQ(parse_events(content_of(writer.path())).events.at(1), kScalars);
  }
}

}  // namespace
}  // namespace mantissa::event_file_test
