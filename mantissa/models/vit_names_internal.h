#pragma once

#include <string>

namespace mantissa {

/// Returns timm's name for torchvision's name of a weight of a Vision Transformer, or of a part of it such as ".absmax", and the reverse.
/// Names of other forms are returned as they are.
std::string vit_name_of_timm(const std::string& torchvision);
std::string vit_name_of_torchvision(const std::string& timm);

}  // namespace mantissa
