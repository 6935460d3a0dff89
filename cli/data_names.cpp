#include "cli/data_names.h"

#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "cli/json_output.h"
#include "cli/run_folder.h"
#include "mantissa/core/suggest.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/tokenizers/utf8_internal.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/json_internal.h"

namespace mantissa::cli {
namespace {

/// A dataset whose labels have other numbers.
class Renumbered final : public Dataset {
 public:
  /// Shape of `numbers`: int64 [classes].
  Renumbered(std::shared_ptr<const Dataset> dataset, at::Tensor numbers)
      : dataset_(std::move(dataset)), numbers_(std::move(numbers)) {}
  int64_t size() const override { return dataset_->size(); }
  Batch get_batch(const at::Tensor& indices) const override {
    return renumbered(dataset_->get_batch(indices));
  }
  Batch draw_batch(const at::Tensor& indices, const at::Generator& generator) const override {
    return renumbered(dataset_->draw_batch(indices, generator));
  }

 private:
  Batch renumbered(Batch batch) const {
    batch.target = numbers_.index_select(0, batch.target);
    return batch;
  }

  std::shared_ptr<const Dataset> dataset_;
  at::Tensor numbers_;
};

constexpr const char *kTrainSamples = "train_samples", *kValSamples = "val_samples";

/// Errors: Json::exception for one number without the other, and for what is no number of samples.
std::optional<DataSizes> sizes_in(const Json& json) {
  if (!json.contains(kTrainSamples) && !json.contains(kValSamples)) return std::nullopt;
  const auto number = [&](const char* key) { return json.at(key).get_ref<const uint64_t&>(); };
  return DataSizes{static_cast<int64_t>(number(kTrainSamples)), static_cast<int64_t>(number(kValSamples))};
}

}  // namespace

void check_class_names(const std::vector<std::string>& classes, const std::string& data) {
  for (const std::string& name : classes)
    TORCH_CHECK_VALUE(tokenizers::find_invalid_utf8(name) == std::string::npos, data, " has the class '",
                      fit_for_message(name),
                      "', whose name is not UTF-8, so a run could not keep it; rename its folder");
}

void save_record(const DataRecord& record, const std::filesystem::path& run) {
  const DataNames& names = record.names;
  Json json;
  if (!names.classes.empty()) json["classes"] = names.classes;
  if (!names.columns.empty()) json["columns"] = names.columns, json["target"] = names.target;
  if (!names.dtype.empty()) json["dtype"] = names.dtype;
  if (record.sizes) json[kTrainSamples] = record.sizes->train, json[kValSamples] = record.sizes->val;
  if (json.is_null()) return;
  write_file_atomically(run / kDataRecord, dump(json) + "\n", Links::kReplace);
}

DataRecord load_record(const std::filesystem::path& run) {
  const std::filesystem::path file = run / kDataRecord;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return {};
  std::ifstream in(file, std::ios::binary);
  DataRecord record;
  DataNames& names = record.names;
  try {
    const Json json = Json::parse(in);
    const auto list = [&](const char* key) { return json.value(key, std::vector<std::string>()); };
    names = {.classes = list("classes"),
             .columns = list("columns"),
             .target = json.value("target", std::string()),
             .dtype = json.value("dtype", std::string())};
    record.sizes = sizes_in(json);
  } catch (const Json::exception&) {
    record = {};  // refused below, as what says nothing
  }
  const auto is_set = [](const std::vector<std::string>& all) {
    return std::set<std::string>(all.begin(), all.end()).size() == all.size();
  };
  const bool says_something = !names.classes.empty() || !names.dtype.empty() || record.sizes;
  TORCH_CHECK_VALUE(says_something && is_set(names.classes) && is_set(names.columns) &&
                        names.columns.empty() == names.target.empty(),
                    "'", file.string(),
                    "' is damaged: it does not say what the run knows of its data; restore it from a copy");
  return record;
}

void check_sizes(const DataSizes& run, const DataSizes& now, const std::string& data) {
  TORCH_CHECK_VALUE(run.train == now.train && run.val == now.val, "--data ", data, " has ", now.train,
                    " samples to train on and ", now.val, " to validate on, and the run began with ",
                    run.train, " and ", run.val,
                    ": on other data it may train on samples that it has held out; give the data it began "
                    "with as --data, or begin another run: fit --weights");
}

std::shared_ptr<const Dataset> number_as_in(const std::vector<std::string>& run,
                                            const std::vector<std::string>& classes,
                                            std::shared_ptr<const Dataset> dataset, const std::string& data) {
  if (run == classes) return dataset;
  std::map<std::string, int64_t> positions;
  for (const std::string& name : run) positions.emplace(name, std::ssize(positions));
  std::vector<int64_t> numbers;
  for (const std::string& name : classes) {
    const auto found = positions.find(name);
    TORCH_CHECK_VALUE(found != positions.end(), "--data ", data, " has the class '", fit_for_message(name),
                      "', which is none of the ", run.size(), " classes of the run", did_you_mean(name, run),
                      "; give data of those classes");
    numbers.push_back(found->second);
  }
  return std::make_shared<Renumbered>(std::move(dataset), at::tensor(numbers, at::kLong));
}

}  // namespace mantissa::cli
