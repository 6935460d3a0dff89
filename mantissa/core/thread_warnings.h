#pragma once

namespace c10 {
class WarningHandler;
}

namespace mantissa {

/// Chooses what becomes of warnings from the threads that Mantissa starts: those that write checkpoints and
/// logs, and those that read batches. libtorch keeps a warning handler for each thread, and a new thread
/// begins with libtorch's own, which prints the source's file and line. Null, as at the beginning: libtorch's
/// own.
///
/// `handler` is borrowed to the end of the program and is called by several threads at once.
void set_thread_warning_handler(c10::WarningHandler* handler);

/// Gives the calling thread the handler that was chosen, if any. It is the first call of a thread of
/// Mantissa's.
void use_thread_warning_handler();

}  // namespace mantissa
