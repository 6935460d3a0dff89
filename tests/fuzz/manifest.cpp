#include "mantissa/io/manifest.h"

#include <ATen/ops/zeros.h>

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {
namespace {

bool same_form(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

}  // namespace

/// The checksum is not verified, because a fuzzer cannot produce a matching hash. A written manifest must
/// have the right one.
void manifest(std::string_view bytes) {
  const auto read = accepted([&] { return parse_manifest(bytes, "f", /*verify_checksum=*/false); });
  if (!read) return;
  const Manifest again = parse_manifest(make_manifest(*read), "f");
  require(again.step == read->step && again.written_unix_ms == read->written_unix_ms, "other numbers");
  require(again.tensor_names == read->tensor_names, "other names of tensors");
  require(again.files.size() == read->files.size(), "another number of files");
  for (const auto& [name, file] : read->files) {
    const ManifestFile& found = again.files.at(name);
    require(found.bytes == file.bytes && found.xxh3_128 == file.xxh3_128, "another file '" + name + "'");
  }
  require(again.weights.size() == read->weights.size(), "another number of weights");
  for (const auto& [name, weight] : read->weights)
    require(same_form(again.weights.at(name), weight), "another weight '" + name + "'");

  // Tensors of a manifest have no values to compare. Their dtypes and shapes are compared, then the rest of
  // the state.
  const auto tensors = named_tensors(read->state), tensors_again = named_tensors(again.state);
  require(tensors.size() == read->tensor_names.size() && tensors_again.size() == tensors.size(),
          "another number of tensors");
  for (size_t i = 0; i < tensors.size(); ++i) {
    require(
        tensors[i].first == tensors_again[i].first && same_form(tensors[i].second, tensors_again[i].second),
        "another tensor '" + tensors[i].first + "'");
  }
  const std::vector<at::Tensor> zeros(tensors.size(), at::zeros({}));
  const std::string where = difference(with_tensors(read->state, zeros), with_tensors(again.state, zeros));
  require(where.empty(), "another state: " + where);
}

}  // namespace mantissa::fuzz
