#pragma once

#include <filesystem>
#include <memory>
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

/// Writes the names to a run's folder. Without names, writes nothing.
void save_names(const DataNames& names, const std::filesystem::path& run);

/// Returns the names that a run has kept, or none.
/// Errors: c10::ValueError for a damaged file.
DataNames load_names(const std::filesystem::path& run);

/// Returns the dataset, whose labels are positions in `classes`, with positions in the run's classes as labels.
/// Errors: c10::ValueError that names a class that the run does not have; `data` begins it.
std::shared_ptr<const Dataset> number_as_in(const std::vector<std::string>& run,
                                            const std::vector<std::string>& classes,
                                            std::shared_ptr<const Dataset> dataset, const std::string& data);

}  // namespace mantissa::cli
