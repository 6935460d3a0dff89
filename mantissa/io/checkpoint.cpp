#include "mantissa/io/checkpoint.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <mutex>
#include <ostream>
#include <streambuf>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include "mantissa/io/atomic_file.h"
#include "mantissa/io/background_writer.h"
#include "mantissa/io/checkpoint_internal.h"
#include "mantissa/io/checksum.h"
#include "mantissa/io/files_internal.h"
#include "mantissa/io/safetensors.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

/// Passes all blocks on and computes their checksum. A single character is refused, as by any streambuf without a buffer:
/// write_safetensors() writes none.
class ChecksumStreambuf : public std::streambuf {
 public:
  explicit ChecksumStreambuf(std::streambuf& sink) : sink_(sink) {}
  ManifestFile result() const { return {bytes_, sum_.hex()}; }

 protected:
  std::streamsize xsputn(const char* data, std::streamsize n) override {
    sum_.update(data, size_t(n));
    bytes_ += uint64_t(n);
    return sink_.sputn(data, n);
  }

 private:
  std::streambuf& sink_;
  Checksum sum_;
  uint64_t bytes_ = 0;
};

/// A locked sibling of `target`. Its destructor removes whatever has its name then.
class TemporaryFolder {
 public:
  TemporaryFolder(const fs::path& target, const fs::path& shown) : shown_(shown) {
    const std::lock_guard lock(temporaries_mutex());
    int made = 0;
    do {
      path_ = sibling(target, kTemporary);
      made = ::mkdir(path_.c_str(), 0777);
    } while (made != 0 && errno == EEXIST);  // left by a killed process with this id
    if (made != 0) fail_to_write(shown, "creating a temporary folder beside it", errno);
    folder_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder_.get() >= 0) {
      try_lock(folder_);
    } else {
      const int error = errno;
      ::rmdir(path_.c_str());
      fail_to_write(shown, "opening a temporary folder beside it", error);
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }
  void write(const char* name, const std::function<void(std::ostream&)>& write) const {
    const fs::path shown = shown_ / name;
    // Opened relative to the folder that was made, whatever has its name by now.
    FileDescriptor file(::openat(folder_.get(), name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0) fail_to_write(shown, "creating it", errno);
    fill_file(file, shown, write);
    if (const int error = file.close()) fail_to_write(shown, "closing", error);
  }
  void sync() const { sync_folder(folder_, shown_); }

 private:
  fs::path path_, shown_;
  FileDescriptor folder_;
};

/// Returns the tensor in the form that safetensors stores: it has no complex128.
at::Tensor stored(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kComplexDouble
             ? at::view_as_real(tensor.detach().resolve_conj().resolve_neg())
             : tensor;
}

ManifestFile write_tensors(const TemporaryFolder& folder, const char* name, const Tensors& tensors) {
  ManifestFile file;
  folder.write(name, [&](std::ostream& stream) {
    ChecksumStreambuf buffer(*stream.rdbuf());
    std::ostream summed(&buffer);
    summed.exceptions(std::ios::badbit | std::ios::failbit);
    // Loaders of weights look for this entry.
    write_safetensors(summed, tensors, {{"format", "pt"}});
    file = buffer.result();
  });
  return file;
}

/// A thousand times the manifest of a model of 100,000 tensors.
constexpr uint64_t kMaxManifestBytes = 1'000'000'000;
constexpr const char* kDamagedCheckpoint = "; the checkpoint is damaged: take another one";

uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  TORCH_CHECK_VALUE(!error, "'", path.string(), "' cannot be read: ", error.message(),
                    "; give the folder of a whole checkpoint that you may read");
  return bytes;
}

std::string content_of(const fs::path& path) {
  const uint64_t bytes = size_of(path);
  TORCH_CHECK_VALUE(bytes <= kMaxManifestBytes, "'", path.string(), "' has ", bytes,
                    " bytes, which are over the limit of ", kMaxManifestBytes, " for a manifest",
                    kDamagedCheckpoint);
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  TORCH_CHECK(in.read(text.data(), std::streamsize(text.size())), "'", path.string(),
              "' cannot be read: ", reason(errno), "; check its permissions and the disk");
  return text;
}

std::string checksum_of_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> block(1 << 20);
  Checksum sum;
  do {
    in.read(block.data(), std::streamsize(block.size()));
    sum.update(block.data(), size_t(in.gcount()));
  } while (in);
  TORCH_CHECK(in.eof(), "'", path.string(), "' cannot be read: ", reason(errno),
              "; check its permissions and the disk");
  return sum.hex();
}

Tensors read_verified(const fs::path& path, const Manifest& manifest) {
  const auto expected = manifest.files.find(path.filename().string());
  TORCH_CHECK_VALUE(expected != manifest.files.end(), "'", path.string(),
                    "' is not in the manifest beside it", kDamagedCheckpoint);
  const uint64_t bytes = size_of(path);
  TORCH_CHECK_VALUE(bytes == expected->second.bytes, "'", path.string(), "' has ", bytes,
                    " bytes, and was written with ", expected->second.bytes, kDamagedCheckpoint);
  const std::string found = checksum_of_file(path);
  TORCH_CHECK_VALUE(found == expected->second.xxh3_128, "'", path.string(), "' has the checksum ", found,
                    ", and was written with ", expected->second.xxh3_128, kDamagedCheckpoint);
  return load_safetensors(path).tensors;
}

/// Removes the tensor for `promised` from `tensors` and returns it.
at::Tensor take(Tensors& tensors, const std::string& name, const at::Tensor& promised, const fs::path& file) {
  auto found = tensors.extract(name);
  TORCH_CHECK_VALUE(!found.empty(), "'", file.string(), "' has no tensor '", name,
                    "', which the manifest beside it names", kDamagedCheckpoint);
  at::Tensor tensor = std::move(found.mapped());
  const at::Tensor form = stored(promised);
  TORCH_CHECK_VALUE(tensor.scalar_type() == form.scalar_type() && tensor.sizes() == form.sizes(), "'",
                    file.string(), "', tensor '", name, "': it is ", tensor.scalar_type(), tensor.sizes(),
                    ", and the manifest beside it says ", form.scalar_type(), form.sizes(),
                    kDamagedCheckpoint);
  return promised.is_complex() && !tensor.is_complex() ? at::view_as_complex(tensor) : tensor;
}

void check_all_taken(const Tensors& left, const fs::path& file) {
  TORCH_CHECK_VALUE(left.empty(), "'", file.string(), "' has a tensor '", left.begin()->first,
                    "', which the manifest beside it does not name", kDamagedCheckpoint);
}

}  // namespace

bool is_checkpoint_folder(const fs::path& path) {
  std::error_code error;
  return fs::exists(path / kManifestFile, error) || fs::exists(path / kCheckpointWeights, error) ||
         fs::exists(path / kStateFile, error);
}

std::string why_not_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return "it is not a folder";
  const bool is_file = fs::is_regular_file(path / kManifestFile, error);  // a pipe would wait for a writer
  if (!is_file && fs::exists(path / kManifestFile, error)) return "its manifest is not a regular file";
  // The beginning is enough, so this also recognises a manifest that is cut or has a changed byte further on.
  std::string begin(128, '\0');
  std::ifstream(path / kManifestFile, std::ios::binary).read(begin.data(), std::streamsize(begin.size()));
  if (begin.find(c10::str('"', kManifestFormat, '"')) != std::string::npos) return "";
  bool has_tensors = false, is_empty = true;
  fs::directory_iterator entries(path, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name != kManifestFile && name != kCheckpointWeights && name != kStateFile && name != kLightningFile)
      return "it has no manifest of one, and holds '" + name + "'";
    has_tensors = has_tensors || name == kCheckpointWeights || name == kStateFile;
    is_empty = false;
  }
  if (error) return error.message();
  return has_tensors || is_empty ? "" : "it has neither a manifest of one nor weights";
}

fs::path checkpoint_at(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path, error)) return path;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const auto parts = parse_sibling(entry.path().filename().string());
    if (parts && parts->kind == kSetAside && parts->name == path.filename().string()) return entry.path();
  }
  return path;
}

void put_in_place(const fs::path& fresh, const fs::path& target, bool may_exchange) {
  const FileDescriptor parent = open_folder_of(target, target);
  const auto move = [&](const fs::path& from, const fs::path& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) fail_to_write(target, "moving it into place", errno);
    sync_folder(parent, target);
  };
  std::error_code error;
  if (!fs::exists(target, error)) return move(fresh, target);
  if (may_exchange) {
    if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0)
      return sync_folder(parent, target);
    if (errno != EINVAL && errno != ENOSYS) fail_to_write(target, "moving it into place", errno);
  }
  const fs::path aside = sibling(target, kSetAside);
  move(target, aside);
  try {
    move(fresh, target);
  } catch (...) {
    ::rename(aside.c_str(), target.c_str());
    throw;
  }
  move(aside, fresh);
}

Checkpoint snapshot(const Checkpoint& checkpoint) {
  Checkpoint copy{checkpoint.step, {}, snapshot(checkpoint.state)};
  for (const auto& [name, tensor] : checkpoint.weights) {
    TORCH_CHECK_VALUE(tensor.defined(), "snapshot: weight '", name, "' is undefined; leave it out");
    copy.weights.emplace(name, snapshot(tensor));
  }
  return copy;
}

void save_checkpoint(const fs::path& path, const Checkpoint& checkpoint) {
  const fs::path named = path.has_filename() ? path : path.parent_path();  // "runs/last/"
  const fs::path target = resolve_links(named);
  TORCH_CHECK_VALUE(target.has_filename() && target.filename() != "." && target.filename() != "..",
                    "cannot write checkpoint '", path.string(), "': it names no folder; give a name");
  TORCH_CHECK_VALUE(target.filename().string().front() != '.', "cannot write checkpoint '", path.string(),
                    "': names that begin with '.' are those of unfinished ones; give another");
  TORCH_CHECK_VALUE(target.filename().string().size() <= kMaxNameBytes, "cannot write checkpoint '",
                    path.string(), "': its name is longer than ", kMaxNameBytes,
                    " bytes; choose a shorter name");
  TORCH_CHECK_VALUE(checkpoint.step >= 0 && checkpoint.step <= kMaxCount, "cannot write checkpoint '",
                    path.string(), "': its step is ", checkpoint.step,
                    "; give the number of steps taken, from 0 to ", kMaxCount);
  std::error_code error;
  const std::string other = fs::exists(target, error) ? why_not_checkpoint(target) : "";
  TORCH_CHECK_VALUE(other.empty(), "cannot write checkpoint '", path.string(),
                    "': there is something else under that name (", other, "); choose another or move it");

  Manifest manifest;
  manifest.step = checkpoint.step;
  manifest.written_unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                                 std::chrono::system_clock::now().time_since_epoch())
                                 .count();
  manifest.weights = checkpoint.weights;
  manifest.state = checkpoint.state;
  Tensors weights, tensors;
  for (const auto& [name, tensor] : checkpoint.weights) {
    TORCH_CHECK_VALUE(tensor.defined(), "cannot write checkpoint '", path.string(), "': weight '", name,
                      "' is undefined; leave it out");
    weights.emplace(name, stored(tensor));
  }
  for (const auto& [name, tensor] : named_tensors(checkpoint.state)) {
    manifest.tensor_names.push_back(name);
    tensors.emplace(name, stored(tensor));
  }
  make_manifest(manifest);  // finds values that cannot be stored before anything is written

  const TemporaryFolder folder(target, named);
  manifest.files[kCheckpointWeights] = write_tensors(folder, kCheckpointWeights, weights);
  manifest.files[kStateFile] = write_tensors(folder, kStateFile, tensors);
  folder.write(kManifestFile, [&](std::ostream& stream) { stream << make_manifest(manifest); });
  folder.sync();
  put_in_place(folder.path(), target);
}

void save_checkpoint_later(BackgroundWriter& writer, const fs::path& path, const Checkpoint& checkpoint) {
  writer.wait_for_room();
  writer.post([path, copy = snapshot(checkpoint)] { save_checkpoint(path, copy); });
}

Manifest read_manifest(const fs::path& path) {
  const fs::path file = checkpoint_at(path) / kManifestFile;
  return parse_manifest(content_of(file), file.string());
}

Checkpoint load_checkpoint(const fs::path& path) {
  const fs::path folder = checkpoint_at(path);
  const Manifest manifest = read_manifest(folder);
  Tensors weights = read_verified(folder / kCheckpointWeights, manifest);
  Tensors tensors = read_verified(folder / kStateFile, manifest);

  Checkpoint checkpoint;
  checkpoint.step = manifest.step;
  for (const auto& [name, promised] : manifest.weights) {
    checkpoint.weights.emplace(name, take(weights, name, promised, folder / kCheckpointWeights));
  }
  std::vector<at::Tensor> in_order;
  size_t next = 0;
  for (const auto& [unused, promised] : named_tensors(manifest.state)) {
    in_order.push_back(take(tensors, manifest.tensor_names[next++], promised, folder / kStateFile));
  }
  check_all_taken(weights, folder / kCheckpointWeights);
  check_all_taken(tensors, folder / kStateFile);
  checkpoint.state = with_tensors(manifest.state, in_order);
  return checkpoint;
}

}  // namespace mantissa
