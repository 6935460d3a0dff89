#include "cli/adapters.h"

#include <system_error>

#include <c10/util/Exception.h>

#include "cli/errors.h"
#include "cli/fit_options.h"
#include "cli/lora_option.h"
#include "cli/run_folder.h"
#include "mantissa/core/formats.h"
#include "mantissa/lora/adapter_files.h"

namespace mantissa::cli {

bool has_adapter(const FitOptions& o) { return o.lora || !o.adapter.empty(); }

void check_adapter(const FitOptions& o) {
  if (!has_adapter(o)) return;
  const char* const flag = o.lora ? "--lora" : "--adapter";
  TORCH_CHECK_VALUE(!o.lora || o.adapter.empty(), "--adapter ", o.adapter,
                    " has its own settings, so --lora cannot give others; leave one of the two out");
  TORCH_CHECK_VALUE(o.precision() == "all" || o.traits().weights != Format::kFloat64, flag,
                    ": adapters are float32 and cannot be trained with --precision ", o.precision(),
                    "; choose another --precision");
}

std::optional<LoraModel> add_adapter(const FitOptions& o, torch::nn::Module& model,
                                     const std::filesystem::path& run) {
  if (o.lora) {
    LoraConfig config = *o.lora;
    config.base_model_name_or_path = o.weights;
    return usage([&] { return naming_lora_settings("--lora", [&] { return LoraModel(model, config); }); });
  }
  if (o.adapter.empty()) return std::nullopt;
  const std::filesystem::path folder = run.empty() ? std::filesystem::path(o.adapter) : run / kAdapter;
  const auto load = [&] {
    return LoraModel::from_pretrained(model, folder, "default", /*is_trainable=*/true);
  };
  // A folder without an adapter is a wrong option. A damaged adapter is a damaged file, and no option is wrong.
  std::error_code error;
  return std::filesystem::exists(folder / kAdapterConfig, error) ? load() : usage(load);
}

}  // namespace mantissa::cli
