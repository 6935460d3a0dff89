#pragma once

namespace mantissa::cli {

/// From now on, warnings of this thread, of Mantissa's other threads and of child processes are one line,
/// "mantissa: warning: ...", without the source's file and line. Each text is printed once.
void print_warnings_plainly();

}  // namespace mantissa::cli
