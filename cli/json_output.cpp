#include "cli/json_output.h"

#include <fmt/format.h>

#include "mantissa/io/atomic_file.h"

namespace mantissa::cli {

std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

void write_json(const Json& json, const std::string& file) {
  const std::string text = dump(json) + "\n";
  if (file == "-") {
    fmt::print("{}", text);
  } else if (!file.empty()) {
    write_file_atomically(file, text);
  }
}

}  // namespace mantissa::cli
