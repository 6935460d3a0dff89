#include "mantissa/data/cifar.h"

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

/// The first byte chooses between CIFAR-10 and CIFAR-100. The others are the file.
void cifar(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto kind = (bytes[0] & 1) != 0 ? CifarKind::kCifar100 : CifarKind::kCifar10;
  const int64_t record = kind == CifarKind::kCifar10 ? 3073 : 3074;
  const auto records = accepted([&] { return parse_cifar(bytes.substr(1), kind, "f"); });
  if (!records) return;
  require(records->images.size(0) * record + 1 == std::ssize(bytes), "another number of images");
  require(records->labels.size(0) == records->images.size(0), "another number of labels");
}

}  // namespace mantissa::fuzz
