// What the files' writers and readers ask of the system, and what they do when it refuses.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/append_file.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/checkpoint_internal.h"
#include "mantissa/io/checkpoint_test_support_internal.h"
#include "mantissa/io/event_file.h"
#include "mantissa/io/files_internal.h"
#include "mantissa/io/held_folder.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/sharded.h"
#include "mantissa/io/system_calls_test_support_internal.h"

namespace mantissa::system_calls_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;

using SystemCallsTest = InCheckpointFolder;

// A loss of power must find the old file or the new one: the content is on the disk before it gets the name,
// and the name after that.
TEST_F(SystemCallsTest, AnAtomicFileIsSyncedBeforeItsFolder) {
  bool was_renamed = false;
  {
    const SystemCalls calls(folder_, [&](const Call& call) {
      if (call.name == "fsync" && call.file != ".") {
        EXPECT_THAT(names(), ElementsAre(HasSubstr(".a.tmp-")));
      }
      if (call.name == "fsync" && call.file == ".") was_renamed = names() == std::vector<std::string>{"a"};
      return Answer{};
    });
    write_file_atomically(folder_ / "a", "x");
  }
  EXPECT_TRUE(was_renamed);
  EXPECT_THAT(synced(folder_, [&] { write_file_atomically(folder_ / "a", "y"); }),
              ElementsAre(".a.tmp", "."));
}

TEST_F(SystemCallsTest, AnAtomicFileThatCannotBeSyncedIsNotReplaced) {
  write_file_atomically(folder_ / "a", "old");
  const auto error = [&](int number, int code) {
    const SystemCalls calls(folder_, failing("fsync", number, code));
    return error_of([&] { write_file_atomically(folder_ / "a", "new"); });
  };
  EXPECT_THAT(error(0, EIO), HasSubstr("syncing to the disk failed: Input/output error; check the disk"));
  EXPECT_EQ(content_of(folder_ / "a"), "old");
  EXPECT_THAT(names(), ElementsAre("a"));
  EXPECT_THAT(error(1, EIO), HasSubstr("syncing its folder failed: Input/output error"));
  // Some file systems cannot sync a folder.
  EXPECT_EQ(error(1, EINVAL), "no error");
  EXPECT_EQ(content_of(folder_ / "a"), "new");
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(SystemCallsTest, WritesGoOnAfterASignalAndInPieces) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += static_cast<char>('a' + i % 26);
  int calls_made = 0;
  const auto unsteady = [&](const Call& call) {
    if (call.name != "write") return Answer{};
    return ++calls_made % 2 == 1 ? Answer{.error = EINTR} : Answer{.bytes = 30'000};
  };
  AppendFile rows(folder_ / "rows", AppendFile::Mode::kContinue);
  {
    const SystemCalls calls(folder_, unsteady);
    write_file_atomically(folder_ / "a", text);
    rows.append(text + "\n");
  }
  EXPECT_EQ(calls_made, 16);
  EXPECT_TRUE(content_of(folder_ / "a") == text);
  EXPECT_TRUE(content_of(folder_ / "rows") == text + "\n");
  EXPECT_EQ(rows.size(), text.size() + 1);
  const SystemCalls calls(
      folder_, [](const Call& call) { return call.name == "write" ? Answer{.bytes = 1} : Answer{}; });
  write_file_atomically(folder_ / "a", "abc");
  rows.append("abc\n");
  EXPECT_EQ(content_of(folder_ / "a"), "abc");
  EXPECT_TRUE(content_of(folder_ / "rows") == text + "\nabc\n");
}

TEST_F(SystemCallsTest, SmallPiecesAreWrittenTogether) {
  const auto writes = [&](const std::vector<size_t>& pieces) {
    int made = 0;
    const SystemCalls calls(folder_, [&](const Call& call) {
      made += call.name == "write";
      return Answer{};
    });
    write_file_atomically(folder_ / "a", [&](std::ostream& out) {
      for (const size_t bytes : pieces) out << std::string(bytes, 'x');
    });
    return made;
  };
  constexpr size_t kBuffer = 1 << 16;
  EXPECT_EQ(writes({}), 0);
  EXPECT_EQ(writes({1, 1, 1}), 1);
  EXPECT_EQ(writes({kBuffer - 1, 1}), 1) << "they just fill the buffer";
  EXPECT_EQ(writes({1, kBuffer}), 2);
}

TEST_F(SystemCallsTest, AWriterIsStoppedAtTheFirstFailure) {
  bool went_on = false;
  const SystemCalls calls(folder_, failing("write", 0, EIO));
  const auto write_large = [&](std::ostream& out) {
    out << std::string(100'000, 'x');
    went_on = true;
  };
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "a", write_large); }),
              HasSubstr("writing failed: Input/output error"));
  EXPECT_FALSE(went_on);
}

TEST_F(SystemCallsTest, AnAtomicFileIsReplacedOnlyIfEveryCallSucceeds) {
  write_file_atomically(folder_ / "a", "old");
  const auto error = [&](const char* call, int number, int code) {
    const SystemCalls calls(folder_, failing(call, number, code));
    return error_of([&] { write_file_atomically(folder_ / "a", "new"); });
  };
  EXPECT_THAT(error("open", 0, EMFILE), HasSubstr("opening its folder failed: Too many open files"));
  EXPECT_THAT(error("open", 1, EMFILE),
              HasSubstr("creating a temporary file beside it failed: Too many open files"));
  EXPECT_THAT(error("fchmod", 0, EPERM),
              HasSubstr("keeping its permissions failed: Operation not permitted"));
  EXPECT_THAT(error("close", 0, EDQUOT), HasSubstr("closing failed: Disk quota exceeded; free some space"));
  EXPECT_THAT(error("rename", 0, EIO), HasSubstr("renaming the temporary file failed: Input/output error"));
  EXPECT_EQ(content_of(folder_ / "a"), "old");
  EXPECT_THAT(names(), ElementsAre("a"));
  // Linux has closed a file whose close was interrupted.
  EXPECT_EQ(error("close", 0, EINTR), "no error");
  EXPECT_EQ(content_of(folder_ / "a"), "new");
}

// A process in another container may have the same id, and so take the name again.
TEST_F(SystemCallsTest, ATemporaryNameThatSomebodyElseTakesAfterTheMoveIsTheirs) {
  fs::path temporary;
  {
    const SystemCalls calls(folder_, [&](const Call& call) {
      if (call.name == "rename") temporary = folder_ / call.file;
      if (call.name == "fsync" && call.file == ".") write(temporary, "another's");
      return Answer{};
    });
    write_file_atomically(folder_ / "a", "x");
  }
  EXPECT_EQ(content_of(folder_ / "a"), "x");
  EXPECT_EQ(content_of(temporary), "another's");
}

TEST_F(SystemCallsTest, AWriteOfNothingIsAFullDisk) {
  AppendFile rows(folder_ / "rows", AppendFile::Mode::kContinue);
  rows.append("1\n");
  const SystemCalls calls(
      folder_, [](const Call& call) { return call.name == "write" ? Answer{.bytes = 0} : Answer{}; });
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "a", "x"); }),
              HasSubstr("No space left on device; free some space"));
  EXPECT_THAT(error_of([&] { rows.append("2\n"); }), HasSubstr("No space left on device; free some space"));
  EXPECT_EQ(content_of(folder_ / "rows"), "1\n");
  EXPECT_THAT(names(), ElementsAre("rows"));
}

// A call that succeeds leaves errno as an earlier one has set it.
TEST_F(SystemCallsTest, ASignalBeforeACallIsNotTakenForOneDuringIt) {
  save_safetensors(folder_ / "w", {{"w", at::ones({10})}});
  const SafetensorsFile file(folder_ / "w");
  const at::Tensor out = at::zeros({10});
  int calls_made = 0;
  const SystemCalls calls(folder_, [&](const Call& call) {
    const bool moves_bytes = call.name == "write" || call.name == "pread";
    return moves_bytes && calls_made++ == 0 ? Answer{.bytes = 0} : Answer{};
  });
  const auto write_after_signal = [](std::ostream& stream) {
    stream << "x";
    errno = EINTR;
  };
  EXPECT_THAT(error_of([&] { write_file_atomically(folder_ / "a", write_after_signal); }),
              HasSubstr("No space left on device"));
  AppendFile rows(folder_ / "rows", AppendFile::Mode::kContinue);
  calls_made = 0;
  errno = EINTR;
  EXPECT_THAT(error_of([&] { rows.append("1\n"); }), HasSubstr("No space left on device"));
  calls_made = 0;
  errno = EINTR;
  EXPECT_THAT(error_of([&] { file.read_into("w", 0, out); }), HasSubstr("40 too early"));
}

TEST_F(SystemCallsTest, AnAppendFileThatCannotBeOpenedStaysAsItWas) {
  write(folder_ / "rows", "1\n2");
  const auto error = [&](const char* call) {
    const SystemCalls calls(folder_, failing(call, 0, EIO));
    return error_of([&] { AppendFile(folder_ / "rows", AppendFile::Mode::kContinue); });
  };
  EXPECT_THAT(error("fstat"), HasSubstr("reading its status failed: Input/output error"));
  EXPECT_THAT(error("pread"), HasSubstr("reading its end failed: Input/output error"));
  EXPECT_THAT(error("ftruncate"), HasSubstr("dropping a line without an end failed: Input/output error"));
  EXPECT_EQ(content_of(folder_ / "rows"), "1\n2");
  write(folder_ / "rows", "1\n");
  EXPECT_EQ(error("ftruncate"), "no error") << "there is nothing to drop";
}

TEST_F(SystemCallsTest, WhatHasNoStatusIsNotTakenForSomethingElse) {
  AppendFile rows(folder_ / "rows", AppendFile::Mode::kContinue);
  const auto error = [&](const auto& body) {
    const SystemCalls calls(folder_, failing("fstat", 0, EIO));
    return error_of(body);
  };
  EXPECT_THAT(error([&] { rows.append("1\n"); }), HasSubstr("reading its status failed: Input/output error"));
  EXPECT_THAT(error([&] { FolderLock lock(folder_); }),
              HasSubstr(".lock': reading its status failed: Input/output error"));
}

TEST_F(SystemCallsTest, AnAppendFileIsSyncedWhereAsked) {
  // The name of a new file is synced, its rows only by sync().
  EXPECT_THAT(synced(folder_, [&] { AppendFile(folder_ / "rows", AppendFile::Mode::kCreate).append("1\n"); }),
              ElementsAre("."));
  AppendFile rows(folder_ / "rows", AppendFile::Mode::kContinue);
  EXPECT_THAT(synced(folder_, [&] { rows.append("2\n"); }), IsEmpty());
  EXPECT_THAT(synced(folder_, [&] { rows.sync(); }), ElementsAre("rows"));
  EXPECT_THAT(synced(folder_, [&] { rows.edit_lines([](std::string& /*line*/) { return true; }); }),
              ElementsAre(".rows.tmp", "."));
  const SystemCalls calls(folder_, failing("fsync", 0, EIO));
  EXPECT_THAT(error_of([&] { rows.sync(); }), HasSubstr("syncing to the disk failed: Input/output error"));
}

TEST_F(SystemCallsTest, ReadsGoOnAfterASignalAndInPieces) {
  const at::Tensor weight = at::arange(1000);
  save_safetensors(folder_ / "w", {{"w", weight}});
  int calls_made = 0;
  const SystemCalls calls(folder_, [&](const Call& call) {
    if (call.name != "pread") return Answer{};
    return ++calls_made % 2 == 1 ? Answer{.error = EINTR} : Answer{.bytes = 2001};
  });
  EXPECT_TRUE(at::equal(load_safetensors(folder_ / "w").tensors.at("w"), weight));
  EXPECT_EQ(calls_made, 12);  // for the header's length, the header, and 8,000 bytes
}

TEST_F(SystemCallsTest, AReadThatFailsNamesTheFileAndTheByte) {
  save_safetensors(folder_ / "w", {{"w", at::arange(1000)}});
  const SafetensorsFile file(folder_ / "w");
  const auto begin = static_cast<uint64_t>(fs::file_size(folder_ / "w") - 8000);
  {
    const SystemCalls calls(folder_, failing("pread", 0, EIO));
    EXPECT_THAT(error_of([&] { file.read("w"); }),
                HasSubstr("w' at byte " + std::to_string(begin) + ": Input/output error; check the disk"));
  }
  int calls_made = 0;
  const SystemCalls calls(folder_,
                          [&](const Call&) { return Answer{.bytes = calls_made++ == 0 ? 100U : 0U}; });
  EXPECT_THAT(error_of([&] { file.read("w"); }),
              HasSubstr("it ends at byte " + std::to_string(begin + 100) + ", 7900 too early"));
}

// Files are read through the standard library's streams, too.
TEST_F(SystemCallsTest, AStreamThatFailsIsNotTakenForTheEndOfTheFile) {
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  write(folder_ / "m.safetensors.index.json", R"({"weight_map":{"w":"w"}})");
  AppendFile rows(folder_ / "rows", AppendFile::Mode::kContinue);
  rows.append("1\n2\n");
  const auto reading = [&](const char* file, const auto& body) {
    const SystemCalls calls(folder_, [&](const Call& call) {
      return call.name == "read" && call.file == file ? Answer{.error = EIO} : Answer{};
    });
    return error_of(body);
  };
  EXPECT_THAT(reading("a/manifest.json", [&] { load_checkpoint(folder_ / "a"); }),
              HasSubstr("manifest.json' cannot be read: "));
  EXPECT_THAT(reading("a/state.safetensors", [&] { load_checkpoint(folder_ / "a"); }),
              HasSubstr("state.safetensors' cannot be read: "));
  EXPECT_THAT(reading("m.safetensors.index.json", [&] { SafetensorsModel model(folder_); }),
              HasSubstr("cannot read safetensors index"));
  EXPECT_THAT(reading("rows", [&] { rows.edit_lines([](std::string& /*line*/) { return true; }); }),
              HasSubstr("reading it for a rewrite failed"));
  EXPECT_EQ(content_of(folder_ / "rows"), "1\n2\n");
}

TEST_F(SystemCallsTest, WhatIsInterruptedOrTakenIsTriedAgain) {
  {
    const SystemCalls calls(folder_, failing("open", 1, EINTR));  // the temporary file's; the folder is first
    write_file_atomically(folder_ / "a", "x");
  }
  {
    const SystemCalls calls(folder_, failing("open", 1, EEXIST));
    write_file_atomically(folder_ / "a", "y");
  }
  EXPECT_EQ(content_of(folder_ / "a"), "y");
  {
    const SystemCalls calls(folder_, failing("open", 0, EINTR));
    AppendFile(folder_ / "rows", AppendFile::Mode::kContinue).append("1\n");
  }
  EXPECT_EQ(content_of(folder_ / "rows"), "1\n");
  const SystemCalls calls(folder_, failing("mkdir", 0, EEXIST));
  save_checkpoint(folder_ / "c", a_checkpoint(1));
  EXPECT_EQ(load_checkpoint(folder_ / "c").step, 1);
}

TEST_F(SystemCallsTest, AnEventFileOfAMachineWithoutANameHasADashForIt) {
  const SystemCalls calls(folder_, failing("gethostname", 0, ENAMETOOLONG));
  const EventFileWriter file(folder_);
  EXPECT_THAT(file.path().filename().string(), MatchesRegex("events\\.out\\.tfevents\\.[0-9]+\\.-\\." +
                                                            std::to_string(::getpid()) + "\\.[0-9]+"));
}

TEST_F(SystemCallsTest, AnEventFileHasTheMachinesWholeName) {
  const auto host_in_name = [&](const Answer& answer) {
    const SystemCalls calls(folder_,
                            [&](const Call& call) { return call.name == "gethostname" ? answer : Answer{}; });
    const std::string name = EventFileWriter(folder_).path().filename().string();
    const size_t begin = name.find('.', std::string("events.out.tfevents.").size()) + 1;
    return name.substr(begin, name.find("." + std::to_string(::getpid()) + ".", begin) - begin);
  };
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size()), 0);
  EXPECT_EQ(host_in_name({}), host.data());
  EXPECT_EQ(host_in_name({.bytes = 2}), std::string(1, host[0])) << "one letter and the zero byte";
  EXPECT_EQ(host_in_name({.bytes = 1}), "-") << "it is empty";
}

TEST_F(SystemCallsTest, AModelOfSeveralFilesThatCannotBeSyncedLeavesNothing) {
  SafetensorsHeader header;
  for (const char* name : {"a", "b"}) header.tensors[name] = {at::kByte, {1}, 0, 0};
  const auto write_model = [&] {
    write_safetensors_files(
        lay_out_safetensors(folder_ / "net", header, 1),
        [](const std::string& /*name*/, const TakeElements& take) { take(at::ones({1}, at::kByte)); });
  };
  const auto files = static_cast<int>(synced(folder_, write_model).size());
  EXPECT_GE(files, 6) << "two shards and the index, and the folder after each";
  fs::remove_all(folder_ / "net");
  for (int number = 0; number < files; ++number) {
    const SystemCalls calls(folder_, failing("fsync", number, EIO));
    EXPECT_THAT(error_of(write_model), HasSubstr("Input/output error")) << number;
    EXPECT_THAT(names(), IsEmpty()) << number;
  }
}

/// Uses each reader and writer once.
void use_all(const fs::path& folder) {
  write_file_atomically(folder / "file", "x");
  {
    const FolderLock lock(folder);
    AppendFile rows(folder / "rows", AppendFile::Mode::kContinue);
    rows.append("1\n");
    rows.edit_lines([](std::string& /*line*/) { return true; });
    rows.sync();
    fs::create_directory(folder / "held");
    HeldFolder held(folder / "held");
    EXPECT_FALSE(held.is_lost());
    fs::remove(folder / "held");
    EXPECT_EQ(held.replace(), folder / "held");
    fs::remove(folder / "held");
  }
  for (const int64_t step : {1, 2}) save_checkpoint(folder / "a", a_checkpoint(step));
  EXPECT_EQ(load_newest(folder)->checkpoint.step, 2);
  EXPECT_TRUE(remove_checkpoint(folder / "a"));
  write(folder / (".file.tmp-" + std::to_string(::getpid()) + "-99999"), "left over");
  EXPECT_EQ(remove_leftovers(folder).size(), 1U);
  EXPECT_EQ(content_of(folder / "rows"), "1\n");
  fs::remove(folder / "rows");
}

// In a process that has closed its standard input, 0 is a descriptor like any other.
TEST_F(SystemCallsTest, AnyFileMayBeDescriptor0) {
  const int standard_input = ::fcntl(0, F_DUPFD_CLOEXEC, 3),
            device = ::open("/dev/null", O_RDONLY | O_CLOEXEC),
            null = ::fcntl(device, F_DUPFD_CLOEXEC, 3);  // not 0, even if this program has no standard input
  if (device > 0) ::close(device);
  int opened = 0;
  for (int number = 0; number <= opened; ++number) {
    ::dup2(null, 0);  // so that no other file becomes descriptor 0
    int count = 0;
    const SystemCalls calls(
        folder_, [&](const Call& call) { return Answer{.as_0 = call.name == "open" && count++ == number}; });
    EXPECT_EQ(error_of([&] { use_all(folder_); }), "no error") << number;
    opened = std::max(opened, count);
    EXPECT_THAT(names(), ElementsAre("file")) << number;
    EXPECT_TRUE(::fcntl(0, F_GETFD) == -1 || path_of(0) == "/dev/null")
        << "call " << number << " left it open";
  }
  EXPECT_GT(opened, 10);
  ::close(0);
  ::close(null);
  if (standard_input >= 0) ::dup2(standard_input, 0);
  ::close(standard_input);
}

TEST_F(SystemCallsTest, EveryDescriptorIsClosedAgain) {
  const auto open_now = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), {}); };
  const auto before = open_now();
  use_all(folder_);
  HeldFolder held(folder_);
  fs::rename(folder_, folder_.string() + "-moved");
  held.replace();
  EXPECT_EQ(open_now(), before + 1);
  fs::remove_all(folder_.string() + "-moved");
}

// The process's mask alone decides who may read a new file.
TEST_F(SystemCallsTest, NewFilesHaveTheUsualPermissions) {
  const mode_t before = ::umask(0);
  const FolderLock lock(folder_);
  write_file_atomically(folder_ / "file", "x");
  AppendFile rows(folder_ / "rows", AppendFile::Mode::kCreate);
  save_checkpoint(folder_ / "a", a_checkpoint(1));
  ::umask(before);
  const auto mode = [&](const char* name) {
    return static_cast<int>(fs::status(folder_ / name).permissions());
  };
  for (const char* name : {"file", "rows", ".lock", "a/manifest.json", "a/weights.safetensors"})
    EXPECT_EQ(mode(name), 0666) << name;
  EXPECT_EQ(mode("a"), 0777);
}

}  // namespace
}  // namespace mantissa::system_calls_test
