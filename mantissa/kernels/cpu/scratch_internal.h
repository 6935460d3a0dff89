#pragma once

#include <cstdint>

namespace mantissa::kernels::cpu {

/// This thread's working memory for kernels: at least `floats` of them, 64-byte aligned, undefined. The next
/// call may move it. It grows with the largest request and is kept until the thread ends.
///
/// Errors: std::bad_alloc.
float* thread_scratch(int64_t floats);

/// The same, apart from it: what this thread shares with those that work for it.
float* shared_scratch(int64_t floats);

}  // namespace mantissa::kernels::cpu
