#pragma once

namespace mantissa::cli {

/// From now on a warning of this thread, of Mantissa's other threads and of child processes is one line,
/// "mantissa: warning: ...", without the source's file and line, and each text comes once.
void print_warnings_plainly();

}  // namespace mantissa::cli
