#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa {

struct CsvOptions {
  /// The column that has the classes; empty: the last one. Without a header, columns are called "0", "1" and so on.
  std::string target = {};
  /// The columns of `data`, in this order, such as those of the table that a model was trained on. Other columns are not
  /// read, and without `target` no class is, unless `last_is_target`. Empty: all columns but the target.
  std::vector<std::string> features = {};
  /// The last column has the classes if `target` names none, also with `features`.
  bool last_is_target = false;
  /// The classes by their numbers, such as those of the table that a model was trained on; empty: those of the table.
  std::vector<std::string> classes = {};
  char separator = ',';
  bool has_header = true;
};

/// A table of numbers with a class for each row.
struct CsvTable {
  at::Tensor data;                   ///< float32 [rows, columns]
  at::Tensor target;                 ///< int64 [rows]; undefined if no class was read
  std::vector<std::string> columns;  ///< names of the columns of `data`
  std::string target_column;         ///< the name of the column of `target`
  /// The classes by their numbers. If the target column has whole numbers from 0 on, they are these.
  std::vector<std::string> classes;
};

/// Parses a table with separators: RFC 4180, with quoted fields, and lines that end in LF or CR LF. Empty lines are left out. `name`
/// begins the errors. Options find a column by its name, also without the blanks around it if only one has it so. (fast-cpp-csv-parser knows the number of columns at compile time, and libcsv cannot be linked statically by
/// programs of every licence.)
/// Memory: 4 bytes for each number; while the table is read, its text and up to three times as many.
/// Errors: c10::ValueError that names line and column for a field that is no finite number, a row with another number of fields,
///         a quote without an end, no class, a class or a name of a column that is not UTF-8, a class that is none of `classes`, and a class number above 65535; and for no row, fewer than two columns, two
///         columns of a name, a target or feature that is no column, a feature that is listed twice, and a target among the
///         features. A header whose features have numbers for names is warned of, unless `features` gives these.
CsvTable parse_csv(std::string_view text, const CsvOptions& options, const std::string& name);

/// Errors: those of parse_csv(), which name the file; c10::Error that names it if it cannot be read.
CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options = {});

}  // namespace mantissa
