#include "mantissa/trainer/loggers/csv_logger.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "mantissa/io/append_file.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/trainer/loggers/log_dir_internal.h"

namespace mantissa {
namespace {

constexpr const char* kStep = "step";

/// Orders the position in the run first, then the metrics by name.
struct ColumnOrder {
  static size_t rank(const std::string& name) {
    constexpr std::array<std::string_view, 3> kFirst{"epoch", kStep, "skipped_steps"};
    return static_cast<size_t>(std::find(kFirst.begin(), kFirst.end(), name) - kFirst.begin());
  }
  bool operator()(const std::string& a, const std::string& b) const {
    return std::pair(rank(a), std::string_view(a)) < std::pair(rank(b), std::string_view(b));
  }
};
using Columns = std::set<std::string, ColumnOrder>;

/// As in RFC 4180, a name with a comma or quote is quoted, and its quotes are doubled.
std::string quoted(const std::string& name) {
  if (name.find_first_of(",\"") == std::string::npos) return name;
  std::string text = "\"";
  for (const char c : name) {
    if (c == '"') text += '"';
    text += c;
  }
  text += '"';
  return text;
}

std::string header(const Columns& columns) {
  std::string line;
  for (const std::string& name : columns) {
    if (name != *columns.begin()) line += ',';
    line += quoted(name);
  }
  return line;
}

/// The names in a header. Unbalanced quotes give names that produce another header.
Columns parse_header(const std::string& line) {
  Columns columns;
  std::string name;
  bool in_quotes = false;
  for (size_t i = 0; i <= line.size(); ++i) {
    if (i == line.size() || (line[i] == ',' && !in_quotes)) {
      columns.insert(std::exchange(name, {}));
    } else if (line[i] != '"') {
      name += line[i];
    } else if (in_quotes && line[i + 1] == '"') {  // a zero follows the line's last character
      name += line[++i];
    } else {
      in_quotes = !in_quotes;
    }
  }
  return columns;
}

/// The cells of a row: numbers, never quoted.
std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(',', begin), line.size());
    cells.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return cells;
}

void append_number(std::string& text, double value) {
  // Some nans print a sign.
  fmt::format_to(std::back_inserter(text), "{}", std::isnan(value) ? std::abs(value) : value);
}

/// YAML 1.1, as PyYAML reads it: floats need a point, strings are quoted as in JSON.
std::string yaml(const Hyperparameter& value) {
  if (const auto* const text = std::get_if<std::string>(&value)) return nlohmann::json(*text).dump();
  if (const auto* const flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* const integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  const double number = std::get<double>(value);
  if (std::isnan(number)) return ".nan";
  if (std::isinf(number)) return number > 0 ? ".inf" : "-.inf";
  std::string text = fmt::format("{}", number);
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

class CsvWriter final : public LogWriter {
 public:
  explicit CsvWriter(const std::filesystem::path& folder)
      : folder_(folder), file_(folder / "metrics.csv", AppendFile::Mode::kContinue) {
    if (file_.size() == 0) {
      file_.append(header(columns_) + "\n");
      return;
    }
    std::ifstream in(file_.path());
    std::string line;
    std::getline(in, line);
    columns_ = parse_header(line);
    TORCH_CHECK_VALUE(columns_.contains(kStep) && header(columns_) == line, "cannot append to '",
                      file_.path().string(), "': its first line is not a CSVLogger's; choose another folder");
    while (std::getline(in, line)) ++rows_;
  }

  void write(std::span<const LogRow> rows) override {
    Columns wider = columns_;
    for (const LogRow& row : rows)
      for (const auto& [name, value] : row.metrics) wider.insert(name);
    if (wider.size() > columns_.size()) add_columns(std::move(wider));

    std::string text;
    for (const LogRow& row : rows) {
      for (const std::string& name : columns_) {
        if (name != *columns_.begin()) text += ',';
        if (name == kStep) {
          fmt::format_to(std::back_inserter(text), "{}", row.step);
        } else if (const auto found = row.metrics.find(name); found != row.metrics.end()) {
          append_number(text, found->second.read());
        }
      }
      text += '\n';
    }
    file_.append(text);
  }

  void write_hyperparams(const Hyperparameters& params, double /*wall_time*/) override {
    for (const auto& [name, value] : params) params_[name] = value;
    std::string text;
    for (const auto& [name, value] : params_)
      text += fmt::format("{}: {}\n", nlohmann::json(name).dump(), yaml(value));
    write_file_atomically(folder_ / "hparams.yaml", text, Links::kReplace);
  }

  void resume_from(int64_t last_step, std::optional<int64_t> rows, double /*wall_time*/) override {
    const auto step_cell = static_cast<size_t>(std::distance(columns_.begin(), columns_.find(kStep)));
    int64_t kept = 0;
    edit_rows(columns_, [&](const std::vector<std::string_view>& cells, std::string& /*line*/) {
      int64_t step = 0;
      const std::string_view text = cells[step_cell];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
      TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size(), "cannot append to '",
                        file_.path().string(), "': '", text, "' is not a step; repair or remove the file");
      const bool stays = rows ? kept < *rows : step <= last_step;
      kept += stays ? 1 : 0;
      return stays;
    });
    rows_ = kept;
  }
  std::optional<int64_t> rows() const override { return rows_; }

  void finish(const std::string& /*status*/, double /*wall_time*/) override {}
  void sync() override { file_.sync(); }

 private:
  void add_columns(Columns wider) {
    edit_rows(wider, [&](const std::vector<std::string_view>& cells, std::string& line) {
      auto cell = cells.begin();
      line.clear();
      for (const std::string& name : wider) {
        if (name != *wider.begin()) line += ',';
        if (columns_.contains(name)) line += *cell++;
      }
      return true;
    });
    columns_ = std::move(wider);
  }

  /// `edit` gets a row's cells, copied from the line that it may replace; it returns whether the row stays.
  template <typename Edit>
  void edit_rows(const Columns& new_columns, const Edit& edit) {
    bool is_first = true;
    file_.edit_lines([&](std::string& line) {
      if (std::exchange(is_first, false)) {
        line = header(new_columns);
        return true;
      }
      const std::string row = line;
      const std::vector<std::string_view> cells = split(row);
      TORCH_CHECK_VALUE(cells.size() == columns_.size(), "cannot append to '", file_.path().string(),
                        "': the row '", row, "' does not have the header's ", columns_.size(),
                        " cells; repair or remove the file");
      return edit(cells, line);
    });
  }

  std::filesystem::path folder_;
  AppendFile file_;
  Columns columns_{kStep};
  int64_t rows_ = 0;  ///< in the file when it was opened or last cut
  Hyperparameters params_;
};

}  // namespace

CSVLogger::CSVLogger(const std::filesystem::path& folder, const BackgroundOptions& options)
    : BackgroundLogger("csv", folder, std::make_unique<CsvWriter>(make_log_dir(folder)), options) {}

}  // namespace mantissa
