#pragma once

#include <cstdint>

namespace mantissa {

/// This thread's working memory: at least `bytes`, 64-byte aligned, with whatever was left in it. Kept until
/// the thread ends; the next call may move it.
void* thread_scratch(int64_t bytes);

}  // namespace mantissa
