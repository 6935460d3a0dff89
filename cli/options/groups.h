#pragma once

#include <string>
#include <vector>

#include "cli/option.h"

// The groups of the options of `fit`, a file for each: an option is one row in the file of its group. options()
// (option_table.cpp) puts them together.
//
// The defaults suit the image models on small images in every mode. Plain SGD updates fp16 weights, whereas
// Adam's epsilon and second moments fall below fp16's smallest number. The defaults for text suit byte-level
// language modelling: 1,500 steps of 16 x 128 bytes of tiny Shakespeare end near 1.67 nats per byte.
namespace mantissa::cli {

std::vector<Option> data_options();
std::vector<Option> image_options();
std::vector<Option> model_options();
std::vector<Option> precision_options();
std::vector<Option> optimizer_options();
std::vector<Option> schedule_options();
std::vector<Option> limit_options();
std::vector<Option> logging_options();
std::vector<Option> checkpoint_options();

inline constexpr Range kFromZero{0, kLargest};

/// Returns "a, b or c".
std::string either(std::vector<std::string> names);

/// Returns the metrics that a run can be judged by.
const std::vector<std::string>& metrics();

}  // namespace mantissa::cli
