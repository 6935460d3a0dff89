#include <type_traits>

#include "event.pb.h"
#include "mantissa/io/event_codec_internal.h"

namespace mantissa {
namespace {

namespace proto = event_proto;

constexpr const char* kTextPlugin = "text";
constexpr const char* kHParamsPlugin = "hparams";
constexpr const char* kSessionStart = "_hparams_/session_start_info";
constexpr const char* kSessionEnd = "_hparams_/session_end_info";

/// Adds a value for a plugin of TensorBoard; the caller sets its tensor.
proto::Summary::Value& add_plugin_value(proto::Event& message, const std::string& tag, const char* plugin) {
  proto::Summary::Value& value = *message.mutable_summary()->add_value();
  value.set_tag(tag);
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name(plugin);
  value.mutable_metadata()->set_data_class(proto::DATA_CLASS_TENSOR);
  return value;
}

/// Adds a value whose metadata the dashboard reads. It also needs a tensor: values without one are dropped on
/// the way.
void add_hparams_value(proto::Event& message, const char* tag, const proto::HParamsPluginData& data) {
  proto::Summary::Value& value = add_plugin_value(message, tag, kHParamsPlugin);
  value.mutable_metadata()->mutable_plugin_data()->set_content(data.SerializeAsString());
  value.mutable_tensor()->set_dtype(proto::DT_FLOAT);
  value.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(0);
}

proto::Value to_proto(const Event::HParam& param) {
  proto::Value value;
  std::visit(
      [&](const auto& held) {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, bool>) {
          value.set_bool_value(held);
        } else if constexpr (std::is_same_v<T, double>) {
          value.set_number_value(held);
        } else {
          value.set_string_value(held);
        }
      },
      param);
  return value;
}

Event::HParam from_proto(const proto::Value& value) {
  switch (value.kind_case()) {
    case proto::Value::kBoolValue:
      return value.bool_value();
    case proto::Value::kNumberValue:
      return value.number_value();
    default:
      return value.string_value();
  }
}

void decode_hparams(const std::string& content, Event& event) {
  proto::HParamsPluginData data;
  if (!data.ParseFromString(content)) return;
  if (data.has_session_start_info()) {
    event.hparams.emplace();
    for (const auto& [name, value] : data.session_start_info().hparams())
      event.hparams->emplace(name, from_proto(value));
  }
  if (data.has_session_end_info())
    event.succeeded = data.session_end_info().status() == proto::STATUS_SUCCESS;
}

}  // namespace

std::string encode_event(const Event& event) {
  proto::Event message;
  message.set_wall_time(event.wall_time);
  message.set_step(event.step);
  if (!event.file_version.empty()) {
    message.set_file_version(event.file_version);
  } else if (event.restarts) {
    message.mutable_session_log()->set_status(proto::SessionLog::START);
  }
  for (const auto& [tag, scalar] : event.scalars) {
    proto::Summary::Value& value = *message.mutable_summary()->add_value();
    value.set_tag(tag);
    value.set_simple_value(scalar);
  }
  for (const auto& [tag, text] : event.texts) {
    proto::TensorProto& tensor = *add_plugin_value(message, tag, kTextPlugin).mutable_tensor();
    tensor.set_dtype(proto::DT_STRING);
    tensor.mutable_tensor_shape();  // 0-dim
    tensor.add_string_val(text);
  }
  if (event.hparams) {
    proto::HParamsPluginData data;
    data.mutable_session_start_info()->set_start_time_secs(event.wall_time);
    auto& params = *data.mutable_session_start_info()->mutable_hparams();
    for (const auto& [name, param] : *event.hparams) params[name] = to_proto(param);
    add_hparams_value(message, kSessionStart, data);
  }
  if (event.succeeded) {
    proto::HParamsPluginData data;
    data.mutable_session_end_info()->set_status(*event.succeeded ? proto::STATUS_SUCCESS
                                                                 : proto::STATUS_FAILURE);
    data.mutable_session_end_info()->set_end_time_secs(event.wall_time);
    add_hparams_value(message, kSessionEnd, data);
  }
  return message.SerializeAsString();
}

std::optional<Event> decode_event(std::string_view bytes) {
  proto::Event message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  Event event{
      .wall_time = message.wall_time(), .step = message.step(), .file_version = message.file_version()};
  event.restarts = message.session_log().status() == proto::SessionLog::START;
  for (const proto::Summary::Value& value : message.summary().value()) {
    const proto::SummaryMetadata::PluginData& plugin = value.metadata().plugin_data();
    if (value.has_simple_value()) {
      event.scalars.emplace_back(value.tag(), value.simple_value());
    } else if (plugin.plugin_name() == kTextPlugin && value.tensor().string_val_size() > 0) {
      event.texts.emplace_back(value.tag(), value.tensor().string_val(0));
    } else if (plugin.plugin_name() == kHParamsPlugin) {
      decode_hparams(plugin.content(), event);
    }
  }
  return event;
}

}  // namespace mantissa
