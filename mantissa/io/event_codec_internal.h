#pragma once

// The only code that sees protobuf. It is compiled without libtorch's include folder, which holds the headers
// of another protobuf (3.13) and would hide Debian's. At run time the two do not meet: libtorch_cpu does not
// export its protobuf, except for templates of the full library for its own descriptors, which the lite
// library does not have.

#include <optional>
#include <string>
#include <string_view>

#include "mantissa/io/event_file.h"

namespace mantissa {

/// Returns the protobuf message of `event`.
std::string encode_event(const Event& event);
/// Returns nothing if `message` is no event.
std::optional<Event> decode_event(std::string_view message);

}  // namespace mantissa
