#include <bit>
#include <cmath>

#include "mantissa/io/event_file.h"
#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {
namespace {

/// Like Event's ==, but compares numbers by their bits: a loss of nan must be preserved.
bool same(Event a, Event b) {
  const auto take_bits = [](Event& event) {
    std::vector<uint64_t> bits{std::bit_cast<uint64_t>(std::exchange(event.wall_time, 0))};
    for (auto& [tag, scalar] : event.scalars)
      bits.push_back(std::bit_cast<uint32_t>(std::exchange(scalar, 0.0F)));
    if (!event.hparams) return bits;
    for (auto& [name, param] : *event.hparams)
      if (auto* number = std::get_if<double>(&param))
        bits.push_back(std::bit_cast<uint64_t>(std::exchange(*number, 0)));
    return bits;
  };
  return take_bits(a) == take_bits(b) && a == b;
}

}  // namespace

void events(std::string_view bytes) {
  const auto file = accepted([&] { return parse_events(bytes); });
  if (!file) return;
  std::string records;
  for (const Event& event : file->events) records += event_record(event);
  const EventFile again = parse_events(records);
  require(!again.is_cut && again.events.size() == file->events.size(), "another number of events");
  for (size_t i = 0; i < file->events.size(); ++i)
    require(same(again.events[i], file->events[i]), "another event " + std::to_string(i));
}

}  // namespace mantissa::fuzz
