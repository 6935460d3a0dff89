#include "mantissa/models/plugin.h"

#include <dlfcn.h>
#include <filesystem>
#include <system_error>

#include <c10/util/Exception.h>

#include "mantissa/models/config_fields_internal.h"

namespace mantissa {
namespace {

using Export = const ModelPlugin*();

/// Returns the exported function of a library.
Export* load_export(const std::string& file) {
  std::error_code error;
  TORCH_CHECK_VALUE(std::filesystem::is_regular_file(file, error), "plug-in ", quoted(file),
                    ": there is no such file; give the path of a shared library");
  // A path without a slash would be looked for in the system's folders.
  void* const library = dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* problem = dlerror();
  TORCH_CHECK_VALUE(library, "plug-in ", quoted(file), " cannot be loaded: ", problem ? problem : "",
                    "; link a shared library that needs no other libtorch than the program's: one that is "
                    "linked without libtorch finds it");
  void* const found = dlsym(library, "mantissa_model_plugin");
  TORCH_CHECK_VALUE(found, "plug-in ", quoted(file),
                    " exports no model; write MANTISSA_MODEL_PLUGIN(...) in it, outside of all namespaces");
  return reinterpret_cast<Export*>(found);
}

void check_version(const std::string& file, const PluginVersion& theirs) {
  const PluginVersion ours;
  TORCH_CHECK_VALUE(theirs.interface_number == ours.interface_number, "plug-in ", quoted(file),
                    " was built for version ", theirs.interface_number,
                    " of the interface of plug-ins, and this program has version ", ours.interface_number,
                    "; build it with this program's headers");
  TORCH_CHECK_VALUE(std::string(theirs.torch) == ours.torch, "plug-in ", quoted(file),
                    " was built with libtorch ", theirs.torch, ", and this program with ", ours.torch,
                    "; build it with this program's libtorch");
  TORCH_CHECK_VALUE(theirs.compiler == ours.compiler, "plug-in ", quoted(file), " has version ",
                    theirs.compiler, " of the compiler's ABI, and this program ", ours.compiler,
                    "; build both with the same compiler");
}

std::shared_ptr<TensorModule> make_checked(const std::string& file, const ModelPlugin& plugin,
                                           const ModelInput& input) {
  std::shared_ptr<TensorModule> model;
  try {
    model = plugin.make(input);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "plug-in ", quoted(file), ": ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, "plug-in ", quoted(file), ": ", error.what());
  }
  TORCH_CHECK_VALUE(model, "plug-in ", quoted(file),
                    " returned no model; let it throw what is wrong instead");
  return model;
}

}  // namespace

ModelEntry load_model_plugin(const std::string& name, const std::string& file) {
  const ModelPlugin& plugin = *load_export(file)();
  check_version(file, plugin.version);
  return {name, plugin.summary, plugin.input,
          [file, &plugin](const ModelInput& input) { return make_checked(file, plugin, input); }};
}

}  // namespace mantissa
