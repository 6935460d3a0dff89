#pragma once

namespace mantissa {

/// Keeps the running threads of this process on different processors, from this call until the process ends.
/// Call it at the beginning of main() in a program that trains on a shared machine:
///
///     int main() {
///       mantissa::keep_threads_apart();
///
/// A team of threads (OpenMP's, MKL's or oneDNN's) works in step: each thread spins until the last one is
/// done. Beside a busy process the kernel may leave two of them on one processor; then each such wait lasts
/// until a timer interrupts the spinning, and a training step that takes 1 ms takes 4 to 200. This call
/// starts a thread that wakes every 5 to 100 ms. It looks for running threads of this process that share a
/// processor while another processor has none of them, and moves one there. No thread is bound: a thread
/// keeps its affinity, and one that may run on only one processor is left alone. The number of computing
/// threads does not change, so the results do not change. On a machine with idle processors the kernel
/// separates the threads by itself, and this thread has nothing to do.
///
/// A second call does nothing. MANTISSA_KEEP_THREADS_APART=0 in the environment disables it. A forked child
/// has no such thread.
///
/// Errors:  c10::ValueError if MANTISSA_KEEP_THREADS_APART is neither 0 nor 1. It warns if the thread cannot
///          be started.
/// Threads: any thread may call it.
void keep_threads_apart();

/// Whether MANTISSA_KEEP_THREADS_APART allows keep_threads_apart() to work.
/// Errors: c10::ValueError if it is neither 0 nor 1.
bool threads_apart_by_environment();

}  // namespace mantissa
