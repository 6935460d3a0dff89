#include "mantissa/data/images/packed_images.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <ostream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/data/images/codecs_internal.h"
#include "mantissa/data/images/decoder.h"
#include "mantissa/data/images/resize.h"
#include "mantissa/io/atomic_file.h"

namespace mantissa {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "packed images are mapped as they are");

namespace {

constexpr std::array<char, 8> kPackMagic{'M', 'N', 'T', 'S', 'P', 'A', 'K', '1'};

/// The end of the file says where everything is.
struct PackFooter {
  uint64_t table, images, names, names_size;
  std::array<char, 8> magic;
};
static_assert(sizeof(PackFooter) == 40);

struct Mapping {
  std::shared_ptr<const char> bytes;
  uint64_t size;
};

Mapping map_pack(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    TORCH_CHECK(false, "cannot read '", path, "': ", why, "; check the path and its permissions");
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) refuse(std::generic_category().message(errno));
  struct Closer {
    int file;
    ~Closer() { ::close(file); }
  } const closer{file};
  struct stat status {};
  if (::fstat(file, &status) != 0) refuse(std::generic_category().message(errno));
  if (!S_ISREG(status.st_mode)) refuse("it is not a regular file");
  const auto size = static_cast<size_t>(status.st_size);
  TORCH_CHECK_VALUE(size >= sizeof(PackFooter), "'", path, "' is no file of packed images, but ", size,
                    " bytes; write one with 'mantissa pack'");
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) refuse(std::generic_category().message(errno));
  return {std::shared_ptr<const char>(static_cast<const char*>(at),
                                      [size](const char* p) { ::munmap(const_cast<char*>(p), size); }),
          size};
}

bool lies_within(uint64_t begin, uint64_t size, uint64_t end) { return begin <= end && size <= end - begin; }

/// Encodes the image as `options` say, or returns the bytes as they are, where nothing changes.
std::string pack_image(std::string_view bytes, const std::string& name, const PackOptions& options,
                       ImageResizer& resizer) {
  const auto decoder = open_image(bytes, name);
  const int64_t height = decoder->height(), width = decoder->width(), shorter = std::min(height, width);
  Image image;
  decoder->decode({0, 0, height, width}, 1, image);
  if (options.shorter_side > 0 && shorter > options.shorter_side) {
    const int64_t h = std::max<int64_t>(height * options.shorter_side / shorter, 1);
    const int64_t w = std::max<int64_t>(width * options.shorter_side / shorter, 1);
    Image reduced;
    resizer.resize(image,
                   {{0, 0, static_cast<double>(height), static_cast<double>(width)},
                    h,
                    w,
                    {0, 0, h, w},
                    filters_columns_first(height, width, h, w)},
                   reduced);
    image = std::move(reduced);
  }
  return options.jpeg_quality > 0 ? encode_jpeg(image, options.jpeg_quality, name) : encode_raw(image);
}

void write_bytes(std::ostream& out, const void* bytes, size_t size) {
  out.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
}

}  // namespace

PackedImages::PackedImages(const fs::path& path) : path_(path.string()) {
  Mapping mapping = map_pack(path_);
  bytes_ = std::move(mapping.bytes);
  PackFooter footer{};
  const uint64_t end = mapping.size - sizeof footer;
  std::memcpy(&footer, bytes_.get() + end, sizeof footer);
  TORCH_CHECK_VALUE(footer.magic == kPackMagic, "'", path_,
                    "' is no file of packed images, or is truncated; write one with 'mantissa pack'");
  const auto check = [&](bool holds) {
    TORCH_CHECK_VALUE(holds, "the table of the packed images '", path_,
                      "' does not fit the file; write it again with 'mantissa pack'");
  };
  check(footer.images > 0 && footer.images <= end / sizeof(Entry) &&
        lies_within(footer.table, footer.images * sizeof(Entry), end) &&
        lies_within(footer.names, footer.names_size, end));
  entries_.resize(footer.images);
  std::memcpy(entries_.data(), bytes_.get() + footer.table, footer.images * sizeof(Entry));
  const auto names =
      nlohmann::json::parse(bytes_.get() + footer.names, bytes_.get() + footer.names + footer.names_size,
                            nullptr, /*allow_exceptions=*/false);
  const auto read_names = [&](const char* key, std::vector<std::string>& to) {
    check(names.is_object() && names.contains(key) && names[key].is_array());
    for (const auto& name : names[key]) {
      check(name.is_string());
      to.push_back(name.get<std::string>());
    }
  };
  read_names("classes", classes_);
  read_names("names", names_);
  check(names_.size() == entries_.size());
  for (const Entry& entry : entries_)
    check(lies_within(entry.begin, entry.size, end) && entry.label >= 0 &&
          entry.label < std::ssize(classes_));
}

std::string PackedImages::name(int64_t index) const {
  return path_ + ":" + names_[static_cast<size_t>(index)];
}

std::string_view PackedImages::read(int64_t index, std::string& /*buffer*/) const {
  const Entry& entry = entries_[static_cast<size_t>(index)];
  return {bytes_.get() + entry.begin, entry.size};
}

PackSummary pack_images(const ImageSource& source, const fs::path& path, const PackOptions& options) {
  TORCH_CHECK_VALUE(options.shorter_side >= 0, "pack_images: shorter_side ", options.shorter_side,
                    " is negative; give 0 to keep the size, or pixels");
  TORCH_CHECK_VALUE(options.jpeg_quality >= 0 && options.jpeg_quality <= 100, "pack_images: jpeg_quality ",
                    options.jpeg_quality, " is out of range; give 1 to 100, or 0 for raw pixels");
  struct Entry {
    uint64_t begin, size;
    int64_t label;
  };
  PackSummary summary;
  write_file_atomically(path, [&](std::ostream& out) {
    summary = {};
    std::vector<Entry> entries;
    nlohmann::json names{{"classes", source.classes()}, {"names", nlohmann::json::array()}};
    ImageResizer resizer;
    std::string buffer;
    uint64_t at = 0;
    const auto write = [&](const void* bytes, uint64_t size) {
      write_bytes(out, bytes, size);
      at += size;
    };
    for (int64_t i = 0; i < source.size(); ++i) {
      std::string packed;
      try {
        packed = pack_image(source.read(i, buffer), source.name(i), options, resizer);
      } catch (const c10::Error& error) {
        if (!options.skip) throw;
        options.skip(error.what_without_backtrace());
        ++summary.skipped;
        continue;
      }
      entries.push_back({at, packed.size(), source.label(i)});
      names["names"].push_back(source.name(i));
      write(packed.data(), packed.size());
    }
    TORCH_CHECK_VALUE(!entries.empty(), "pack_images: none of the ", source.size(),
                      " images can be decoded; give other files");
    PackFooter footer{at, entries.size(), 0, 0, kPackMagic};
    write(entries.data(), entries.size() * sizeof(Entry));
    const std::string text = names.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    footer.names = at;
    footer.names_size = text.size();
    write(text.data(), text.size());
    write(&footer, sizeof footer);
    summary.images = std::ssize(entries);
    summary.bytes = at;
  });
  return summary;
}

}  // namespace mantissa
