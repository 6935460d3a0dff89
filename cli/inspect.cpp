#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/find_checkpoint.h"
#include "cli/terminal_text.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/sharded.h"
#include "mantissa/io/value_summary.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The number of bytes that are read at a time.
constexpr int64_t kPieceBytes = 16 << 20;

struct InspectCommand {
  std::vector<std::string> files, filters;
  std::string sort = "name";
  bool json = false, no_values = false, check = false;
};

/// An open container of tensors. Only its headers have been read.
struct Listing {
  std::string path, kind;
  std::vector<std::string> files;
  std::map<std::string, std::string> metadata;
  std::map<std::string, SafetensorsEntry> entries;
  /// Passes all elements of a tensor to `take`, in pieces.
  std::function<void(const std::string& name, const TakeElements& take)> read;
};

Listing open_safetensors(const fs::path& path) {
  const auto model = std::make_shared<SafetensorsModel>(path);
  Listing listing{path.string(),
                  model->is_sharded() ? "sharded safetensors" : "safetensors",
                  {},
                  model->metadata(),
                  model->entries(),
                  {}};
  for (const fs::path& file : model->files()) listing.files.push_back(file.string());
  const at::Tensor buffer = at::empty({kPieceBytes}, at::kByte);
  listing.read = [model, buffer](const std::string& name, const TakeElements& take) {
    model->read_pieces(name, buffer, kPieceBytes, take);
  };
  return listing;
}

/// The tensors of the state are listed beside the weights, as state/NAME.
Listing open_checkpoint(const fs::path& path) {
  constexpr const char* kState = "state/";
  const Manifest manifest = read_manifest(path);
  Listing listing = open_safetensors(path / kCheckpointWeights);
  listing.path = path.string();
  listing.kind = "checkpoint";
  listing.metadata["step"] = std::to_string(manifest.step);
  listing.metadata["mantissa_version"] = manifest.mantissa_version;
  listing.metadata["libtorch_version"] = manifest.libtorch_version;
  const StateReader state(manifest.state, path.string());
  if (const auto precision = state.find("precision"))
    listing.metadata["precision"] = precision->at("name").to_string();
  if (const auto progress = state.find("progress"))
    listing.metadata["epoch"] = std::to_string(progress->at("epoch").to_int());
  if (!manifest.files.contains("state.safetensors")) return listing;
  Listing more = open_safetensors(path / "state.safetensors");
  listing.files.insert(listing.files.end(), more.files.begin(), more.files.end());
  for (auto& [name, entry] : more.entries) listing.entries.emplace(kState + name, std::move(entry));
  listing.read = [weights = std::move(listing.read), states = std::move(more.read)](
                     const std::string& name, const TakeElements& take) {
    if (name.starts_with(kState)) return states(name.substr(std::strlen(kState)), take);
    weights(name, take);
  };
  return listing;
}

Listing open(const fs::path& path) {
  const fs::path checkpoint = find_checkpoint(path);
  return checkpoint.empty() ? open_safetensors(path) : open_checkpoint(checkpoint);
}

/// The properties of one tensor, or of several together.
struct Row {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t tensors = 1, elements = 0;
  uint64_t bytes = 0;
  std::optional<ValueSummary> values;
};

std::vector<Row> rows_of(const Listing& listing, const InspectCommand& command) {
  check_globs("--filter", command.filters, keys_of(listing.entries));
  std::vector<Row> rows;
  for (const auto& [name, entry] : listing.entries) {
    if (!command.filters.empty() && !matches_any(command.filters, name)) continue;
    rows.push_back({name, std::string(*safetensors_dtype_name(entry.dtype)), entry.shape, 1,
                    c10::multiply_integers(entry.shape), entry.end - entry.begin, std::nullopt});
  }
  if (command.sort == "bytes")
    std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.bytes > b.bytes; });
  return rows;
}

ValueSummary summarize(const Listing& listing, const Row& row) {
  ValueSummary all;
  listing.read(row.name, [&](const at::Tensor& piece) { all.add(summarize_values(piece)); });
  return all;
}

std::string text(const ValueSummary::Number& number) {
  return std::visit(
      [](auto value) {
        if constexpr (std::is_floating_point_v<decltype(value)>) return fmt::format("{:.5g}", value);
        return fmt::format("{}", value);
      },
      number);
}

/// Returns counts and ranges, one cell for each of kValueColumns.
constexpr std::array kValueColumns{"min", "max", "mean", "std", "nan", "inf", "zero", "denormal"};
std::array<std::string, kValueColumns.size()> value_cells(const ValueSummary& v) {
  const bool any = v.finite() > 0;
  return {any ? text(v.min) : "-",
          any ? text(v.max) : "-",
          any ? fmt::format("{:.5g}", v.mean) : "-",
          any ? fmt::format("{:.5g}", v.std()) : "-",
          fmt::format("{}", v.nans),
          fmt::format("{}", v.infs),
          fmt::format("{}", v.zeros),
          fmt::format("{}", v.denormals)};
}

std::string shape_text(const Row& row) { return fmt::format("[{}]", fmt::join(row.shape, ", ")); }

/// Returns a column's width, at most kMaxColumnWidth. A name in a file may have millions of letters, which
/// must not widen every row.
size_t widest(const std::vector<Row>& rows, size_t min_width,
              const std::function<std::string(const Row&)>& cell) {
  constexpr size_t kMaxColumnWidth = 200;
  for (const Row& row : rows) min_width = std::max(min_width, cell(row).size());
  return std::min(min_width, kMaxColumnWidth);
}

/// Returns the totals by dtype, in the order of the dtypes' names.
std::vector<Row> totals(const std::vector<Row>& rows) {
  std::map<std::string, Row> sums;
  for (const Row& row : rows) {
    Row& sum =
        sums.try_emplace(row.dtype, Row{row.dtype, row.dtype, {}, 0, 0, 0, std::nullopt}).first->second;
    sum.tensors += 1;
    sum.elements += row.elements;
    sum.bytes += row.bytes;
    if (!row.values) continue;
    if (!sum.values) sum.values.emplace();
    sum.values->add(*row.values);
  }
  std::vector<Row> list;
  for (auto& [dtype, sum] : sums) list.push_back(std::move(sum));
  return list;
}

std::string values_text(const Row& row) {
  std::string line;
  if (!row.values) return line;
  for (const std::string& cell : value_cells(*row.values)) line += fmt::format(" {:>11}", cell);
  return line;
}

std::string values_head(bool no_values) {
  std::string line;
  if (no_values) return line;
  for (const char* column : kValueColumns) line += fmt::format(" {:>11}", column);
  return line;
}

/// Prints each row as soon as it is known, because a large model takes a while.
void print(const Listing& listing, std::vector<Row>& rows, const InspectCommand& command) {
  uint64_t bytes = 0;
  int64_t elements = 0;
  for (const Row& row : rows) bytes += row.bytes, elements += row.elements;
  fmt::print("{}: {}, {} tensors, {} elements, {}\n", printable(listing.path), listing.kind, rows.size(),
             elements, human_bytes(bytes));
  if (listing.files.size() > 1) fmt::print("files: {}\n", listing.files.size());
  for (const auto& [key, value] : listing.metadata)
    fmt::print("metadata: {}: {}\n", printable(key), printable(value));

  const size_t name = widest(rows, 4, [](const Row& row) { return row.name; });
  const size_t shape = widest(rows, 5, shape_text);
  const std::string head = values_head(command.no_values);
  fmt::print("\n{:<{}} {:<7} {:<{}} {:>12}{}\n", "name", name, "dtype", "shape", shape, "bytes", head);
  for (Row& row : rows) {
    if (!command.no_values) row.values = summarize(listing, row);
    fmt::print("{:<{}} {:<7} {:<{}} {:>12}{}\n", printable(row.name), name, row.dtype, shape_text(row), shape,
               row.bytes, values_text(row));
  }
  fmt::print("\n{:<7} {:>8} {:>14} {:>15}{}\n", "dtype", "tensors", "elements", "bytes", head);
  for (const Row& row : totals(rows))
    fmt::print("{:<7} {:>8} {:>14} {:>15}{}\n", row.dtype, row.tensors, row.elements, row.bytes,
               values_text(row));
}

Json number(const ValueSummary::Number& value) {
  return std::visit([](auto v) { return Json(v); }, value);
}

void add_values(Json& json, const Row& row) {
  if (!row.values) return;
  const ValueSummary& v = *row.values;
  const bool any = v.finite() > 0;
  json["min"] = any ? number(v.min) : Json();
  json["max"] = any ? number(v.max) : Json();
  json["mean"] = any ? Json(static_cast<double>(v.mean)) : Json();
  json["std"] = any ? Json(v.std()) : Json();
  json["nan"] = v.nans;
  json["inf"] = v.infs;
  json["zero"] = v.zeros;
  json["denormal"] = v.denormals;
}

Json to_json(const Listing& listing, std::vector<Row>& rows, const InspectCommand& command) {
  Json tensors = Json::array(), sums = Json::object();
  for (Row& row : rows) {
    if (!command.no_values) row.values = summarize(listing, row);
    Json one{{"name", row.name},
             {"dtype", row.dtype},
             {"shape", row.shape},
             {"elements", row.elements},
             {"bytes", row.bytes}};
    add_values(one, row);
    tensors.push_back(std::move(one));
  }
  for (const Row& row : totals(rows)) {
    Json one{{"tensors", row.tensors}, {"elements", row.elements}, {"bytes", row.bytes}};
    add_values(one, row);
    sums[row.dtype] = std::move(one);
  }
  return {{"path", listing.path},         {"kind", listing.kind},          {"files", listing.files},
          {"metadata", listing.metadata}, {"tensors", std::move(tensors)}, {"totals", std::move(sums)}};
}

void inspect(const InspectCommand& command) {
  if (command.sort != "name" && command.sort != "bytes")
    throw UsageError("--sort '" + command.sort + "' is not a valid value" +
                     did_you_mean(command.sort, {"name", "bytes"}) + "; choose from name, bytes");
  if (command.check && command.no_values)
    throw UsageError("--check needs the values, which --no-values leaves out; give one of them");
  // All files are opened first, so that a problem with the last one does not show after an hour.
  std::vector<std::pair<Listing, std::vector<Row>>> all;
  for (const std::string& file : command.files) {
    Listing listing = open(file);
    std::vector<Row> rows = rows_of(listing, command);
    all.emplace_back(std::move(listing), std::move(rows));
  }
  Json json = Json::array();
  std::vector<std::string> bad;
  for (auto& [listing, rows] : all) {
    if (command.json) {
      json.push_back(to_json(listing, rows, command));
    } else {
      if (&listing != &all.front().first) fmt::print("\n");
      print(listing, rows, command);
    }
    for (const Row& row : rows)
      if (row.values && row.values->finite() < row.values->values) bad.push_back(printable(row.name));
  }
  if (command.json) fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  if (!command.check || bad.empty()) return;
  const size_t count = bad.size();
  constexpr size_t kListed = 8;
  if (count > kListed) {
    bad.resize(kListed);
    bad.push_back(fmt::format("and {} more", count - kListed));
  }
  throw CheckFailed(fmt::format("{} {} nan or inf: {}", count, count == 1 ? "tensor holds" : "tensors hold",
                                join_names(bad)));
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("inspect", "List the tensors of a safetensors file or a sharded model");
  const auto command = std::make_shared<InspectCommand>();
  sub->add_option("files", command->files,
                  "safetensors files, a sharded model's *.safetensors.index.json, or a folder with one")
      ->required()
      ->option_text("FILE...");
  sub->add_option("--filter", command->filters, "only tensors of this name, a shell pattern; repeatable")
      ->allow_extra_args(false)
      ->option_text("GLOB");
  sub->add_option("--sort", command->sort, "order of the tensors, of bytes the largest first [name]")
      ->option_text("name|bytes");
  sub->add_flag("--no-values", command->no_values, "read the headers only");
  sub->add_flag("--check", command->check, "end with status 3 if there is a nan or inf");
  sub->add_flag("--json", command->json, "write JSON to standard output instead of tables");
  sub->footer(
      "Exit status: 0 done, 1 a file cannot be read, 2 the command is wrong, 3 --check found a nan or inf.");
  sub->callback([command] { inspect(*command); });
}

}  // namespace mantissa::cli
