#pragma once

// at::parallel_for() for the rooms' sources. Without OpenMP it would silently run serially, so such a source
// does not compile: name it in its room's mantissa_parallel().

#include <ATen/Parallel.h>

#if AT_PARALLEL_OPENMP && !defined(_OPENMP)
#error "at::parallel_for() would run serially: name this source in its room's mantissa_parallel()"
#endif
