#include <charconv>
#include <cmath>
#include <set>
#include <string>
#include <system_error>

#include <c10/util/Exception.h>

#include "mantissa/quant/quant_state_json_internal.h"

namespace mantissa::quant {
namespace {

class Reader {
 public:
  Reader(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  QuantStateJson read() {
    expect('{');
    if (!follows('}')) {
      do {
        read_entry();
      } while (follows(','));
      expect('}');
    }
    skip_space();
    require(at_ == text_.size(), "something follows the object");
    require(has("quant_type") && has("blocksize") && has("dtype") && has("shape"),
            "it needs quant_type, blocksize, dtype and shape");
    const size_t nested =
        seen_.count("nested_blocksize") + seen_.count("nested_dtype") + seen_.count("nested_offset");
    require(nested == 0 || nested == 3,
            "of nested_blocksize, nested_dtype and nested_offset, some are missing");
    if (nested != 0) state_.nested = nested_;
    return state_;
  }

 private:
  void read_entry() {
    const std::string key = string();
    require(seen_.insert(key).second, "the key '" + key + "' is there twice");
    expect(':');
    if (key == "quant_type") {
      state_.quant_type = string();
    } else if (key == "blocksize") {
      state_.blocksize = size();
    } else if (key == "dtype") {
      state_.dtype = string();
    } else if (key == "shape") {
      state_.shape = sizes();
    } else if (key == "nested_blocksize") {
      nested_.blocksize = size();
    } else if (key == "nested_dtype") {
      nested_.dtype = string();
    } else if (key == "nested_offset") {
      nested_.offset = number<double>("a number");
      require(std::isfinite(nested_.offset), "nested_offset is not finite");
    } else {
      fail("the key '" + key + "' is unknown");
    }
  }

  /// Names, types and dtypes have letters that need no escape.
  std::string string() {
    expect('"');
    std::string result;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_++];
      require(c != '\\' && c >= 0x20 && c < 0x7f,
              "a string has an escape or a character that is no plain letter");
      result += c;
    }
    expect('"');
    return result;
  }

  std::vector<int64_t> sizes() {
    std::vector<int64_t> result;
    expect('[');
    if (follows(']')) return result;
    do {
      result.push_back(size());
    } while (follows(','));
    expect(']');
    return result;
  }

  int64_t size() {
    const auto value = number<int64_t>("an integer");
    require(value >= 0, "a size is negative");
    return value;
  }

  template <typename Number>
  Number number(const char* kind) {
    skip_space();
    Number value = 0;
    const char* const end = text_.data() + text_.size();
    const auto [rest, error] = std::from_chars(text_.data() + at_, end, value);
    require(error != std::errc::result_out_of_range, "a number is out of range");
    require(error == std::errc(), std::string("there is no ") + kind + " where one has to be");
    at_ = static_cast<size_t>(rest - text_.data());
    return value;
  }

  bool has(const char* key) const { return seen_.count(key) != 0; }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  bool follows(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) { require(follows(c), std::string("'") + c + "' is missing"); }
  void require(bool condition, const std::string& problem) const {
    if (!condition) fail(problem);
  }
  [[noreturn]] void fail(const std::string& problem) const {
    TORCH_CHECK_VALUE(false, what_, " is not the JSON that bitsandbytes writes: ", problem, ", at byte ", at_,
                      " of ", text_.size(), "; save the weight again");
  }

  std::string_view text_;
  const std::string& what_;
  size_t at_ = 0;
  std::set<std::string> seen_;
  QuantStateJson state_;
  QuantStateJson::Nested nested_;
};

std::string decimal(double value) {
  char digits[40];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  std::string text(digits, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::string to_json(const QuantStateJson& state) {
  std::string shape;
  for (const int64_t size : state.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  std::string text = R"({"quant_type": ")" + state.quant_type + R"(", "blocksize": )" +
                     std::to_string(state.blocksize) + R"(, "dtype": ")" + state.dtype + R"(", "shape": [)" +
                     shape + "]";
  if (state.nested)
    text += R"(, "nested_blocksize": )" + std::to_string(state.nested->blocksize) + R"(, "nested_dtype": ")" +
            state.nested->dtype + R"(", "nested_offset": )" + decimal(state.nested->offset);
  return text + "}";
}

QuantStateJson parse_quant_state_json(std::string_view text, const std::string& what) {
  return Reader(text, what).read();
}

}  // namespace mantissa::quant
