#include <cstdint>
#include <fmt/format.h>
#include <memory>
#include <string>

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/option_parsers.h"
#include "cli/run_folder.h"
#include "cli/train_run.h"
#include "mantissa/data/images/image_folder.h"
#include "mantissa/data/images/packed_images.h"

namespace mantissa::cli {
namespace {

struct PackCommand {
  std::string folder, output, json;
  int64_t shorter_side = 0, quality = 0;
  bool skips_corrupt = false, quiet = false;
};

void run_pack(const PackCommand& c) {
  check_json(c.json);
  check_writable(c.output);
  PackOptions options{.shorter_side = c.shorter_side, .jpeg_quality = c.quality};
  if (c.skips_corrupt) options.skip = [](const std::string& why) { TORCH_WARN(why, "; it is left out"); };
  const ImageFolder folder(c.folder);
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
  sub->add_option("--shorter-side", c.shorter_side,
                  "reduces images whose shorter side has more pixels, for example to 256; 0: keeps the size");
  sub->add_option(
      "--quality", c.quality,
      "1 to 100: stores JPEG of this quality; 0: stores pixels, which are the fastest to read and "
      "take 3 bytes each");
  sub->add_flag("--skip-corrupt", c.skips_corrupt,
                "leaves out images that cannot be decoded, with a warning; without it, the first one is an "
                "error");
  add_json_flag(*sub, c.json);
  sub->add_flag("--quiet", c.quiet, "no summary on standard error");
  sub->footer(
      "Pack the parts of a data set as DIR/train.pack and DIR/val.pack, and train with --data images:DIR.");
  sub->callback([command] { run_pack(*command); });
}

}  // namespace mantissa::cli
