#include "mantissa/optim/archive_internal.h"

#include <algorithm>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/private_member_internal.h"

namespace mantissa {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// An archive can otherwise be read only as its zip file, which copies every tensor and computes its checksum.
struct WrittenModule {
  using type = torch::jit::Module OutputArchive::*;
  friend type pointer_to(WrittenModule);
};
template struct PrivateMember<WrittenModule, &OutputArchive::module_>;

struct ReadModule {
  using type = torch::jit::Module InputArchive::*;
  friend type pointer_to(ReadModule);
};
template struct PrivateMember<ReadModule, &InputArchive::module_>;

namespace {

StateDict dict_of(const c10::intrusive_ptr<c10::ivalue::Object>& object);

StateValue state_of(const c10::IValue& value, const std::string& name) {
  if (value.isNone()) return {};
  if (value.isTensor()) return value.toTensor().defined() ? StateValue(value.toTensor()) : StateValue();
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isObject()) return dict_of(value.toObject());
  StateList list;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(state_of(tensor, name));
    return list;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(value.isTuple(), "optimizer_state: '", name, "' is a ", value.tagKind(),
                              ", which a state does not hold; write a tensor, a number, text or a tuple of"
                              " numbers in serialize()");
  for (const c10::IValue& item : value.toTupleRef().elements()) list.push_back(state_of(item, name));
  return list;
}

StateDict dict_of(const c10::intrusive_ptr<c10::ivalue::Object>& object) {
  StateDict dict;
  const auto type = object->type();
  for (size_t i = 0; i < type->numAttributes(); ++i) {
    const std::string& name = type->getAttributeName(i);
    dict.emplace(name, state_of(object->getSlot(i), name));
  }
  return dict;
}

void write_dict(const StateDict& dict, OutputArchive& archive);

c10::IValue list_of(const StateList& list) {
  const auto is_tensor = [](const StateValue& item) { return item.is_null() || item.get_if<at::Tensor>(); };
  if (std::all_of(list.begin(), list.end(), is_tensor)) {
    c10::List<at::Tensor> tensors;
    for (const StateValue& item : list) {
      tensors.push_back(item.is_null() ? at::Tensor() : *item.get_if<at::Tensor>());
    }
    return tensors;
  }
  std::vector<c10::IValue> items;
  for (const StateValue& item : list) {
    if (const auto* whole = item.get_if<int64_t>()) {
      items.emplace_back(*whole);
    } else {
      items.emplace_back(StateReader(item).to_double());
    }
  }
  return c10::ivalue::Tuple::create(std::move(items));
}

c10::IValue ivalue_of(const StateValue& value) {
  if (const auto* tensor = value.get_if<at::Tensor>()) return *tensor;
  if (const auto* flag = value.get_if<bool>()) return *flag;
  if (const auto* whole = value.get_if<int64_t>()) return *whole;
  if (const auto* number = value.get_if<double>()) return *number;
  if (const auto* text = value.get_if<std::string>()) return *text;
  if (const auto* list = value.get_if<StateList>()) return list_of(*list);
  return {};
}

void write_dict(const StateDict& dict, OutputArchive& archive) {
  for (const auto& [name, value] : dict) {
    if (const auto* below = value.get_if<StateDict>()) {
      OutputArchive nested(archive.compilation_unit());
      write_dict(*below, nested);
      archive.write(name, nested);
    } else {
      archive.write(name, ivalue_of(value));
    }
  }
}

}  // namespace

StateDict written_by(const std::function<void(OutputArchive&)>& save) {
  OutputArchive archive;
  save(archive);
  return dict_of((archive.*pointer_to(WrittenModule()))._ivalue());
}

void read_from(const StateDict& state, const std::function<void(InputArchive&)>& load) {
  OutputArchive written;
  write_dict(state, written);
  InputArchive archive;
  archive.*pointer_to(ReadModule()) = written.*pointer_to(WrittenModule());
  load(archive);
}

}  // namespace mantissa
