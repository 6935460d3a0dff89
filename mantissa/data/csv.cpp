#include "mantissa/data/csv.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/read_file_internal.h"
#include "mantissa/data/tokenizers/utf8_internal.h"
#include "mantissa/io/json_internal.h"

namespace mantissa {
namespace {

/// Takes rows from a text.
class CsvReader {
 public:
  CsvReader(std::string_view text, char separator, const std::string& name)
      : text_(text), separator_(separator), name_(name) {
    if (constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF"; text_.starts_with(kByteOrderMark))
      text_.remove_prefix(kByteOrderMark.size());
  }

  /// Returns the next row that is not empty, or nothing at the end.
  std::optional<std::vector<std::string>> next() {
    while (!text_.empty()) {
      begin_ = ++line_;
      std::vector<std::string> fields = row();
      if (fields.size() > 1 || !fields[0].empty()) return fields;
    }
    return std::nullopt;
  }
  /// The line in which the last row began.
  int64_t line() const { return begin_; }

 private:
  std::vector<std::string> row() {
    std::vector<std::string> fields;
    while (true) {
      fields.push_back(!text_.empty() && text_.front() == '"' ? quoted() : plain());
      if (text_.starts_with("\r\n")) text_.remove_prefix(1);
      if (text_.empty()) return fields;
      const char end = text_.front();
      TORCH_CHECK_VALUE(end == separator_ || end == '\n', "'", name_, "', line ", line_, ", field ",
                        fields.size(), ": text follows a closing quote; write a quote inside quotes twice");
      text_.remove_prefix(1);
      if (end == '\n') return fields;
    }
  }
  std::string plain() {
    size_t end = 0;
    while (end < text_.size() && text_[end] != separator_ && text_[end] != '\n') ++end;
    std::string field(text_.substr(0, end));
    text_.remove_prefix(end);
    if (field.ends_with('\r') && (text_.empty() || text_.front() == '\n')) field.pop_back();
    return field;
  }
  std::string quoted() {
    std::string field;
    text_.remove_prefix(1);
    while (true) {
      const size_t quote = text_.find('"');
      TORCH_CHECK_VALUE(quote != std::string_view::npos, "'", name_, "', line ", line_,
                        ": a quoted field has no end; close the quote");
      field += text_.substr(0, quote);
      line_ += std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(quote), '\n');
      text_.remove_prefix(quote + 1);
      if (!text_.starts_with('"')) break;
      field += '"';
      text_.remove_prefix(1);
    }
    return field;
  }

  std::string_view text_;
  char separator_;
  const std::string& name_;
  int64_t line_ = 0, begin_ = 0;
};

std::vector<std::string> numbered_columns(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

/// Returns the cure for a table that is read as one column, because something else separates its columns.
std::string cure_of_one_column(char separator) {
  const std::string called =
      separator == ',' ? "a comma" : "'" + fit_for_message(std::string(1, separator)) + "'";
  return "; only " + called + " separates columns, so save the table with that";
}

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text.substr(0, text.find_last_not_of(' ') + 1);  // npos + 1 is 0
}

/// Returns the column of this name, or else the only one whose name differs from it in blanks around it alone.
std::optional<size_t> position_of(const std::vector<std::string>& columns, const std::string& wanted) {
  auto found = std::find(columns.begin(), columns.end(), wanted);
  if (found == columns.end()) {
    const std::string_view bare = without_blanks(wanted);
    const auto is_alike = [&](const std::string& column) {
      return !bare.empty() && without_blanks(column) == bare;
    };
    found = std::find_if(columns.begin(), columns.end(), is_alike);
    if (found == columns.end() || std::any_of(found + 1, columns.end(), is_alike)) return std::nullopt;
  }
  return static_cast<size_t>(found - columns.begin());
}

size_t find_column(const std::vector<std::string>& columns, const std::string& wanted,
                   const CsvOptions& options, const std::string& name) {
  if (const std::optional<size_t> found = position_of(columns, wanted)) return *found;
  std::vector<std::string> shown, quoted;
  for (const std::string& column : columns) {
    shown.push_back(fit_for_message(column));
    quoted.push_back("'" + shown.back() + "'");
  }
  C10_THROW_ERROR(ValueError, c10::str("'", name, "' has no column '", fit_for_message(wanted), "'",
                                       did_you_mean(wanted, shown), "; its columns are ", join_names(quoted),
                                       columns.size() > 1 ? "" : cure_of_one_column(options.separator)));
}

bool is_number(const std::string& text) { return parse_number<double>(text).value.has_value(); }

/// Columns are found by their names.
void check_names(const std::vector<std::string>& columns, const std::string& name) {
  std::set<std::string> seen;
  for (const std::string& column : columns)
    TORCH_CHECK_VALUE(seen.insert(column).second, "'", name, "' has two columns called '",
                      fit_for_message(column), "'; give them different names",
                      is_number(column) ? ", in a line above this one if it is a row" : "");
}

/// What is read of a table.
struct Layout {
  std::vector<size_t> features;
  std::optional<size_t> target;
};

Layout find_layout(const std::vector<std::string>& columns, const CsvOptions& options,
                   const std::string& name) {
  Layout layout;
  const auto is_feature = [&](size_t column) {
    return std::find(layout.features.begin(), layout.features.end(), column) != layout.features.end();
  };
  for (const std::string& feature : options.features) {
    const size_t column = find_column(columns, feature, options, name);
    TORCH_CHECK_VALUE(!is_feature(column), "'", name, "': '", fit_for_message(feature),
                      "' is twice among the columns of features; list it once");
    layout.features.push_back(column);
  }
  const bool are_given = !layout.features.empty();
  TORCH_CHECK_VALUE(are_given || columns.size() > 1, "'", name,
                    "' has one column, and a table needs one for the classes and one for numbers at least",
                    cure_of_one_column(options.separator));
  if (!options.target.empty()) layout.target = find_column(columns, options.target, options, name);
  if (!layout.target && (!are_given || options.last_is_target)) layout.target = columns.size() - 1;
  TORCH_CHECK_VALUE(!layout.target || !is_feature(*layout.target), "'", name, "': the column '",
                    fit_for_message(columns[*layout.target]),
                    "' has the classes, and is among features, too; leave it out there, or choose another "
                    "target");
  for (size_t i = 0; i < columns.size() && !are_given; ++i)
    if (i != *layout.target) layout.features.push_back(i);
  return layout;
}

/// Names are kept in files of UTF-8, in which other bytes would be lost.
/// Errors: c10::ValueError for a name that is not UTF-8; `name` and `line` begin it.
void check_utf8_name(const std::string& text, const std::string& name, int64_t line) {
  TORCH_CHECK_VALUE(tokenizers::find_invalid_utf8(text) == std::string::npos, "'", name, "', line ", line,
                    ": '", fit_for_message(text), "' is not UTF-8; save the table as UTF-8");
}

/// Points to a file without a header, whose first row would be lost. A class there has a name, as a column has.
void warn_of_a_row(const std::vector<std::string>& columns, const Layout& layout, const std::string& name) {
  const auto has_number = [&](size_t feature) { return is_number(columns[feature]); };
  if (!std::all_of(layout.features.begin(), layout.features.end(), has_number)) return;
  TORCH_WARN("'", name,
             "': the first line is taken for the names of the columns, and has numbers for the features, "
             "such as ",
             columns[layout.features[0]], "; write names above it if it is a row");
}

/// Returns the cure for a field that is no number.
std::string cure_of(const std::string& field, const std::string& column, const CsvOptions& options) {
  if (!options.features.empty()) return "; fill it in, or leave the row out";
  const std::string cure = "; fill it in, leave the row out, or choose other columns as features";
  const ParsedNumber<double> parsed = parse_number<double>(field);
  const bool is_text = !field.empty() && !parsed.value && !parsed.is_out_of_range;
  if (!is_text || !options.target.empty()) return cure;
  return cure + "; if the column has the classes, give target '" + fit_for_message(column) + "'";
}

/// Errors: c10::ValueError for what is no finite number; `line` and `column` begin it.
float number_in(const std::string& field, const std::string& name, int64_t line, const std::string& column,
                const CsvOptions& options) {
  const std::optional<double> number = parse_number<double>(field).value;
  TORCH_CHECK_VALUE(number && std::isfinite(static_cast<float>(*number)), "'", name, "', line ", line,
                    ", column '", fit_for_message(column), "': '", fit_for_message(field),
                    "' is no number that float32 holds", cure_of(field, column, options));
  return static_cast<float>(*number);
}

/// Returns the number of a class that is one, or nothing.
std::optional<int64_t> class_number(const std::string& field) {
  const std::optional<int64_t> number = parse_number<int64_t>(field).value;
  return number && *number >= 0 ? number : std::nullopt;
}

/// Returns the position of each class among those of the options.
at::Tensor positions_of(const std::vector<std::string>& fields, const std::vector<std::string>& classes,
                        const std::string& name) {
  std::map<std::string, int64_t> positions;
  for (const std::string& text : classes) positions.emplace(text, std::ssize(positions));
  std::vector<int64_t> numbers;
  for (const std::string& field : fields) {
    auto found = positions.find(field);
    // "02" is class 2 where all classes are numbers.
    if (const auto number = class_number(field); found == positions.end() && number)
      found = positions.find(std::to_string(*number));
    TORCH_CHECK_VALUE(found != positions.end(), "'", name, "' has the class '", fit_for_message(field),
                      "', which is none of the ", classes.size(), " classes of the model",
                      did_you_mean(field, classes), "; give rows of those classes");
    numbers.push_back(found->second);
  }
  return at::tensor(numbers, at::TensorOptions(at::kLong).device(at::kCPU));
}

/// Numbers the classes, and sets the names of those.
at::Tensor number_classes(const std::vector<std::string>& fields, std::vector<std::string>& classes,
                          const std::string& name) {
  std::vector<int64_t> numbers;
  int64_t largest = 0;
  for (const std::string& field : fields) {
    const std::optional<int64_t> number = class_number(field);
    if (!number) break;
    largest = std::max(largest, *number);
    numbers.push_back(*number);
  }
  if (numbers.size() == fields.size()) {
    TORCH_CHECK_VALUE(largest < kMaxClasses, "'", name, "' has the class ", largest,
                      ", and classes are numbered from 0 to ", kMaxClasses - 1,
                      "; choose another column with target");
    for (int64_t i = 0; i <= largest; ++i) classes.push_back(std::to_string(i));
    return at::tensor(numbers, at::TensorOptions(at::kLong).device(at::kCPU));
  }
  std::map<std::string, int64_t> found;
  for (const std::string& field : fields) found.emplace(field, 0);
  TORCH_CHECK_VALUE(std::ssize(found) <= kMaxClasses, "'", name, "' has ", found.size(),
                    " different classes; choose another column with target");
  for (auto& [text, number] : found) {
    number = std::ssize(classes);
    classes.push_back(text);
  }
  numbers.clear();
  for (const std::string& field : fields) numbers.push_back(found.at(field));
  return at::tensor(numbers, at::TensorOptions(at::kLong).device(at::kCPU));
}

}  // namespace

CsvTable parse_csv(std::string_view text, const CsvOptions& options, const std::string& name) {
  CsvReader reader(text, options.separator, name);
  auto row = reader.next();
  TORCH_CHECK_VALUE(row, "'", name, "' is empty; give a table");
  const std::vector<std::string> columns = options.has_header ? *row : numbered_columns(row->size());
  const int64_t header_line = reader.line();
  check_names(columns, name);
  const Layout layout = find_layout(columns, options, name);
  const auto& [features, target] = layout;
  if (options.has_header && options.features.empty()) warn_of_a_row(columns, layout, name);
  if (options.has_header) row = reader.next();
  CsvTable table;
  for (const size_t i : features) table.columns.push_back(columns[i]);
  if (target) table.target_column = columns[*target];
  for (const std::string& column : table.columns) check_utf8_name(column, name, header_line);
  check_utf8_name(table.target_column, name, header_line);
  std::vector<float> values;
  std::vector<std::string> labels;
  for (; row; row = reader.next()) {
    TORCH_CHECK_VALUE(row->size() == columns.size(), "'", name, "', line ", reader.line(), " has ",
                      row->size(), " fields, and the table has ", columns.size(), " columns");
    for (const size_t i : features)
      values.push_back(number_in((*row)[i], name, reader.line(), columns[i], options));
    if (!target) continue;
    TORCH_CHECK_VALUE(!(*row)[*target].empty(), "'", name, "', line ", reader.line(), ", column '",
                      fit_for_message(columns[*target]), "' has no class; fill it in, or leave the row out");
    check_utf8_name((*row)[*target], name, reader.line());
    labels.push_back(std::move((*row)[*target]));
  }
  TORCH_CHECK_VALUE(!values.empty(), "'", name, "' has no row; give one at least");
  table.data = at::tensor(values, at::TensorOptions(at::kFloat).device(at::kCPU))
                   .view({-1, std::ssize(table.columns)});
  if (!target) return table;
  table.classes = options.classes;
  table.target = options.classes.empty() ? number_classes(labels, table.classes, name)
                                         : positions_of(labels, options.classes, name);
  return table;
}

CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options) {
  return parse_csv(read_file(path, "CSV file"), options, path.string());
}

}  // namespace mantissa
