#pragma once

// The JSON object in which bitsandbytes saves what is no tensor. The room links no JSON library, so that
// programs can embed it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mantissa::quant {

struct QuantStateJson {
  std::string quant_type;  ///< "nf4"
  int64_t blocksize = 0;
  std::string dtype;  ///< "float16"
  std::vector<int64_t> shape;

  struct Nested {
    int64_t blocksize = 0;
    std::string dtype;
    double offset = 0;
    friend bool operator==(const Nested&, const Nested&) = default;
  };
  std::optional<Nested> nested;

  friend bool operator==(const QuantStateJson&, const QuantStateJson&) = default;
};

/// Returns the text as Python's json.dumps() would write it. The offset is the shortest decimal that is read
/// back as the same double.
std::string to_json(const QuantStateJson& state);

/// Reads such a text in any order and spacing.
/// Errors: c10::ValueError that begins with `what`, if the text is no such object: another or a missing key, a
///         key twice, a value of another type, a number out of range, a negative size, an escape in a string.
QuantStateJson parse_quant_state_json(std::string_view text, const std::string& what);

}  // namespace mantissa::quant
