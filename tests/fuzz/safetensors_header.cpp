#include "mantissa/io/safetensors_header.h"

#include <cstring>

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

void safetensors_header(std::string_view bytes) {
  uint64_t data_bytes = 0;
  if (bytes.size() < sizeof data_bytes) return;
  std::memcpy(&data_bytes, bytes.data(), sizeof data_bytes);
  bytes.remove_prefix(sizeof data_bytes);
  const auto header = accepted([&] { return parse_safetensors_header(bytes, data_bytes, "f"); });
  if (!header) return;
  uint64_t sum = 0;
  for (const auto& [name, entry] : header->tensors) sum += entry.end - entry.begin;
  require(sum == data_bytes, "the tensors do not fill the data");

  // The writer chooses a new layout of the tensors, so offsets may differ, but nothing else.
  SafetensorsHeader laid_out = *header;
  std::vector<std::string> order;
  const std::string text = make_safetensors_header(laid_out, order);
  const SafetensorsHeader again = parse_safetensors_header(text, data_bytes, "f");
  require(again.metadata == header->metadata, "other metadata");
  require(again.tensors.size() == header->tensors.size() && order.size() == header->tensors.size(),
          "another number of tensors");
  for (const auto& [name, entry] : header->tensors) {
    const SafetensorsEntry& found = again.tensors.at(name);
    require(found.dtype == entry.dtype && found.shape == entry.shape &&
                found.end - found.begin == entry.end - entry.begin,
            "another tensor '" + name + "'");
  }
}

}  // namespace mantissa::fuzz
