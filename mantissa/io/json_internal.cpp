#include "mantissa/io/json_internal.h"

#include <utility>
#include <vector>

namespace mantissa {
namespace {

using nlohmann::json;

/// Builds the DOM. The library's own parser with a callback searches the whole enclosing object at the end of
/// every inner one, so its time grows with the square of the number of entries.
class DomBuilder final : public json::json_sax_t {
 public:
  DomBuilder(int max_depth, const std::function<void(const std::string& what)>& fail)
      : max_depth_(static_cast<size_t>(max_depth)), fail_(fail) {}

  json take_root() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // does not occur in JSON texts
  bool start_object(std::size_t /*elements*/) override { return open(json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    const auto [entry, is_new] = open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    if (!is_new) fail_("names '" + fit_for_message(name) + "' twice");
    entry_ = &entry->second;
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    const std::size_t begin = what.find("] ") + 2;
    // What the parser expected instead does not fit into the message.
    fail_("is not valid JSON (" +
          fit_for_message(what.substr(begin, what.find("; expected", begin) - begin)) + ")");
    return false;
  }

 private:
  /// Stores the value where it belongs: as the root, as an element of an array, or under the last key.
  json* put(json&& value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_object()) return &(*entry_ = std::move(value));
    return &open_.back()->get_ref<json::array_t&>().emplace_back(std::move(value));
  }
  bool add(json&& value) {
    put(std::move(value));
    return true;
  }
  bool open(json&& empty) {
    if (open_.size() >= max_depth_) fail_("nests deeper than the format allows");
    // The pointer stays valid: nothing is added to the enclosing value before this one is closed.
    open_.push_back(put(std::move(empty)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const size_t max_depth_;
  const std::function<void(const std::string& what)>& fail_;
  json root_;
  std::vector<json*> open_;
  json* entry_ = nullptr;  ///< the entry of the innermost object's last key
};

}  // namespace

std::string fit_for_message(const std::string& text) {
  std::string out = text.substr(0, 100);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

json parse_json(std::string_view text, int max_depth,
                const std::function<void(const std::string& what)>& fail) {
  DomBuilder builder(max_depth, fail);
  json::sax_parse(text, &builder);
  return builder.take_root();
}

}  // namespace mantissa
