#pragma once

namespace mantissa::tokenizers {

/// The pattern that cuts text into words for GPT-2.
/// Source: Radford et al. 2019, the code of GPT-2's encoder.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace mantissa::tokenizers
