// The parsers need the names and kinds of options, but not the models, modes and optimizers that some options
// choose from: these would link every room.
#include "cli/option.h"

namespace mantissa::cli {

std::vector<std::string> registered_names(Registry /*registry*/) { return {"none"}; }

}  // namespace mantissa::cli
