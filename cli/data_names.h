#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mantissa {
class Dataset;
}

namespace mantissa::cli {

/// What the numbers of a data set stand for. Data that has nothing but numbers leaves all of it empty. A run keeps the names
/// of its data, so that other data, in which a class is missing or columns have another order, is numbered alike.
struct DataNames {
  std::vector<std::string> classes = {};  ///< a label is a position in it
  std::vector<std::string> columns = {};  ///< the features of a table
  std::string target = {};                ///< the column of a table that has the classes
  std::string dtype = {};  ///< of the values in arrays: "uint8", which are divided by 255, or "float32"
};

/// Checks that a run can keep these names, which are those of folders, in its file of UTF-8.
/// Errors: c10::ValueError that names the class; `data` begins it.
void check_class_names(const std::vector<std::string>& classes, const std::string& data);

/// The numbers of samples to train on and to validate on. They decide which samples are held out, so a run that is resumed needs
/// the same ones.
struct DataSizes {
  int64_t train = 0, val = 0;
};

/// What a run keeps of its data.
struct DataRecord {
  DataNames names = {};
  std::optional<DataSizes> sizes = {};  ///< nothing for a run that has not kept them
};

/// Writes the record to a run's folder.
void save_record(const DataRecord& record, const std::filesystem::path& run);

/// Returns what a run has kept, which may be nothing.
/// Errors: c10::ValueError for a damaged file.
DataRecord load_record(const std::filesystem::path& run);

/// Checks that data has the sizes of the run that is resumed on it.
/// Errors: c10::ValueError that names both; `data` begins it.
void check_sizes(const DataSizes& run, const DataSizes& now, const std::string& data);

/// Returns the dataset, whose labels are positions in `classes`, with positions in the run's classes as labels.
/// Errors: c10::ValueError that names a class that the run does not have; `data` begins it.
std::shared_ptr<const Dataset> number_as_in(const std::vector<std::string>& run,
                                            const std::vector<std::string>& classes,
                                            std::shared_ptr<const Dataset> dataset, const std::string& data);

}  // namespace mantissa::cli
