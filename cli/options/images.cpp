#include <string>
#include <vector>

#include "cli/fit_options.h"
#include "cli/option_destination.h"
#include "cli/options/groups.h"

namespace mantissa::cli {

// The defaults are those of torchvision's training of ImageNet.
std::vector<Option> image_options() {
  constexpr auto kGroup = Group::kImages;
  return {
      {.name = "image_size",
       .group = kGroup,
       .to = to(&ImageOptions::size),
       .default_value = 224,
       .help = "images: data: height and width of the crops; for validation, the shorter side is first "
               "resized to 256 of 224 of it",
       .range = {{1, 16384}},
       .known_as = {"img_size", "crop_size", "resolution", "input_size"}},
      {.name = "crop_scale",
       .group = kGroup,
       .to = to(&ImageOptions::crop_scale),
       .default_value = 0.08,
       .help = "images: data: the smallest share of an image's area that a random crop takes",
       .range = {{1e-4, 1}},
       .known_as = {"scale", "random_resized_crop"}},
      {.name = "flip",
       .group = kGroup,
       .to = to(&ImageOptions::flip),
       .default_value = 0.5,
       .help = "images: and cifar: data: probability with which an image is mirrored in training",
       .range = {{0, 1}},
       .known_as = {"hflip", "horizontal_flip"}},
      {.name = "shift",
       .group = kGroup,
       .to = to(&ImageOptions::shift),
       .default_value = 0,
       .help = "images that are not files of an images: folder move by up to so many pixels to any side in "
               "training",
       .range = {{0, 1024, "none"}},
       .known_as = {"translate", "random_crop_padding"}},
      {.name = "color_jitter",
       .group = kGroup,
       .to = to(&ImageOptions::color_jitter),
       .default_value = 0.0,
       .help = "images: data: brightness, contrast and saturation change by a factor of up to 1 +- this",
       .range = {{0, 1, "none"}},
       .known_as = {"jitter"}},
      {.name = "rand_augment",
       .group = kGroup,
       .to = to(&ImageOptions::rand_augment),
       .default_value = 0,
       .help = "images: data: magnitude of two operations of RandAugment, such as 9; 0: none",
       .range = {{0, 30, "none"}},
       .known_as = {"ra_magnitude", "auto_augment", "aa"}},
      {.name = "mixup",
       .group = kGroup,
       .to = to(&ImageOptions::mixup),
       .default_value = 0.0,
       .help = "images, and rows of features, are mixed with each other by shares of a Beta distribution "
               "with this parameter, such as 0.2; 0: not",
       .range = {{0, 1e6, "none"}},
       .known_as = {"mixup_alpha"}},
      {.name = "cutmix",
       .group = kGroup,
       .to = to(&ImageOptions::cutmix),
       .default_value = 0.0,
       .help =
           "rectangles of images are exchanged, as large as a Beta distribution with this parameter says, "
           "such as 1; 0: not",
       .range = {{0, 1e6, "none"}},
       .known_as = {"cutmix_alpha"}},
      {.name = "corrupt_images",
       .group = kGroup,
       .to = to(&ImageOptions::corrupt),
       .default_value = "refuse",
       .help = "images: data: what becomes of an image that cannot be decoded: refuse ends the run, and skip "
               "warns once of each",
       .choices = {"refuse", "skip"},
       .in_trained = true},
      {.name = "exact_decoding",
       .group = kGroup,
       .to = to(&ImageOptions::exact_decoding),
       .default_value = false,
       .help = "images: data: decodes a JPEG image in full size even where 1/2, 1/4 or 1/8 of it is enough, "
               "which is slower and gives torchvision's pixels"},
  };
}

}  // namespace mantissa::cli
