#pragma once

// The part of keep_in_fp32.h that Autocast needs.
namespace mantissa::kept_weights {

/// Lets this thread's operations look for kept weights until end_watch(). Returns false, with nothing to end,
/// if no weight is kept or the thread watches already. May throw std::bad_alloc, before anything is changed.
bool begin_watch();
void end_watch();

}  // namespace mantissa::kept_weights
