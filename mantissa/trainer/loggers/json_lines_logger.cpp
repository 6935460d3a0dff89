#include "mantissa/trainer/loggers/json_lines_logger.h"

#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <variant>

#include <nlohmann/json.hpp>

#include "mantissa/io/append_file.h"
#include "mantissa/trainer/loggers/log_dir_internal.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

std::string json_of(double value) {
  if (std::isnan(value)) return R"("NaN")";
  if (std::isinf(value)) return value > 0 ? R"("Infinity")" : R"("-Infinity")";
  return fmt::format("{}", value);
}
std::string json_of(bool value) { return value ? "true" : "false"; }
std::string json_of(int64_t value) { return fmt::format("{}", value); }
std::string json_of(const std::string& value) { return Json(value).dump(); }

std::string time_field(double wall_time) { return fmt::format(R"("wall_time":{:.6f})", wall_time); }

/// The step of a row; unset for a line that is no row.
std::optional<int64_t> step_of(const std::string& line) {
  const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) return std::nullopt;
  return row["step"].get<int64_t>();
}

class JsonLinesWriter final : public LogWriter {
 public:
  explicit JsonLinesWriter(const std::filesystem::path& folder)
      : file_(folder / "metrics.jsonl", AppendFile::Mode::kContinue) {
    std::ifstream in(file_.path());
    for (std::string line; std::getline(in, line);) rows_ += step_of(line) ? 1 : 0;
  }

  void write(std::span<const LogRow> rows) override {
    std::string text;
    for (const LogRow& row : rows) {
      fmt::format_to(std::back_inserter(text), R"({{"step":{},{})", row.step, time_field(row.wall_time));
      for (const auto& [name, value] : row.metrics)
        fmt::format_to(std::back_inserter(text), ",{}:{}", json_of(name), json_of(value.read()));
      text += "}\n";
    }
    file_.append(text);
  }

  void write_hyperparams(const Hyperparameters& params, double wall_time) override {
    std::string fields;
    for (const auto& [name, value] : params)
      fields += fmt::format("{}{}:{}", fields.empty() ? "" : ",", json_of(name),
                            std::visit([](const auto& held) { return json_of(held); }, value));
    file_.append(fmt::format(R"({{"hyperparams":{{{}}},{}}})", fields, time_field(wall_time)) + "\n");
  }

  void resume_from(int64_t last_step, std::optional<int64_t> rows, double /*wall_time*/) override {
    int64_t kept = 0;
    file_.edit_lines([&](std::string& line) {
      const std::optional<int64_t> step = step_of(line);
      if (!step) return true;
      const bool stays = rows ? kept < *rows : *step <= last_step;
      kept += stays ? 1 : 0;
      return stays;
    });
    rows_ = kept;
  }
  std::optional<int64_t> rows() const override { return rows_; }

  void finish(const std::string& status, double wall_time) override {
    file_.append(fmt::format(R"({{"status":{},{}}})", json_of(status), time_field(wall_time)) + "\n");
  }
  void sync() override { file_.sync(); }

 private:
  AppendFile file_;
  int64_t rows_ = 0;  ///< in the file when it was opened or last cut
};

}  // namespace

JSONLinesLogger::JSONLinesLogger(const std::filesystem::path& folder, const BackgroundOptions& options)
    : BackgroundLogger("json_lines", folder, std::make_unique<JsonLinesWriter>(make_log_dir(folder)),
                       options) {}

}  // namespace mantissa
