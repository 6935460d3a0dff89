// Decodes and changes images, and reads other data. test_images.py compares the results with those of Pillow and torchvision, and
// test_data_files.py with those of NumPy and torchvision.
//
//   image_runner OUT < JOBS
//
// JOBS is JSON, a list of objects; each has "file", an image, and "op" with its arguments (see kOperations). OUT receives
// the results as safetensors, by number: uint8 [height, width, 3], or what the operation says.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/data/chat.h"
#include "mantissa/data/cifar.h"
#include "mantissa/data/csv.h"
#include "mantissa/data/images/color_ops.h"
#include "mantissa/data/images/decoder.h"
#include "mantissa/data/images/image_dataset.h"
#include "mantissa/data/images/image_folder.h"
#include "mantissa/data/images/pipeline.h"
#include "mantissa/data/images/rand_augment.h"
#include "mantissa/data/images/resize.h"
#include "mantissa/data/loader.h"
#include "mantissa/data/npy.h"
#include "mantissa/io/safetensors.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;
using Results = std::map<std::string, at::Tensor>;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

CropBox box_of(const Json& box) { return {box[0], box[1], box[2], box[3]}; }

at::Tensor tensor_of(const Image& image) {
  at::Tensor tensor = at::empty({image.height(), image.width(), 3}, at::kByte);
  std::copy_n(image.data(), image.bytes(), tensor.mutable_data_ptr<uint8_t>());
  return tensor;
}

Image whole(const std::string& path) {
  const std::string bytes = bytes_of(path);
  const auto decoder = open_image(bytes, path);
  Image image;
  decoder->decode({0, 0, decoder->height(), decoder->width()}, 1, image);
  return image;
}

/// "box" and "max_shrink". The result begins at the returned place: {pixels, [top, left, shrink]}.
void decode(const Json& job, const std::string& key, Results& results) {
  const std::string path = job.at("file"), bytes = bytes_of(path);
  const auto decoder = open_image(bytes, path);
  Image image;
  const DecodedPart part = decoder->decode(box_of(job.at("box")), job.at("max_shrink"), image);
  results[key] = tensor_of(image);
  results[key + ".part"] = at::tensor({part.top, part.left, part.shrink}, at::kLong);
}

/// "source", "height", "width" and "window".
void resize(const Json& job, const std::string& key, Results& results) {
  const Json& source = job.at("source");
  const Image image = whole(job.at("file"));
  Image out;
  ImageResizer().resize(
      image,
      {{source[0], source[1], source[2], source[3]},
       job.at("height"),
       job.at("width"),
       box_of(job.at("window")),
       filters_columns_first(image.height(), image.width(), job.at("height"), job.at("width"))},
      out);
  results[key] = tensor_of(out);
}

using Adjust = void (*)(Image&, double);
const std::map<std::string, Adjust> kAdjustments{
    {"brightness", adjust_brightness}, {"contrast", adjust_contrast},
    {"saturation", adjust_saturation}, {"hue", adjust_hue},
    {"sharpness", adjust_sharpness},   {"rotate", rotate},
};

/// "name" and "factor".
void adjust(const Json& job, const std::string& key, Results& results) {
  Image image = whole(job.at("file"));
  kAdjustments.at(job.at("name"))(image, job.at("factor"));
  results[key] = tensor_of(image);
}

/// "name", "magnitude" and "negative".
void rand_augment(const Json& job, const std::string& key, Results& results) {
  Image image = whole(job.at("file"));
  const auto& names = RandAugment::operations();
  const auto found = std::find(names.begin(), names.end(), job.at("name").get<std::string>());
  RandAugment({.magnitude = job.at("magnitude")})
      .apply(static_cast<size_t>(found - names.begin()), job.at("negative"), image);
  results[key] = tensor_of(image);
}

/// "seed" and "height", "width": the crop that training takes of an image of this size, [top, left, height, width].
void crop(const Json& job, const std::string& key, Results& results) {
  ImageRandom random(job.at("seed").get<uint64_t>());
  const ImageRegion box = ImageAugmentation().geometry(job.at("height"), job.at("width"), random).source;
  results[key] = at::tensor({box.top, box.left, box.height, box.width}, at::kDouble);
}

/// "file" is a folder: the whole of it in one batch, "size", "resize", "scaled". Results are "data" and "target".
void evaluate(const Json& job, const std::string& key, Results& results) {
  const auto data =
      std::make_shared<ImageDataset>(std::make_shared<ImageFolder>(job.at("file").get<std::string>()),
                                     std::make_shared<ImageEvaluation>(job.at("size"), job.at("resize")),
                                     ImageDatasetOptions{.scaled_decoding = job.at("scaled")});
  const Batch batch = *DataLoader(data, {.batch_size = data->size()}).next();
  results[key + ".data"] = batch.data;
  results[key + ".target"] = batch.target;
}

void npy(const Json& job, const std::string& number, Results& results) {
  results.emplace(number, read_npy(job.at("file").get<std::string>()));
}

void csv(const Json& job, const std::string& number, Results& results) {
  const CsvTable table = read_csv(job.at("file").get<std::string>());
  results.emplace(number + ".data", table.data);
  results.emplace(number + ".target", table.target);
}

void cifar(const Json& job, const std::string& number, Results& results) {
  const auto kind = job.at("classes") == 10 ? CifarKind::kCifar10 : CifarKind::kCifar100;
  const Cifar cifar = load_cifar(job.at("file").get<std::string>(), kind, cifar_normalization());
  const Batch batch = cifar.train->get_batch(at::arange(cifar.train->size()));
  results.emplace(number + ".data", batch.data);
  results.emplace(number + ".target", batch.target);
}

/// "tokenizer", "template", "context".
void chat(const Json& job, const std::string& number, Results& results) {
  const auto dataset =
      read_chat(job.at("file").get<std::string>(), load_tokenizer(job.at("tokenizer").get<std::string>()),
                {.context = job.at("context"), .chat_template = job.at("template")});
  const Batch batch = dataset->get_batch(at::arange(dataset->size()));
  results.emplace(number + ".data", batch.data);
  results.emplace(number + ".target", batch.target);
}

const std::map<std::string, void (*)(const Json&, const std::string&, Results&)> kOperations{
    {"decode", decode}, {"resize", resize},     {"adjust", adjust}, {"rand_augment", rand_augment},
    {"crop", crop},     {"evaluate", evaluate}, {"npy", npy},       {"csv", csv},
    {"cifar", cifar},   {"chat", chat},
};

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: image_runner OUT < JOBS\n");
    return 1;
  }
  mantissa::Results results;
  const auto jobs = nlohmann::json::parse(std::cin);
  for (size_t i = 0; i < jobs.size(); ++i)
    mantissa::kOperations.at(jobs[i].at("op"))(jobs[i], std::to_string(i), results);
  mantissa::save_safetensors(argv[1], results);
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "image_runner: %s\n", error.what_without_backtrace());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "image_runner: %s\n", error.what());
  return 2;
}
