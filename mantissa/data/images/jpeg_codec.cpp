#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <jerror.h>
#include <jpeglib.h>  // after cstdio, which it needs
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/data/images/codecs_internal.h"

namespace mantissa {
namespace {

using namespace std::string_view_literals;

/// libjpeg's errors jump back to the last setjmp(). No object with a destructor may be made after it.
struct JpegErrors : jpeg_error_mgr {
  std::jmp_buf back = {};
  char text[JMSG_LENGTH_MAX] = {};  ///< the error, or the warning that the data are cut off or corrupt

  static JpegErrors& of(j_common_ptr codec) { return *static_cast<JpegErrors*>(codec->err); }

  [[noreturn]] static void on_error(j_common_ptr codec) {
    JpegErrors& errors = of(codec);
    errors.format_message(codec, errors.text);
    std::longjmp(errors.back, 1);
  }
  /// libjpeg makes up pixels where data are missing, and warns. A warning about bytes between segments is harmless.
  static void on_message(j_common_ptr codec, int level) {
    JpegErrors& errors = of(codec);
    if (level >= 0 || errors.msg_code == JWRN_EXTRANEOUS_DATA || errors.msg_code == JWRN_JFIF_MAJOR ||
        errors.msg_code == JWRN_ADOBE_XFORM)
      return;
    on_error(codec);
  }
  /// A malicious progressive file may have thousands of scans of a few bytes each, and each costs a pass over all pixels.
  static void on_progress(j_common_ptr codec) {
    constexpr int kMaxScans = 500;  // encoders write about ten
    if (reinterpret_cast<j_decompress_ptr>(codec)->input_scan_number <= kMaxScans) return;
    JpegErrors& errors = of(codec);
    std::snprintf(errors.text, sizeof errors.text, "it has more than %d scans", kMaxScans);
    std::longjmp(errors.back, 1);
  }
  static void ignore(j_common_ptr /*codec*/) {}

  JpegErrors() : jpeg_error_mgr() {
    jpeg_std_error(this);
    error_exit = on_error;
    emit_message = on_message;
    output_message = ignore;
  }
};

/// The inks are stored as their complement, as Adobe's programs do and Pillow assumes.
void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    const int light = cmyk[3];
    for (int channel = 0; channel < 3; ++channel) {
      const int product = (255 - cmyk[channel]) * light + 128;  // divided by 255 and rounded
      rgb[channel] = static_cast<uint8_t>(light - ((product + (product >> 8)) >> 8));
    }
  }
}

/// Returns the largest reduction that libjpeg-turbo has vector code for.
int64_t shrink_within(int64_t most) { return most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1; }

class JpegDecoder final : public ImageDecoder {
 public:
  JpegDecoder(std::string_view bytes, std::string name) : name_(std::move(name)) {
    codec_.err = &errors_;
    if (setjmp(errors_.back) != 0) {
      jpeg_destroy_decompress(&codec_);
      refuse();
    }
    jpeg_create_decompress(&codec_);
    jpeg_mem_src(&codec_, reinterpret_cast<const unsigned char*>(bytes.data()),
                 static_cast<unsigned long>(bytes.size()));
    progress_.progress_monitor = JpegErrors::on_progress;
    codec_.progress = &progress_;
    jpeg_read_header(&codec_, TRUE);
    height_ = codec_.image_height;
    width_ = codec_.image_width;
  }
  ~JpegDecoder() override { jpeg_destroy_decompress(&codec_); }

  DecodedPart decode(const CropBox& box, int64_t max_shrink, Image& out) override {
    const int64_t shrink = shrink_within(max_shrink);
    const int64_t top = box.top / shrink, left = box.left / shrink;
    const int64_t height = (box.top + box.height + shrink - 1) / shrink - top;
    const int64_t width = (box.left + box.width + shrink - 1) / shrink - left;
    out.reshape(height, width);
    if (!decode_part(shrink, {top, left, height, width}, out)) refuse();
    return {top * shrink, left * shrink, shrink};
  }

 private:
  [[noreturn]] void refuse() const {
    TORCH_CHECK_VALUE(false, name_, ": the JPEG data are truncated or corrupt (", errors_.text,
                      "); get the file again from its source");
  }

  /// Returns false for an error. Has no object with a destructor, because libjpeg's errors jump over them.
  bool decode_part(int64_t shrink, CropBox part, Image& out) {
    if (setjmp(errors_.back) != 0) return false;
    const bool inks = codec_.num_components == 4;
    codec_.scale_num = 1;
    codec_.scale_denom = static_cast<unsigned>(shrink);
    codec_.out_color_space = inks ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&codec_);
    // Chroma is interpolated from neighbouring columns. A margin is decoded, so that columns at the edge of the part equal those
    // of a whole image.
    constexpr int64_t kMargin = 2;
    const int64_t begin = std::max<int64_t>(part.left - kMargin, 0);
    const int64_t end = std::min<int64_t>(part.left + part.width + kMargin, codec_.output_width);
    auto from = static_cast<JDIMENSION>(begin);
    auto columns = static_cast<JDIMENSION>(end - begin);
    if (columns < codec_.output_width) jpeg_crop_scanline(&codec_, &from, &columns);
    const int channels = codec_.output_components;
    auto* const row = static_cast<JSAMPLE*>(
        (*codec_.mem->alloc_large)(reinterpret_cast<j_common_ptr>(&codec_), JPOOL_IMAGE,
                                   size_t{codec_.output_width} * static_cast<size_t>(channels)));
    if (part.top > 0) jpeg_skip_scanlines(&codec_, static_cast<JDIMENSION>(part.top));
    for (int64_t y = 0; y < part.height; ++y) {
      JSAMPROW rows[1] = {row};
      jpeg_read_scanlines(&codec_, rows, 1);
      const uint8_t* first = row + (part.left - from) * channels;
      if (inks)
        cmyk_to_rgb(first, part.width, out.row(y));
      else
        std::memcpy(out.row(y), first, static_cast<size_t>(out.row_bytes()));
    }
    jpeg_abort_decompress(&codec_);
    return true;
  }

  std::string name_;
  JpegErrors errors_;
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct codec_{};
};

}  // namespace

const ImageCodec kJpegCodec{
    "\xFF\xD8\xFF"sv, [](std::string_view bytes, const std::string& name) -> std::unique_ptr<ImageDecoder> {
      auto decoder = std::make_unique<JpegDecoder>(bytes, name);
      check_image_size(decoder->height(), decoder->width(), name);
      return decoder;
    }};

namespace {

/// Returns false for an error. Has no object with a destructor, because libjpeg's errors jump over them.
bool compress(const Image& image, int64_t quality, JpegErrors& errors, unsigned char** bytes,
              unsigned long* size) {
  jpeg_compress_struct codec{};
  codec.err = &errors;
  if (setjmp(errors.back) != 0) {
    jpeg_destroy_compress(&codec);
    return false;
  }
  jpeg_create_compress(&codec);
  jpeg_mem_dest(&codec, bytes, size);
  codec.image_height = static_cast<JDIMENSION>(image.height());
  codec.image_width = static_cast<JDIMENSION>(image.width());
  codec.input_components = 3;
  codec.in_color_space = JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, static_cast<int>(quality), TRUE);
  jpeg_start_compress(&codec, TRUE);
  while (codec.next_scanline < codec.image_height) {
    JSAMPROW rows[1] = {const_cast<JSAMPROW>(image.row(codec.next_scanline))};
    jpeg_write_scanlines(&codec, rows, 1);
  }
  jpeg_finish_compress(&codec);
  jpeg_destroy_compress(&codec);
  return true;
}

}  // namespace

std::string encode_jpeg(const Image& image, int64_t quality, const std::string& name) {
  JpegErrors errors;
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const bool made = compress(image, quality, errors, &bytes, &size);
  std::string text(reinterpret_cast<const char*>(bytes), made ? size : 0);
  std::free(bytes);
  TORCH_CHECK_VALUE(made, name, ": cannot be written as JPEG (", errors.text,
                    "); reduce it, or store raw pixels");
  return text;
}

}  // namespace mantissa
