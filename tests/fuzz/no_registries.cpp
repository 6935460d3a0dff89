// The parsers need the names and kinds of options, and none of the models, modes and optimizers that some of
// them choose from: those would link every room.
#include "cli/option.h"

namespace mantissa::cli {

std::vector<std::string> registered_names(Registry /*registry*/) { return {"none"}; }

}  // namespace mantissa::cli
