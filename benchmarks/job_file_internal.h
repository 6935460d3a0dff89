#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

namespace mantissa {

/// Returns the exit status for wrong arguments or for --help, or -1 if argv has a single file.
inline int answer_usage(int argc, char** argv, const char* usage) {
  if (argc == 2 && argv[1][0] != '-') return -1;
  const bool is_help = argc == 2 && std::string(argv[1]) == "--help";
  std::fprintf(is_help ? stdout : stderr, "usage: %s\n", usage);
  return is_help ? 0 : 2;
}

/// Errors: c10::Error with the file's name if it cannot be read or holds no JSON.
inline nlohmann::json read_job(const char* file) {
  errno = 0;
  std::ifstream in(file);
  TORCH_CHECK(in, "'", file, "' cannot be read: ", std::strerror(errno));
  try {
    return nlohmann::json::parse(in);
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK(false, "'", file, "' is not a job: ", error.what());
  }
}

}  // namespace mantissa
