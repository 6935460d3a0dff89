#include "mantissa/io/event_file.h"

#include <atomic>
#include <chrono>
#include <limits>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "mantissa/io/crc32c.h"
#include "mantissa/io/event_codec_internal.h"

namespace mantissa {
namespace {

constexpr size_t kLengthBytes = 8, kChecksumBytes = 4;

/// TFRecord's masked checksum, so that checksums of data that contain checksums still work.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

template <typename T>
void put(std::string& out, T value) {
  for (size_t byte = 0; byte < sizeof(T); ++byte) out += static_cast<char>(value >> 8 * byte);
}

template <typename T>
T get(std::string_view bytes, size_t at) {
  T value = 0;
  for (size_t byte = 0; byte < sizeof(T); ++byte)
    value |= static_cast<T>(static_cast<uint8_t>(bytes[at + byte])) << 8 * byte;
  return value;
}

std::filesystem::path new_file_name() {
  static std::atomic<int> count{0};
  char host[256] = {};
  if (::gethostname(host, sizeof host) != 0 || host[0] == '\0') host[0] = '-';
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  return "events.out.tfevents." + std::to_string(seconds) + "." + host + "." + std::to_string(::getpid()) +
         "." + std::to_string(count++);
}

}  // namespace

std::string event_record(const Event& event) {
  const std::string message = encode_event(event);
  std::string record;
  put(record, static_cast<uint64_t>(message.size()));
  put(record, masked_crc(record));
  record += message;
  put(record, masked_crc(message));
  return record;
}

EventFile parse_events(std::string_view bytes) {
  EventFile file;
  for (size_t at = 0; at < bytes.size();) {
    const auto check = [&](bool is_right, const char* wrong) {
      TORCH_CHECK_VALUE(is_right, "parse_events: the record at byte ", at, " ", wrong,
                        "; the file is damaged or no TensorBoard event file");
    };
    const std::string_view rest = bytes.substr(at);
    constexpr size_t kFrameBytes = kLengthBytes + 2 * kChecksumBytes;
    if (rest.size() >= kLengthBytes + kChecksumBytes)
      check(get<uint32_t>(rest, kLengthBytes) == masked_crc(rest.substr(0, kLengthBytes)),
            "has a length whose checksum is wrong");
    const uint64_t length = rest.size() < kFrameBytes ? 0 : get<uint64_t>(rest, 0);
    if (rest.size() < kFrameBytes || length > rest.size() - kFrameBytes) {
      file.is_cut = true;
      break;
    }
    const std::string_view message = rest.substr(kLengthBytes + kChecksumBytes, length);
    check(get<uint32_t>(rest, kLengthBytes + kChecksumBytes + length) == masked_crc(message),
          "has a wrong checksum");
    check(length <= std::numeric_limits<int>::max(), "is longer than a protobuf message can be");
    std::optional<Event> event = decode_event(message);
    check(event.has_value(), "holds no event");
    file.events.push_back(*std::move(event));
    at += kFrameBytes + length;
  }
  return file;
}

EventFileWriter::EventFileWriter(const std::filesystem::path& folder)
    : file_(folder / new_file_name(), AppendFile::Mode::kCreate) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const Event version{.wall_time = now.count(), .file_version = "brain.Event:2"};
  write({&version, 1});
}

void EventFileWriter::write(std::span<const Event> events) {
  std::string records;
  for (const Event& event : events) records += event_record(event);
  file_.append(records);
}

}  // namespace mantissa
