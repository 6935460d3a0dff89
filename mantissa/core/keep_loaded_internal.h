#pragma once

namespace mantissa {

/// Keeps the shared object that holds `code` in the process until it ends: dlclose() no longer unloads it.
/// Use it for code that may be called after a plug-in is closed, by the dispatcher or by a thread of its own.
///
/// Errors: c10::Error if the loader does not know the object or cannot keep it. The message begins with
///         `what`.
void keep_loaded(const void* code, const char* what);

}  // namespace mantissa
