#include <cstdint>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <system_error>

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/data_names.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/json_output.h"
#include "cli/number_flag.h"
#include "cli/option_parsers.h"
#include "cli/outputs.h"
#include "mantissa/data/images/image_folder.h"
#include "mantissa/data/images/packed_images.h"

namespace mantissa::cli {
namespace {

struct PackCommand {
  std::string folder, output, json;
  int64_t shorter_side = 0, quality = 0;
  bool skips_corrupt = false, overwrite = false, quiet = false;
};

/// Throws if the folder holds a data set's parts (train and val, each with class folders) instead of classes.
void refuse_split_folder(const std::filesystem::path& folder) {
  const auto has_folders = [&](const char* part) {
    std::error_code ignored;
    std::filesystem::directory_iterator entry(folder / part, ignored);
    for (const std::filesystem::directory_iterator end{}; entry != end; entry.increment(ignored))
      if (entry->is_directory(ignored)) return true;
    return false;
  };
  TORCH_CHECK_VALUE(
      !has_folders("train") || !has_folders("val"), "'", folder.string(),
      "' has the parts train and val; pack each by itself, as train.pack and val.pack in one folder");
}

void run_pack(const PackCommand& c) {
  check_outputs({{c.output, c.overwrite}, {c.json}}, {c.folder});
  refuse_split_folder(c.folder);
  PackOptions options{.shorter_side = c.shorter_side, .jpeg_quality = c.quality};
  if (c.skips_corrupt) options.skip = [](const std::string& why) { TORCH_WARN(why, "; it is left out"); };
  const ImageFolder folder(c.folder);
  check_class_names(folder.classes(), "'" + c.folder + "'");
  const PackSummary summary = pack_images(folder, c.output, options);
  write_json({{"folder", c.folder},
              {"output", c.output},
              {"images", summary.images},
              {"skipped", summary.skipped},
              {"classes", folder.classes().size()},
              {"bytes", summary.bytes}},
             c.json);
  if (c.quiet) return;
  print_to_stderr(fmt::format("{}: {} images of {} classes, {} bytes{}\n", c.output, summary.images,
                              folder.classes().size(), summary.bytes,
                              summary.skipped == 0 ? "" : fmt::format(", {} skipped", summary.skipped)));
}

}  // namespace

void add_pack(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("pack", "Writes a folder of images as one file that is fast to read");
  const auto command = std::make_shared<PackCommand>();
  PackCommand& c = *command;
  sub->add_option("folder", c.folder, "a folder that has one folder of JPEG and PNG images for each class")
      ->required()
      ->option_text("DIR");
  sub->add_option("--output,-o", c.output, "the file to write, for --data images:FILE")
      ->required()
      ->option_text("FILE");
  add_number(*sub, "--shorter-side", c.shorter_side, "N",
             "reduces images whose shorter side has more pixels, for example to 256; 0: keeps the size [0]");
  add_number(*sub, "--quality", c.quality, "Q",
             "1 to 100: stores JPEG of this quality; 0: stores uncompressed pixels (3 bytes each), which is "
             "fastest to read [0]");
  sub->add_flag("--skip-corrupt", c.skips_corrupt,
                "leaves out images that cannot be decoded, with a warning; without it, the first one is an "
                "error");
  sub->add_flag("--overwrite", c.overwrite, "replaces an existing output file");
  add_json_flag(*sub, c.json);
  sub->add_flag("--quiet", c.quiet, "prints no summary on standard error");
  sub->footer(
      "Pack the parts of a data set as DIR/train.pack and DIR/val.pack, and train with --data images:DIR.");
  sub->callback([command] { run_pack(*command); });
}

}  // namespace mantissa::cli
