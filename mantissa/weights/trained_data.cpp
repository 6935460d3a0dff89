#include "mantissa/weights/trained_data.h"

#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/packed_tensor_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {

void replace_trained_data(const at::Tensor& weight, PackedDataPtr data) {
  TORCH_CHECK_TYPE(
      is_packed(weight) && is_marked(weight),
      "replace_trained_data: the tensor is no packed weight that trains; exchange other weights with "
      "mantissa::replace_weight()");
  const PackedDataPtr& own = packed::data_of(weight);
  TORCH_CHECK_VALUE(data && data->sizes() == own->sizes() && data->device() == own->device(),
                    "replace_trained_data: the weight has shape ", own->sizes(), " on ", own->device(),
                    "; give data of that shape and device");
  // The storage owns the pointer, and all tensors on it are to see the new data.
  const_cast<PackedDataPtr&>(own) = std::move(data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

}  // namespace mantissa
