#include "mantissa/data/idx.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>
#include <zlib.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace mantissa {
namespace {

/// Type codes of the format's third byte.
constexpr std::array<std::pair<uint8_t, at::ScalarType>, 6> kElementTypes{{
    {0x08, at::kByte},
    {0x09, at::kChar},
    {0x0B, at::kShort},
    {0x0C, at::kInt},
    {0x0D, at::kFloat},
    {0x0E, at::kDouble},
}};

constexpr uint64_t kMaxElements = (uint64_t{1} << 31) - 1;
constexpr int kMaxDimensions = 8;
/// deflate's highest ratio: 258 bytes from 2 bits, so a file of n bytes unpacks to less than 1,033 n.
constexpr uint64_t kMaxGzipRatio = 1033;

/// The source of the bytes.
class Source {
 public:
  virtual ~Source() = default;
  /// Reads up to `n` bytes; fewer only at the end.
  virtual uint64_t read(void* out, uint64_t n) = 0;
};

class MemorySource final : public Source {
 public:
  explicit MemorySource(std::string_view bytes) : rest_(bytes) {}
  uint64_t read(void* out, uint64_t n) override {
    n = std::min<uint64_t>(n, rest_.size());
    if (n > 0) std::memcpy(out, rest_.data(), n);
    rest_.remove_prefix(n);
    return n;
  }

 private:
  std::string_view rest_;
};

/// Returns an error of zlib without the number that stands for the file there: "<fd:3>: unexpected end of file".
std::string_view without_place(std::string_view why) {
  constexpr std::string_view kSeparator = ": ";
  const size_t end = why.starts_with("<fd:") ? why.find(kSeparator) : std::string_view::npos;
  return end == std::string_view::npos ? why : why.substr(end + kSeparator.size());
}

/// Reads plain and gzip files: zlib passes data through that do not begin as gzip.
class FileSource final : public Source {
 public:
  FileSource(int fd, std::string name) : file_(gzdopen(fd, "rb")), name_(std::move(name)) {
    if (!file_) ::close(fd);
    TORCH_CHECK(file_, "cannot read IDX file '", name_, "': out of memory; free some");
  }
  ~FileSource() override { gzclose(file_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  uint64_t read(void* out, uint64_t n) override {
    uint64_t done = 0;
    while (done < n) {
      const auto want = static_cast<unsigned>(std::min<uint64_t>(n - done, uint64_t{1} << 30));
      const int got = gzread(file_, static_cast<char*>(out) + done, want);
      int code = Z_OK;
      const char* why = gzerror(file_, &code);
      TORCH_CHECK(code != Z_ERRNO, "cannot read IDX file '", name_,
                  "': ", std::generic_category().message(errno), "; check the disk");
      TORCH_CHECK_VALUE(got >= 0 && code != Z_BUF_ERROR, "IDX file '", name_, "': its gzip stream is ",
                        code == Z_BUF_ERROR ? "truncated" : "corrupt", " (", without_place(why), ") after ",
                        done + static_cast<uint64_t>(std::max(got, 0)), " of ", n,
                        " unpacked bytes; get the file again from its source");
      if (got == 0) break;
      done += static_cast<uint64_t>(got);
    }
    return done;
  }

 private:
  gzFile file_;
  std::string name_;
};

void from_big_endian(const at::Tensor& tensor) {
  if constexpr (std::endian::native == std::endian::big) return;
  const auto size = static_cast<size_t>(tensor.element_size());
  if (size == 1) return;
  auto* bytes = static_cast<char*>(tensor.mutable_data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i, bytes += size) std::reverse(bytes, bytes + size);
}

/// `max_bytes`: the most that `source` can hold.
at::Tensor read(Source& source, uint64_t max_bytes, const std::string& name) {
  std::array<uint8_t, 4> magic{};
  const uint64_t found = source.read(magic.data(), magic.size());
  TORCH_CHECK_VALUE(found == magic.size(), "IDX file '", name,
                    "': truncated: 4 bytes of magic number expected, ", found,
                    " found; get the file again from its source");
  const auto* type = std::find_if(kElementTypes.begin(), kElementTypes.end(),
                                  [&](const auto& t) { return t.first == magic[2]; });
  TORCH_CHECK_VALUE(
      magic[0] == 0 && magic[1] == 0 && type != kElementTypes.end() && magic[3] >= 1 &&
          magic[3] <= kMaxDimensions,
      "IDX file '", name, "': wrong magic number, bytes ", int(magic[0]), " ", int(magic[1]), " ",
      int(magic[2]), " ", int(magic[3]),
      "; an IDX file begins with 0 0, a type code from 8 to 14 and 1 to 8 dimensions: check the path");

  std::vector<int64_t> shape(magic[3]);
  uint64_t elements = 1,
           product = 1;  // `product` passes over zeros, which would hide an absurd size behind them
  for (size_t i = 0; i < shape.size(); ++i) {
    std::array<uint8_t, 4> size{};
    const uint64_t got = source.read(size.data(), size.size());
    TORCH_CHECK_VALUE(got == size.size(), "IDX file '", name, "': truncated: a header of ",
                      4 + 4 * shape.size(), " bytes expected, ", 4 + 4 * i + got,
                      " found; get the file again from its source");
    const uint32_t n = uint32_t{size[0]} << 24 | uint32_t{size[1]} << 16 | uint32_t{size[2]} << 8 | size[3];
    shape[i] = n;
    elements *= n;
    product *= std::max<uint64_t>(n, 1);  // no overflow: below 2^31 before, times below 2^32
    TORCH_CHECK_VALUE(product <= kMaxElements, "IDX file '", name, "': its header promises over ",
                      kMaxElements, " elements, ", product, " up to dimension ", i + 1,
                      "; split the set, or get the file again if it should be smaller");
  }
  const uint64_t header = 4 + 4 * shape.size();
  const uint64_t bytes = elements * c10::elementSize(type->second);
  TORCH_CHECK_VALUE(bytes <= max_bytes - std::min(header, max_bytes), "IDX file '", name,
                    "': truncated: ", header + bytes, " bytes expected by its header of shape ",
                    at::IntArrayRef(shape), ", at most ", max_bytes,
                    " found; get the file again from its source");

  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(type->second).device(at::kCPU));
  const uint64_t got = bytes == 0 ? 0 : source.read(tensor.mutable_data_ptr(), bytes);
  TORCH_CHECK_VALUE(got == bytes, "IDX file '", name, "': truncated: ", header + bytes, " bytes expected, ",
                    header + got, " found; get the file again from its source");
  char extra = 0;  // also makes zlib verify the checksum at the end of the stream
  TORCH_CHECK_VALUE(source.read(&extra, 1) == 0, "IDX file '", name, "': it has data after the ",
                    header + bytes, " bytes that its header of shape ", at::IntArrayRef(shape),
                    " describes; get the file again from its source");
  from_big_endian(tensor);
  return tensor;
}

}  // namespace

at::Tensor parse_idx(std::string_view bytes, const std::string& name) {
  MemorySource source(bytes);
  return read(source, bytes.size(), name);
}

at::Tensor read_idx(const std::filesystem::path& path) {
  const std::string name = path.string();
  // O_NONBLOCK, because opening a pipe would wait for a writer before the pipe could be refused.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  TORCH_CHECK(fd >= 0, "cannot open IDX file '", name, "': ", std::generic_category().message(errno),
              "; check the path and its permissions");
  FileSource source(fd, name);  // owns fd
  struct stat status {};
  TORCH_CHECK(::fstat(fd, &status) == 0 && S_ISREG(status.st_mode), "cannot read IDX file '", name,
              "': it is not a regular file; give the path of an IDX file");
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  std::array<uint8_t, 2> start{};
  const bool gzip = ::pread(fd, start.data(), 2, 0) == 2 && start[0] == 0x1f && start[1] == 0x8b;
  const uint64_t most = std::numeric_limits<uint64_t>::max() / kMaxGzipRatio;
  return read(source, gzip ? std::min(file_bytes, most) * kMaxGzipRatio : file_bytes, name);
}

}  // namespace mantissa
