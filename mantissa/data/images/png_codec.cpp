#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <png.h>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/data/images/codecs_internal.h"

namespace mantissa {
namespace {

using namespace std::string_view_literals;

/// libpng's errors jump back to the last setjmp(). No object with a destructor may be made between the two.
class PngDecoder final : public ImageDecoder {
 public:
  PngDecoder(std::string_view bytes, std::string name) : name_(std::move(name)), rest_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    info_ = png_ ? png_create_info_struct(png_) : nullptr;
    if (!info_) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      TORCH_CHECK(false, name_, ": there is no memory to decode it; free some");
    }
    if (setjmp(back_) != 0) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      refuse();
    }
    png_set_read_fn(png_, this, on_read);
    png_set_user_limits(png_, 0x7FFFFFFF, 0x7FFFFFFF);  // the number of pixels is checked instead
    // Texts and profiles change no pixel, and may become a thousand times as large as they are in the file.
    constexpr auto kUnused = "tEXt\0zTXt\0iTXt\0iCCP\0eXIf\0sPLT\0"sv;
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER,
                                reinterpret_cast<png_const_bytep>(kUnused.data()),
                                static_cast<int>(kUnused.size() / 5));
    png_read_info(png_, info_);
    height_ = png_get_image_height(png_, info_);
    width_ = png_get_image_width(png_, info_);
  }
  ~PngDecoder() override { png_destroy_read_struct(&png_, &info_, nullptr); }

  DecodedPart decode(const CropBox& box, int64_t /*max_shrink*/, Image& out) override {
    // An interlaced file gives its pixels in seven passes over the whole image.
    const bool interlaced = png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE;
    if (interlaced)
      whole_.reshape(height_, width_);
    else
      whole_.reshape(1, width_);
    out.reshape(box.height, box.width);
    if (setjmp(back_) != 0) refuse();
    if (interlaced)
      decode_interlaced(box, out);
    else
      decode_rows(box, out);
    return {box.top, box.left, 1};
  }

 private:
  [[noreturn]] void refuse() const {
    TORCH_CHECK_VALUE(false, name_, ": the PNG data are truncated or corrupt (", text_,
                      "); get the file again from its source");
  }
  [[noreturn]] static void on_error(png_structp png, png_const_charp text) {
    auto* const self = static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::strncpy(self->text_, text, sizeof self->text_ - 1);
    std::longjmp(self->back_, 1);
  }
  static void on_warning(png_structp /*png*/, png_const_charp /*text*/) {}
  static void on_read(png_structp png, png_bytep to, size_t count) {
    auto* const self = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (count > self->rest_.size()) png_error(png, "the file ends too early");
    std::memcpy(to, self->rest_.data(), count);
    self->rest_.remove_prefix(count);
  }

  /// Makes every form RGB of 8 bits.
  void begin() {
    png_set_expand(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    png_set_gray_to_rgb(png_);
  }
  void decode_rows(CropBox box, Image& out) {
    begin();
    png_read_update_info(png_, info_);
    for (int64_t y = 0; y < box.top + box.height; ++y) {
      png_read_row(png_, whole_.row(0), nullptr);
      if (y >= box.top) copy(whole_.row(0), box, y, out);
    }
  }
  void decode_interlaced(CropBox box, Image& out) {
    begin();
    const int passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    for (int pass = 0; pass < passes; ++pass)
      for (int64_t y = 0; y < height_; ++y) png_read_row(png_, whole_.row(y), nullptr);
    for (int64_t y = box.top; y < box.top + box.height; ++y) copy(whole_.row(y), box, y, out);
  }
  static void copy(const uint8_t* row, CropBox box, int64_t y, Image& out) {
    std::memcpy(out.row(y - box.top), row + box.left * 3, static_cast<size_t>(out.row_bytes()));
  }

  std::string name_;
  std::string_view rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf back_ = {};
  char text_[128] = {};
  Image whole_;  ///< a row, or an interlaced image
};

}  // namespace

const ImageCodec kPngCodec{
    "\x89PNG\r\n\x1A\n"sv,
    [](std::string_view bytes, const std::string& name) -> std::unique_ptr<ImageDecoder> {
      auto decoder = std::make_unique<PngDecoder>(bytes, name);
      check_image_size(decoder->height(), decoder->width(), name);
      return decoder;
    }};

}  // namespace mantissa
