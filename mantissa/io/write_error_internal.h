#pragma once

#include <filesystem>

namespace mantissa {

/// "cannot write 'PATH': DOING failed: the system's reason; the cure", as a c10::Error. `error` is an errno.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, const char* doing, int error);

}  // namespace mantissa
