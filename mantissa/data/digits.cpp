#include "mantissa/data/digits.h"

#include <cstdint>
#include <string_view>

#include "mantissa/data/idx.h"

// Defined by digits_embedded.S.
extern "C" {
extern const char mantissa_digits_images[], mantissa_digits_images_end[];
extern const char mantissa_digits_labels[], mantissa_digits_labels_end[];
}

namespace mantissa {

std::shared_ptr<const TensorDataset> load_digits() {
  // Subtracts integers: for the compiler the two symbols are different objects, whose difference is
  // undefined.
  const auto between = [](const char* begin, const char* end) {
    return std::string_view(begin, reinterpret_cast<uintptr_t>(end) - reinterpret_cast<uintptr_t>(begin));
  };
  return make_idx_dataset(
      parse_idx(between(mantissa_digits_images, mantissa_digits_images_end), "the embedded digits' images"),
      parse_idx(between(mantissa_digits_labels, mantissa_digits_labels_end), "the embedded digits' labels"),
      "the embedded digits");
}

}  // namespace mantissa
