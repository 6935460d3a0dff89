#include <algorithm>
#include <memory>

#include "mantissa/data/images/decoder.h"
#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

/// The first byte chooses how much smaller the image may be decoded, and which part of it. The others are the file.
void image(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto choice = static_cast<unsigned char>(bytes[0]);
  const auto open = [&] { return open_image(bytes.substr(1), "f"); };
  const auto decoder = accepted(open);
  if (!decoder) return;
  const int64_t height = (*decoder)->height(), width = (*decoder)->width();
  require(height > 0 && width > 0, "an image without pixels is accepted");
  require(height <= kMaxImagePixels / width, "an image that takes all memory is accepted");
  constexpr int64_t kEnoughPixels = 1 << 20;  // a fuzzer has little time for each
  if (height > kEnoughPixels / width) return;
  const int64_t top = (choice & 1) != 0 ? height / 3 : 0, left = (choice & 2) != 0 ? width / 3 : 0;
  const CropBox box{.top = top, .left = left, .height = height - top, .width = width - left};
  const int64_t max_shrink = int64_t{1} << (choice >> 2 & 3);
  Image out;
  const auto part = accepted([&] { return (*decoder)->decode(box, max_shrink, out); });
  if (!part) return;
  require(part->shrink >= 1 && part->shrink <= max_shrink, "the image is smaller than it may be");
  require(part->top <= box.top && part->left <= box.left, "the box begins before the pixels");
  require(part->top + out.height() * part->shrink >= box.top + box.height &&
              part->left + out.width() * part->shrink >= box.left + box.width,
          "the pixels end before the box");
}

}  // namespace mantissa::fuzz
