#include <array>
#include <cstring>

#include <c10/util/Exception.h>

#include "mantissa/data/images/codecs_internal.h"

namespace mantissa {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kRawMagic = "MNTSRAW\0"sv;

struct RawHeader {
  std::array<char, 8> magic;
  uint32_t height, width;
};
static_assert(sizeof(RawHeader) == 16);

/// Pixels as they are, so that decoding copies the rows of the crop.
class RawDecoder final : public ImageDecoder {
 public:
  RawDecoder(std::string_view bytes, const std::string& name) {
    RawHeader header{};
    TORCH_CHECK_VALUE(bytes.size() >= sizeof header, name,
                      ": the header of a packed image is truncated after ", bytes.size(), " of ",
                      sizeof header, " bytes; pack the images again");
    std::memcpy(&header, bytes.data(), sizeof header);
    height_ = header.height;
    width_ = header.width;
    check_image_size(height_, width_, name);
    const size_t needed = sizeof header + static_cast<size_t>(height_ * width_ * 3);
    TORCH_CHECK_VALUE(bytes.size() == needed, name, ": a packed image of ", height_, " x ", width_, " takes ",
                      needed, " bytes, but it has ", bytes.size(), "; pack the images again");
    pixels_ = bytes.substr(sizeof header);
  }

  DecodedPart decode(const CropBox& box, int64_t /*max_shrink*/, Image& out) override {
    out.reshape(box.height, box.width);
    for (int64_t y = 0; y < box.height; ++y)
      std::memcpy(out.row(y), pixels_.data() + ((box.top + y) * width_ + box.left) * 3,
                  static_cast<size_t>(out.row_bytes()));
    return {box.top, box.left, 1};
  }

 private:
  std::string_view pixels_;
};

}  // namespace

const ImageCodec kRawCodec{
    kRawMagic, [](std::string_view bytes, const std::string& name) -> std::unique_ptr<ImageDecoder> {
      return std::make_unique<RawDecoder>(bytes, name);
    }};

std::string encode_raw(const Image& image) {
  RawHeader header{{}, static_cast<uint32_t>(image.height()), static_cast<uint32_t>(image.width())};
  std::memcpy(header.magic.data(), kRawMagic.data(), header.magic.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  return bytes.append(reinterpret_cast<const char*>(image.data()), static_cast<size_t>(image.bytes()));
}

}  // namespace mantissa
