#include "mantissa/io/convert.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

const SafetensorsEntry& entry_of(const SafetensorsModel& model, const std::string& source) {
  const auto found = model.entries().find(source);
  if (found == model.entries().end()) {
    TORCH_CHECK_VALUE(false, "convert_safetensors: the model has no tensor '", source, "'",
                      did_you_mean(source, keys_of(model.entries())), "; name one that it has");
  }
  return found->second;
}

}  // namespace

SafetensorsHeader converted_header(const SafetensorsModel& model, const Conversion& conversion,
                                   const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  for (const auto& [name, tensor] : conversion) {
    const SafetensorsEntry& entry = entry_of(model, tensor.source);
    TORCH_CHECK_VALUE(entry.dtype == tensor.dtype ||
                          (c10::isFloatingType(entry.dtype) && c10::isFloatingType(tensor.dtype)),
                      "convert_safetensors: tensor '", tensor.source, "' is ", entry.dtype,
                      ", which is not cast to ", tensor.dtype, "; keep its dtype");
    header.tensors[name] = {tensor.dtype, entry.shape, 0, 0};
  }
  return header;
}

std::map<std::string, CastLoss> convert_safetensors(
    const SafetensorsModel& model, const Conversion& conversion, const SafetensorsLayout& layout,
    const std::function<void(uint64_t bytes_read)>& after_piece, const GiveElements& give_others) {
  std::map<std::string, CastLoss> losses;
  uint64_t bytes_read = 0;
  const at::Tensor read = at::empty({kConversionPieceBytes}, at::kByte), written = at::empty_like(read);
  write_safetensors_files(layout, [&](const std::string& name, const TakeElements& take) {
    const auto found = conversion.find(name);
    if (found == conversion.end()) return give_others(name, take);
    const ConvertedTensor& tensor = found->second;
    const at::ScalarType from = entry_of(model, tensor.source).dtype;
    const auto width = int64_t(c10::elementSize(tensor.dtype));
    model.read_pieces(tensor.source, read, kConversionPieceBytes / width, [&](const at::Tensor& piece) {
      if (after_piece) after_piece(bytes_read += piece.nbytes());
      if (from == tensor.dtype) return take(piece);
      const at::Tensor cast = written.narrow(0, 0, piece.numel() * width).view(tensor.dtype);
      cast.copy_(piece);
      losses[name].add(cast_loss(piece, cast));
      take(cast);
    });
  });
  return losses;
}

}  // namespace mantissa
