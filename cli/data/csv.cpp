#include "mantissa/data/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"
#include "cli/option_parsers.h"

namespace mantissa::cli {
namespace {

/// Returns whether the text is a number with a fraction, such as "1.5".
bool has_fraction(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(number) &&
         number != std::floor(number);
}

/// Points to what is seldom meant, and would otherwise only show in the accuracy.
void warn_of_columns(const CsvTable& table, const std::string& path) {
  if (std::count(table.columns.begin(), table.columns.end(), "") > 0)
    TORCH_WARN("'", path,
               "' has a column of numbers without a name, which is trained on, too; if it numbers the rows, "
               "save the table without it (pandas: index=False)");
  const auto number = std::find_if(table.classes.begin(), table.classes.end(), has_fraction);
  if (number != table.classes.end())
    TORCH_WARN("'", path, "': each different number in the target '", table.target_column, "', such as ",
               *number, ", is a class of its own; the command line trains classes, and no regression");
  warn_of_unused_classes(table.target, std::ssize(table.classes),
                         "'" + path + "': the target '" + table.target_column + "'");
}

/// Reads the table, with errors that name the flags.
CsvTable read_table(const std::string& path, const CsvOptions& options) {
  try {
    return read_csv(path, options);
  } catch (const c10::ValueError& error) {
    C10_THROW_ERROR(ValueError, with_names(error.what_without_backtrace(),
                                           {{"target", "--target"}, {"features", "--features"}}));
  }
}

/// Reads the columns of the run whose model reads the table, if there is one.
Data load_table(const std::string& path, const FitOptions& o) {
  CsvOptions options{
      .target = o.target.empty() ? o.names.target : o.target, .features = o.features, .last_is_target = true};
  if (!o.names.columns.empty()) {
    options.features = o.names.columns;
    options.last_is_target = false;
    if (o.reads_labels)
      options.classes = o.names.classes;
    else
      options.target.clear();
  }
  CsvTable table = read_table(path, options);
  if (o.names.columns.empty()) warn_of_columns(table, path);
  // A row of features is an image of one row.
  return {.name = "csv",
          .train = std::make_shared<TensorDataset>(table.data.unsqueeze(1).unsqueeze(1), table.target),
          .val = nullptr,
          .input = {.kind = InputKind::kImages,
                    .channels = 1,
                    .height = 1,
                    .width = table.data.size(1),
                    .classes = std::ssize(table.classes)},
          .has_features = true,
          .names = {.classes = std::move(table.classes),
                    .columns = std::move(table.columns),
                    .target = std::move(table.target_column)}};
}

}  // namespace

DataKind csv_kind() {
  return {.name = "csv",
          .argument = "FILE",
          .help = "numbers, and a class in each row",
          .input = InputKind::kImages,
          .load = &load_table,
          .options = {"target", "features", "mixup"},
          .defaults = {{"model", "mlp"}}};
}

}  // namespace mantissa::cli
