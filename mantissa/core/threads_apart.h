#pragma once

namespace mantissa {

/// Keeps the running threads of this process on processors of their own, from this call to the process's end.
/// It is the line for the beginning of main() in a program that trains on a machine which it shares:
///
///     int main() {
///       mantissa::keep_threads_apart();
///
/// A team of threads, OpenMP's, MKL's or oneDNN's, works in step: each waits, spinning, until the last is
/// done. Beside a busy process the kernel may leave two of them on one processor, and then each such wait
/// lasts until its timer ends the spinning: a training step that takes 1 ms takes 4 to 200. This call starts
/// a thread that looks every 5 to 100 ms for running threads of this process that share a processor while
/// another has none of them, and moves one there. Nothing is bound: a thread keeps the affinity that it had,
/// and one that may run on a single processor is left alone. How many threads compute does not change, so the
/// bits do not. On a machine with idle processors the kernel separates the threads by itself, and this thread
/// finds nothing to do.
///
/// A second call does nothing. MANTISSA_KEEP_THREADS_APART=0 in the environment forbids it. A forked child
/// has no such thread.
///
/// Errors:  c10::ValueError if MANTISSA_KEEP_THREADS_APART is neither 0 nor 1. It warns if no thread can be
///          started.
/// Threads: any may call.
void keep_threads_apart();

/// Whether MANTISSA_KEEP_THREADS_APART lets keep_threads_apart() do its work.
/// Errors: c10::ValueError if it is neither 0 nor 1.
bool threads_apart_by_environment();

}  // namespace mantissa
