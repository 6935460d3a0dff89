#include "mantissa/data/csv.h"

#include <string>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"

namespace mantissa::cli {

// A row of features is an image of one row.
DataKind csv_kind() {
  return {.name = "csv",
          .argument = "FILE",
          .help = "numbers, and a class in each row",
          .input = InputKind::kImages,
          .load = [](const std::string& path, const FitOptions& o) {
            const CsvTable table = read_csv(path, {.target = o.target});
            return Data{
                .name = "csv",
                .train = std::make_shared<TensorDataset>(table.data.unsqueeze(1).unsqueeze(1), table.target),
                .val = nullptr,
                .input = {.kind = InputKind::kImages,
                          .channels = 1,
                          .height = 1,
                          .width = table.data.size(1),
                          .classes = std::ssize(table.classes)}};
          }};
}

}  // namespace mantissa::cli
