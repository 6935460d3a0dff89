#include "mantissa/weights/trained_data.h"

#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/packed_tensor_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {

void replace_trained_data(const at::Tensor& weight, PackedDataPtr data) {
  TORCH_CHECK_TYPE(is_packed(weight) && is_marked(weight),
                   "replace_trained_data: expects a packed weight that is also marked (a trainable one), and "
                   "this one is not ",
                   is_packed(weight) ? "marked" : "packed",
                   "; use mantissa::replace_weight() for any other weight");
  const PackedDataPtr& own = packed::data_of(weight);
  TORCH_CHECK_VALUE(data != nullptr, "replace_trained_data: the data is null; give data of shape ",
                    own->sizes(), " on ", own->device());
  TORCH_CHECK_VALUE(data->sizes() == own->sizes(), "replace_trained_data: the weight has shape ",
                    own->sizes(), ", and the data ", data->sizes(), "; give data of the weight's shape");
  TORCH_CHECK_VALUE(data->device() == own->device(), "replace_trained_data: the weight is on ", own->device(),
                    ", and the data on ", data->device(), "; move it with PackedData::to()");
  // The storage owns the pointer. Replacing it there makes every tensor that shares the storage see the new data.
  const_cast<PackedDataPtr&>(own) = std::move(data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

}  // namespace mantissa
