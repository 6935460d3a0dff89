#include "mantissa/data/images/decoder.h"

#include <c10/util/Exception.h>

#include "mantissa/data/images/codecs_internal.h"

namespace mantissa {

void check_image_size(int64_t height, int64_t width, const std::string& name) {
  TORCH_CHECK_VALUE(height > 0 && width > 0, name, ": the image has no pixels, but a size of ", height, " x ",
                    width, "; get the file again from its source");
  TORCH_CHECK_VALUE(width <= kMaxImagePixels / height, name, ": the image has ", height, " x ", width,
                    " pixels, and at most ", kMaxImagePixels, " are read; reduce it first");
}

std::unique_ptr<ImageDecoder> open_image(std::string_view bytes, const std::string& name) {
  TORCH_CHECK_VALUE(!bytes.empty(), name, ": the file is empty; get it again from its source");
  for (const ImageCodec* codec : {&kJpegCodec, &kPngCodec, &kRawCodec})
    if (bytes.starts_with(codec->magic)) return codec->open(bytes, name);
  TORCH_CHECK_VALUE(
      false, name,
      ": the content is neither JPEG nor PNG, whatever the file is called; convert it to one of them");
}

}  // namespace mantissa
