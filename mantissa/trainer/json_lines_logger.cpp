#include "mantissa/trainer/json_lines_logger.h"

#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <variant>

#include <nlohmann/json.hpp>

#include "mantissa/io/append_file.h"
#include "mantissa/trainer/log_dir_internal.h"

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

class JsonLinesWriter final : public LogWriter {
 public:
  explicit JsonLinesWriter(const std::filesystem::path& folder)
      : file_(folder / "metrics.jsonl", AppendFile::Mode::kContinue) {}

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

  void resume_from(int64_t last_step, double /*wall_time*/) override {
    file_.edit_lines([&](std::string& line) {
      const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      const bool has_step = row.is_object() && row.contains("step") && row["step"].is_number_integer();
      return !has_step || row["step"].get<int64_t>() <= last_step;
    });
  }

  void finish(const std::string& status, double wall_time) override {
    file_.append(fmt::format(R"({{"status":{},{}}})", json_of(status), time_field(wall_time)) + "\n");
  }
  void sync() override { file_.sync(); }

 private:
  AppendFile file_;
};

}  // namespace

JSONLinesLogger::JSONLinesLogger(const std::filesystem::path& folder, const BackgroundOptions& options)
    : BackgroundLogger("json_lines", folder, std::make_unique<JsonLinesWriter>(make_log_dir(folder)),
                       options) {}

}  // namespace mantissa
