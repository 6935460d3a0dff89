#include "mantissa/data/csv.h"

#include <string>
#include <utility>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"

namespace mantissa::cli {
namespace {

/// Reads the columns of the run whose model reads the table, if there is one.
Data load_table(const std::string& path, const FitOptions& o) {
  CsvOptions options{.target = o.target.empty() ? o.names.target : o.target, .features = o.names.columns};
  if (!o.names.columns.empty()) {
    if (o.reads_labels)
      options.classes = o.names.classes;
    else
      options.target.clear();
  }
  CsvTable table = read_csv(path, options);
  // A row of features is an image of one row.
  return {.name = "csv",
          .train = std::make_shared<TensorDataset>(table.data.unsqueeze(1).unsqueeze(1), table.target),
          .val = nullptr,
          .input = {.kind = InputKind::kImages,
                    .channels = 1,
                    .height = 1,
                    .width = table.data.size(1),
                    .classes = std::ssize(table.classes)},
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
          .load = &load_table};
}

}  // namespace mantissa::cli
