#pragma once

#include <memory>

#include "mantissa/data/dataset.h"

namespace mantissa {

/// Returns 1,797 handwritten digits of 8 x 8 pixels. They are part of the library, so a first run needs no
/// download.
///
/// Shapes:  data float32 [1797, 1, 8, 8] from 0 to 1; target int64 [1797] from 0 to 9.
/// Source:  E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998, CC BY 4.0; see
///          digits/README.md.
std::shared_ptr<const TensorDataset> load_digits();

}  // namespace mantissa
