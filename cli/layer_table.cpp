#include "cli/layer_table.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/errors.h"
#include "cli/option.h"
#include "mantissa/core/formats.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::cli {

std::string layer_table(const std::vector<LayerReport>& rows) {
  if (rows.empty()) return "";
  size_t width = 5;
  for (const LayerReport& row : rows) width = std::max(width, row.name.size());
  std::string table = fmt::format("{:<{}} {:<12} {:<14} {}\n", "layer", width, "weight", "products", "why");
  for (const LayerReport& row : rows) {
    const std::string products = row.products ? std::string(info(*row.products).name) : "as the model";
    const std::string weight = row.sizes.empty() ? "attention" : fmt::format("{}", fmt::join(row.sizes, "x"));
    std::string line =
        fmt::format("{:<{}} {:<12} {:<14} {}", row.name, width, weight, products, with_flags(row.reason));
    line.resize(line.find_last_not_of(' ') + 1);
    table += line + "\n";
  }
  return table;
}

void PrintsLayers::on_fit_start(Trainer& trainer, const FitPlan& /*plan*/) {
  const std::string note = trainer.precision().layer_note();
  print_to_stderr(layer_table(trainer.precision().layer_report()) +
                  (note.empty() ? "" : with_flags(note) + "\n"));
}

}  // namespace mantissa::cli
