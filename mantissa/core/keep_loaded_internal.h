#pragma once

namespace mantissa {

/// Keeps the shared object that holds `code` in the process until it ends: dlclose() no longer unloads it. It
/// is for code that others will call, the dispatcher or a thread of its own, after a plug-in is closed.
///
/// Errors: c10::Error if the loader does not know the object, or cannot keep it. `what` begins the message.
void keep_loaded(const void* code, const char* what);

}  // namespace mantissa
