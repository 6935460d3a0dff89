#include "mantissa/fp8/fp8_autocast.h"

#include <utility>

namespace mantissa {
namespace {

thread_local Fp8AutocastOptions innermost = {.enabled = false};
thread_local bool graph_follows = false;

}  // namespace

Fp8AutocastOptions current_fp8_autocast() { return innermost; }

Fp8Autocast::Fp8Autocast(const Fp8AutocastOptions& options) : outer_(std::exchange(innermost, options)) {}

Fp8Autocast::~Fp8Autocast() { innermost = outer_; }

Fp8GraphFollows::Fp8GraphFollows() : outer_(std::exchange(graph_follows, true)) {}

Fp8GraphFollows::~Fp8GraphFollows() { graph_follows = outer_; }

bool Fp8GraphFollows::is_set() { return graph_follows; }

}  // namespace mantissa
