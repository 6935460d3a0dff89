#include "mantissa/data/csv.h"

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

/// The first byte chooses the separator and whether there is a header. The others are the file.
void csv(std::string_view bytes) {
  if (bytes.empty()) return;
  const CsvOptions options{.separator = (bytes[0] & 1) != 0 ? ';' : ',', .has_header = (bytes[0] & 2) == 0};
  const auto table = accepted([&] { return parse_csv(bytes.substr(1), options, "f"); });
  if (!table) return;
  require(table->data.size(0) == table->target.size(0), "another number of classes than rows");
  require(table->data.size(1) == std::ssize(table->columns), "another number of names than columns");
  require(table->data.isfinite().all().item<bool>(), "a number that is not finite");
  require(table->target.ge(0).all().item<bool>() &&
              table->target.lt(std::ssize(table->classes)).all().item<bool>(),
          "a row without a class");
}

}  // namespace mantissa::fuzz
