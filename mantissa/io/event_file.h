#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "mantissa/io/append_file.h"

namespace mantissa {

/// One record of a TensorBoard event file, with the fields that Mantissa writes. A record holds
/// `file_version`, or `restarts`, or any of the other fields.
/// Texts and names must be UTF-8; otherwise TensorBoard refuses the whole record.
struct Event {
  using HParam = std::variant<bool, double, std::string>;

  double wall_time = 0;  ///< seconds since 1970
  int64_t step = 0;
  std::string file_version = {};  ///< "brain.Event:2", in the first record of a file
  bool restarts = false;          ///< values of `step` and later in the folder's earlier files are void
  std::vector<std::pair<std::string, float>> scalars = {};
  std::vector<std::pair<std::string, std::string>> texts = {};  ///< Markdown
  std::optional<std::map<std::string, HParam>> hparams = {};    ///< begins a session of the HParams dashboard
  std::optional<bool> succeeded = {};                           ///< ends that session

  bool operator==(const Event&) const = default;
};

/// Returns the bytes of `event` in a file: the length, its checksum, the message, its checksum.
std::string event_record(const Event& event);

/// The contents of an event file.
struct EventFile {
  std::vector<Event> events;
  bool is_cut = false;  ///< the last record is incomplete: its writer is still at work, or was killed
};

/// Parses the bytes of an event file from any program. Images, histograms and the like are skipped.
/// Memory: that of the values; lengths are checked against `bytes` before anything is allocated.
/// Errors: c10::ValueError with the offset of a record with a wrong checksum, or of a record that is no
///         event.
EventFile parse_events(std::string_view bytes);

/// Writes a new TensorBoard event file, `events.out.tfevents.TIME.HOST.PID.N`, with its version record.
///
/// A folder may hold several event files of several runs; TensorBoard reads them in the order of their names.
/// Errors: those of AppendFile.
/// Source: TFRecord, https://www.tensorflow.org/tutorials/load_data/tfrecord, section "TFRecords format
///         details"; tensorboard/compat/proto/event.proto.
/// Example: event_file_test.cpp, EventFile.KeepsEveryField; read by tensorboard itself in
///          tests/parity/test_loggers.py.
class EventFileWriter {
 public:
  explicit EventFileWriter(const std::filesystem::path& folder);

  /// Passes the records to the system, in one piece.
  void write(std::span<const Event> events);
  /// Waits until the records are on the disk.
  void sync() { file_.sync(); }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace mantissa
