#include "mantissa/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <ostream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "mantissa/io/atomic_file.h"

namespace mantissa {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

namespace {

/// llm.c's header: 256 numbers of 32 bits, of which the first three say what follows.
constexpr int64_t kHeaderBytes = 1024;
constexpr int64_t kMaxCounted = std::numeric_limits<int32_t>::max();

struct Header {
  TokenFormat format;
  uint32_t magic, version;
};
constexpr std::array kHeaders{Header{TokenFormat::kGpt2, 20240520, 1},
                              Header{TokenFormat::kLlama3, 20240801, 7}};

bool is_wide(TokenFormat format) { return format == TokenFormat::kUint32 || format == TokenFormat::kLlama3; }
int64_t token_bytes(TokenFormat format) { return is_wide(format) ? 4 : 2; }

const Header* header_of(TokenFormat format) {
  const auto* const found = std::find_if(kHeaders.begin(), kHeaders.end(),
                                         [&](const Header& header) { return header.format == format; });
  return found == kHeaders.end() ? nullptr : found;
}

uint32_t number_at(std::string_view head, size_t index) {
  uint32_t number = 0;
  std::memcpy(&number, head.data() + index * sizeof number, sizeof number);
  return number;
}

const Header* header_in(std::string_view head) {
  if (head.size() < sizeof(uint32_t)) return nullptr;
  const auto* const found = std::find_if(kHeaders.begin(), kHeaders.end(), [&](const Header& header) {
    return header.magic == number_at(head, 0);
  });
  return found == kHeaders.end() ? nullptr : found;
}

TokenLayout counted_layout(const Header& header, std::string_view head, int64_t file_size,
                           const std::string& name) {
  TORCH_CHECK_VALUE(file_size >= kHeaderBytes, name, ": has llm.c's header, which is cut off after ",
                    file_size, " of ", kHeaderBytes, " bytes; copy or write the file again");
  TORCH_CHECK_VALUE(number_at(head, 1) == header.version, name, ": llm.c's header has version ",
                    number_at(head, 1), ", and only version ", header.version,
                    " can be read; write the file in that version");
  const int64_t size = number_at(head, 2), needed = kHeaderBytes + size * token_bytes(header.format);
  TORCH_CHECK_VALUE(file_size == needed, name, ": the header counts ", size, " tokens, which are ", needed,
                    " bytes with the header, but the file has ", file_size, "; copy or write it again");
  TORCH_CHECK_VALUE(size > 0, name, ": has a header, but no tokens; give a file with tokens in it");
  return {header.format, kHeaderBytes, size};
}

/// An open file, until the end of the scope.
class OpenFile {
 public:
  explicit OpenFile(const fs::path& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void refuse_file(const fs::path& path, const std::string& why) {
  TORCH_CHECK(false, "cannot read token file '", path.string(), "': ", why,
              "; check the path and its permissions");
}

std::pair<std::shared_ptr<const char>, int64_t> map_file(const fs::path& path) {
  const OpenFile file(path);
  if (file.descriptor() < 0) refuse_file(path, std::generic_category().message(errno));
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) refuse_file(path, std::generic_category().message(errno));
  if (!S_ISREG(status.st_mode)) refuse_file(path, "it is not a regular file");
  const auto size = static_cast<size_t>(status.st_size);
  TORCH_CHECK_VALUE(size > 0, "token file '", path.string(), "' is empty; give one with tokens in it");
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (at == MAP_FAILED) refuse_file(path, std::generic_category().message(errno));
  return {std::shared_ptr<const char>(static_cast<const char*>(at),
                                      [size](const char* p) { ::munmap(const_cast<char*>(p), size); }),
          static_cast<int64_t>(size)};
}

/// Widens tokens. The two loops over 16 or 32 bits are ones that compilers vectorize for every CPU.
template <typename Id>
std::optional<int64_t> widen(const char* bytes, int64_t count, int64_t vocabulary, int64_t* to) {
  const auto* const from = reinterpret_cast<const Id*>(bytes);  // a mapping, and a header of 1,024 bytes
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  if (vocabulary > int64_t{std::numeric_limits<Id>::max()}) return std::nullopt;
  const auto limit = static_cast<Id>(std::max<int64_t>(vocabulary, 0));
  Id found = 0;
  for (int64_t i = 0; i < count; ++i) found |= static_cast<Id>(from[i] >= limit);
  if (found == 0) return std::nullopt;
  return std::find_if(to, to + count, [&](int64_t id) { return id >= vocabulary; }) - to;
}

template <typename Id>
std::string narrow(const at::Tensor& tokens) {
  const int64_t* const id = tokens.const_data_ptr<int64_t>();
  std::vector<Id> ids(static_cast<size_t>(tokens.numel()));
  for (size_t i = 0; i < ids.size(); ++i) {
    TORCH_CHECK_VALUE(id[i] >= 0 && id[i] <= int64_t{std::numeric_limits<Id>::max()},
                      "write_token_file: token ", id[i], " at position ", i, " does not fit into ",
                      8 * sizeof(Id), " bits; choose a form with 32 bits, or check the tokens");
    ids[i] = static_cast<Id>(id[i]);
  }
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

std::string header_bytes(const Header& header, int64_t count) {
  TORCH_CHECK_VALUE(count <= kMaxCounted, "write_token_file: a header counts at most ", kMaxCounted,
                    " tokens, and there are ", count, "; write several files, or one without a header");
  std::array<uint32_t, kHeaderBytes / sizeof(uint32_t)> numbers{header.magic, header.version,
                                                                static_cast<uint32_t>(count)};
  return {reinterpret_cast<const char*>(numbers.data()), kHeaderBytes};
}

}  // namespace

TokenLayout parse_token_header(std::string_view head, int64_t file_size, const std::string& name,
                               TokenFormat headerless) {
  TORCH_CHECK_VALUE(!header_of(headerless), name,
                    ": a form with a header is recognised by itself; choose kUint16 or kUint32");
  if (const Header* const header = header_in(head)) return counted_layout(*header, head, file_size, name);
  const int64_t width = token_bytes(headerless);
  TORCH_CHECK_VALUE(file_size > 0, name, ": is empty; give a file with tokens in it");
  TORCH_CHECK_VALUE(file_size % width == 0, name, ": its ", file_size,
                    " bytes are no whole number of ids of ", 8 * width,
                    " bits; copy the file again, or give its right form");
  return {headerless, 0, file_size / width};
}

TokenFile::TokenFile(const fs::path& path, TokenFormat headerless) : path_(path), format_(headerless) {
  const auto [bytes, file_size] = map_file(path);
  const std::string_view head(bytes.get(), static_cast<size_t>(std::min(file_size, kHeaderBytes)));
  const TokenLayout layout =
      parse_token_header(head, file_size, "token file '" + path.string() + "'", headerless);
  bytes_ = bytes, format_ = layout.format, begin_ = layout.begin, size_ = layout.size;
}

std::optional<int64_t> TokenFile::read(int64_t begin, int64_t count, int64_t vocabulary, int64_t* to) const {
  const char* const from = bytes_.get() + begin_ + begin * token_bytes(format_);
  const auto bad = is_wide(format_) ? widen<uint32_t>(from, count, vocabulary, to)
                                    : widen<uint16_t>(from, count, vocabulary, to);
  return bad ? std::optional(begin + *bad) : std::nullopt;
}

void write_token_file(const fs::path& path, const at::Tensor& tokens, TokenFormat format) {
  TORCH_CHECK_VALUE(
      tokens.defined() && tokens.dim() == 1 && tokens.is_cpu() && !tokens.is_floating_point() &&
          !tokens.is_complex() && tokens.scalar_type() != at::kBool,
      "write_token_file: tokens must be one row of whole numbers on the CPU; flatten() and convert them");
  TORCH_CHECK_VALUE(tokens.numel() > 0, "write_token_file: there are no tokens; give at least one");
  const at::Tensor row = tokens.to(at::kLong).contiguous();
  const std::string ids = is_wide(format) ? narrow<uint32_t>(row) : narrow<uint16_t>(row);
  const Header* const header = header_of(format);
  const std::string head = header ? header_bytes(*header, row.numel()) : "";
  write_file_atomically(path, [&](std::ostream& out) { out << head << ids; });
}

TokenDataset::TokenDataset(std::shared_ptr<const TokenFile> file, int64_t context, int64_t vocabulary,
                           int64_t stride, int64_t begin, int64_t end)
    : file_(std::move(file)), context_(context), vocabulary_(vocabulary), stride_(stride), begin_(begin) {
  TORCH_CHECK_VALUE(file_, "TokenDataset: there is no file; open one with TokenFile");
  TORCH_CHECK_VALUE(context >= 1 && stride >= 1 && vocabulary >= 1, "TokenDataset: context ", context,
                    ", stride ", stride, " and vocabulary ", vocabulary, " must be at least 1; raise them");
  if (end == -1) end = file_->size();
  TORCH_CHECK_VALUE(begin >= 0 && begin <= end && end <= file_->size(), "TokenDataset: '",
                    file_->path().string(), "' has ", file_->size(), " tokens and no part ", begin, " to ",
                    end, "; choose one inside the file");
  TORCH_CHECK_VALUE(end - begin > context, "TokenDataset: '", file_->path().string(), "': a part of ",
                    end - begin, " tokens is shorter than context + 1 = ", static_cast<uint64_t>(context) + 1,
                    "; give more tokens or a smaller context");
  size_ = (end - begin - context - 1) / stride + 1;
}

Batch TokenDataset::get_batch(const at::Tensor& indices) const {
  check_indices(indices, size_, "TokenDataset::get_batch");
  const at::Tensor starts = indices.contiguous();
  const int64_t n = starts.size(0);
  const auto options = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
  Batch batch{at::empty({n, context_}, options), at::empty({n, context_}, options), {}};
  const int64_t* const start = starts.const_data_ptr<int64_t>();
  auto* data = batch.data.mutable_data_ptr<int64_t>();
  auto* target = batch.target.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i, data += context_, target += context_) {
    const int64_t first = begin_ + start[i] * stride_;
    auto bad = file_->read(first + 1, context_, vocabulary_, target);
    if (const auto earlier = file_->read(first, 1, vocabulary_, data)) bad = earlier;
    std::copy_n(target, context_ - 1, data + 1);
    TORCH_CHECK_VALUE(!bad, "token file '", file_->path().string(), "': the id at position ", *bad, " is ",
                      *bad == first ? data[0] : target[*bad - first - 1], ", and the vocabulary is 0 to ",
                      vocabulary_ - 1, "; give the file that belongs to the model, or a larger vocabulary");
  }
  return batch;
}

}  // namespace mantissa
