#pragma once

namespace c10 {
class WarningHandler;
}

namespace mantissa {

/// Sets the handler for warnings from the threads that Mantissa starts to write checkpoints and logs and to
/// read batches. libtorch keeps a warning handler for each thread, and a new thread begins with libtorch's
/// own, which prints the source's file and line. Null, the initial value, means libtorch's own.
///
/// `handler` is borrowed until the program ends; several threads may call it at once.
void set_thread_warning_handler(c10::WarningHandler* handler);

/// Installs the chosen handler, if any, in the calling thread. Every thread of Mantissa calls it first.
void use_thread_warning_handler();

}  // namespace mantissa
