#include "mantissa/trainer/loggers/tensorboard_logger.h"

#include <fmt/format.h>
#include <optional>
#include <utility>
#include <variant>

#include "mantissa/io/event_file.h"
#include "mantissa/trainer/loggers/log_dir_internal.h"

namespace mantissa {
namespace {

/// Escapes a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

class TensorBoardWriter final : public LogWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& folder) : file_(folder) {}

  void write(std::span<const LogRow> rows) override {
    std::vector<Event> events;
    events.reserve(rows.size());
    for (const LogRow& row : rows) {
      Event& event = events.emplace_back(Event{.wall_time = row.wall_time, .step = row.step});
      for (const auto& [name, value] : row.metrics)
        event.scalars.emplace_back(name, static_cast<float>(value.read()));
    }
    file_.write(events);
  }

  void write_hyperparams(const Hyperparameters& params, double wall_time) override {
    std::map<std::string, Event::HParam> hparams;
    std::string table = "| hyperparameter | value |\n|---|---|\n";
    for (const auto& [name, value] : params) {
      const auto [text, hparam] = std::visit(
          [](const auto& held) -> std::pair<std::string, Event::HParam> {
            if constexpr (std::is_same_v<decltype(held), const int64_t&>) {
              return {fmt::format("{}", held), static_cast<double>(held)};
            } else {
              return {fmt::format("{}", held), held};
            }
          },
          value);
      hparams.emplace(name, hparam);
      table += fmt::format("| {} | {} |\n", cell(name), cell(text));
    }
    write_one({.wall_time = wall_time, .texts = {{"hyperparameters", table}}, .hparams = std::move(hparams)});
  }

  void resume_from(int64_t step, std::optional<int64_t> /*rows*/, double wall_time) override {
    // Written twice, because TensorBoard takes the first one in a folder for the start of the first run.
    const Event restart{.wall_time = wall_time, .step = step + 1, .restarts = true};
    file_.write(std::vector{restart, restart});
  }
  void finish(const std::string& status, double wall_time) override {
    write_one({.wall_time = wall_time, .succeeded = status == "success"});
  }
  void sync() override { file_.sync(); }

 private:
  void write_one(const Event& event) { file_.write({&event, 1}); }

  EventFileWriter file_;
};

}  // namespace

TensorBoardLogger::TensorBoardLogger(const std::filesystem::path& folder, const BackgroundOptions& options)
    : BackgroundLogger("tensorboard", folder, std::make_unique<TensorBoardWriter>(make_log_dir(folder)),
                       options) {}

}  // namespace mantissa
