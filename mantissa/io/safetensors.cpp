#include "mantissa/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <functional>
#include <ostream>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/files_internal.h"

namespace mantissa {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");

constexpr uint64_t kHeaderLengthBytes = 8;

void check_writable(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "save_safetensors: tensor '", name, "' is undefined; leave it out");
  TORCH_CHECK_VALUE(!tensor.is_meta(), "save_safetensors: tensor '", name,
                    "' is on the meta device and has no values; materialise it first");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && tensor.has_storage(), "save_safetensors: tensor '",
                    name, "' is sparse or has no storage; convert it with to_dense() first");
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  // A conjugate or negated view keeps its flag through contiguous(), and its bytes would be those of its
  // base.
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

/// Lays out the file, which finds every error in the tensors, and returns the function that writes it.
std::function<void(std::ostream&)> writer_of(const std::map<std::string, at::Tensor>& tensors,
                                             const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  for (const auto& [name, tensor] : tensors) {
    check_writable(name, tensor);
    header.tensors[name] = {tensor.scalar_type(), tensor.sizes().vec(), 0, 0};
  }
  std::vector<std::string> order;
  std::string text = make_safetensors_header(header, order);
  return [&tensors, text = std::move(text), order = std::move(order)](std::ostream& stream) {
    write_safetensors_header(stream, text);
    for (const std::string& name : order) {
      const at::Tensor tensor = on_cpu(tensors.at(name));
      if (tensor.nbytes() == 0) continue;  // its null pointer is no source for memcpy()
      stream.write(static_cast<const char*>(tensor.const_data_ptr()), std::streamsize(tensor.nbytes()));
    }
  };
}

}  // namespace

void write_safetensors(std::ostream& stream, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  writer_of(tensors, metadata)(stream);
}

void save_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata, Links links) {
  write_file_atomically(path, writer_of(tensors, metadata), links);
}

Safetensors load_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  Safetensors loaded;
  loaded.metadata = file.metadata();
  for (const auto& [name, entry] : file.entries()) loaded.tensors.emplace(name, file.read(name));
  return loaded;
}

namespace {

/// Reads `n` bytes at `offset`, in as many calls as necessary (Linux reads at most 2 GiB at once).
void read_exactly(int fd, char* out, uint64_t n, uint64_t offset, const std::string& file) {
  while (n > 0) {
    const ssize_t got = ::pread(fd, out, size_t(n), off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got >= 0, "cannot read '", file, "' at byte ", offset, ": ", reason(errno),
                "; check the disk");
    TORCH_CHECK(
        got > 0, "cannot read '", file, "': it ends at byte ", offset, ", ", n,
        " too early, though it was longer when it was opened; do not write to a file that is being read");
    out += got;
    offset += uint64_t(got);
    n -= uint64_t(got);
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : name_(path.string()) {
  // O_NONBLOCK, because opening a pipe would wait for a writer before the pipe could be refused.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  TORCH_CHECK(file.get() >= 0, "cannot open safetensors file '", name_, "': ", reason(errno),
              "; check the path and its permissions");
  struct stat status {};
  TORCH_CHECK(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), "cannot open safetensors file '",
              name_, "': it is not a regular file; give the path of a .safetensors file");
  const uint64_t file_bytes = uint64_t(status.st_size);
  TORCH_CHECK_VALUE(file_bytes >= kHeaderLengthBytes, "safetensors file '", name_,
                    "': it is truncated: at least ", kHeaderLengthBytes, " bytes were expected, but it has ",
                    file_bytes, "; get the file again from its source");
  uint64_t header_bytes = 0;
  read_exactly(file.get(), reinterpret_cast<char*>(&header_bytes), kHeaderLengthBytes, 0, name_);
  TORCH_CHECK_VALUE(header_bytes <= kSafetensorsMaxHeaderBytes, "safetensors file '", name_,
                    "': its header of ", header_bytes, " bytes is over the limit of ",
                    kSafetensorsMaxHeaderBytes, ", so it is probably not a safetensors file; check its path");
  TORCH_CHECK_VALUE(header_bytes <= file_bytes - kHeaderLengthBytes, "safetensors file '", name_,
                    "': it is truncated: its header alone needs ", kHeaderLengthBytes + header_bytes,
                    " bytes, but the file has ", file_bytes, "; get the file again from its source");
  std::string text(header_bytes, '\0');
  read_exactly(file.get(), text.data(), header_bytes, kHeaderLengthBytes, name_);
  data_begin_ = kHeaderLengthBytes + header_bytes;
  header_ = parse_safetensors_header(text, file_bytes - data_begin_, name_);
  fd_ = file.release();
}

SafetensorsFile::~SafetensorsFile() {
  if (fd_ >= 0) ::close(fd_);
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    TORCH_CHECK_VALUE(false, "safetensors file '", name_, "' has no tensor '", name, "'",
                      did_you_mean(name, keys_of(header_.tensors)), "; entries() lists all ",
                      header_.tensors.size());
  }
  return found->second;
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const SafetensorsEntry& all = entry(name);
  at::Tensor tensor = at::empty(all.shape, at::TensorOptions().dtype(all.dtype).device(at::kCPU));
  read_into(name, 0, tensor);
  return tensor;
}

void SafetensorsFile::read_into(const std::string& name, int64_t begin, const at::Tensor& out) const {
  const SafetensorsEntry& all = entry(name);
  TORCH_CHECK_VALUE(out.is_cpu() && out.is_contiguous() && out.scalar_type() == all.dtype,
                    "safetensors file '", name_, "', tensor '", name, "': it is ", all.dtype,
                    " and cannot be read into a tensor that is ", out.scalar_type(), " on ", out.device(),
                    out.is_contiguous() ? "" : " and not contiguous",
                    "; give a contiguous CPU tensor of its dtype");
  const int64_t size = c10::multiply_integers(all.shape), count = out.numel();
  TORCH_CHECK_VALUE(begin >= 0 && begin <= size && count <= size - begin, "safetensors file '", name_,
                    "', tensor '", name, "': ", count, " elements from ", begin,
                    " were asked for, but it has ", size, "; ask for some of those");
  char* bytes = static_cast<char*>(out.mutable_data_ptr());
  const uint64_t element = c10::elementSize(all.dtype), n = uint64_t(count) * element;
  read_exactly(fd_, bytes, n, data_begin_ + all.begin + uint64_t(begin) * element, name_);
  // Reading a C++ bool that is neither 0 nor 1 is undefined behaviour.
  if (all.dtype == at::kBool) {
    for (uint64_t i = 0; i < n; ++i) bytes[i] = bytes[i] != 0;
  }
}

}  // namespace mantissa
