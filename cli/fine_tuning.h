#pragma once

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace mantissa::cli {

struct FitOptions;

/// Returns the name of a model's output layer: the one whose parameters come last.
/// Errors: c10::ValueError that begins with `flag` if this is no linear layer, as in a model whose output layer is its table of
///         embeddings.
std::string output_layer(const torch::nn::Module& model, const std::string& flag);

/// Loads the weights that training begins with: those of `--weights`, with `--new-head` except those of the output layer, which
/// keeps its values. The file's output layer may then have another shape, or be missing.
/// Memory: the whole file if it is quantized.
/// Errors: those of load_model_weights(), which suggest `--new-head` if only the output layer does not fit; with that those of
///         output_layer().
void load_first_weights(torch::nn::Module& model, const FitOptions& options);

/// Freezes all parameters but those that `names` select and those of an adapter. A name is that of a parameter, of a module,
/// which selects all its parameters, or a shell pattern for names of parameters, as the model or its files have them; "head" is
/// also the output layer. Nothing changes if `names` is empty.
/// Errors: c10::ValueError for a name that selects nothing, and for a weight that cannot be trained, because it is quantized or
///         has an adapter. Nothing has changed then.
void train_only(torch::nn::Module& model, const std::vector<std::string>& names);

}  // namespace mantissa::cli
