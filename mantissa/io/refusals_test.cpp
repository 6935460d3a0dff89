// At which value each refusal of this room begins, and what it says. Each part of a condition has a value that only this
// part refuses.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <string>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/background_writer.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/files_internal.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/value_summary.h"

namespace mantissa::refusals_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Refusals : public InFolder {
 protected:
  std::string save(const std::string& name, const Checkpoint& checkpoint = {}) const {
    return error_of([&] { save_checkpoint(folder_ / name, checkpoint); });
  }
};

TEST_F(Refusals, OfCheckpointsBeginWhereTheySay) {
  EXPECT_EQ(save(std::string(kMaxNameBytes, 'a')), "no error");
  EXPECT_THAT(save(std::string(kMaxNameBytes + 1, 'a')), HasSubstr("its name is longer than 200 bytes"));
  EXPECT_THAT(save(".hidden"), HasSubstr("names that begin with '.' are those of unfinished ones"));
  EXPECT_EQ(save("not.hidden"), "no error");
  EXPECT_THAT(save("a", {-1, {}, {}}),
              HasSubstr("its step is -1; give the number of steps taken, from 0 to "));
  EXPECT_EQ(save("zero", {0, {}, {}}), "no error");
  EXPECT_EQ(save("most", {kMaxCount, {}, {}}), "no error");
  fs::create_directory(folder_ / "other");
  std::ofstream(folder_ / "other" / "file") << "mine";
  EXPECT_THAT(save("other"), HasSubstr("there is something else under that name ("));
  EXPECT_THAT(save("undefined", {0, {{"w", at::Tensor()}}, {}}),
              HasSubstr("weight 'w' is undefined; leave it out"));
}

TEST_F(Refusals, OfAFolderOfDamagedCheckpointsCountThem) {
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(save(name, {1, {{"w", at::ones({2})}}, {}}), "no error");
    fs::resize_file(folder_ / name / "weights.safetensors", 3);
  }
  EXPECT_THAT(error_of([&] { load_newest(folder_); }),
              testing::AllOf(HasSubstr("every checkpoint in '"), HasSubstr("' is damaged, 2 of them: ")));
}

TEST_F(Refusals, OfTensorsThatSafetensorsCannotHold) {
  const auto error = [&](const std::string& name, const at::Tensor& tensor) {
    return error_of([&] { save_safetensors(folder_ / "file.safetensors", {{name, tensor}}); });
  };
  EXPECT_THAT(error("w", {}), HasSubstr("tensor 'w' is undefined; leave it out"));
  EXPECT_THAT(error("w", at::empty({2}, at::kMeta)), HasSubstr("tensor 'w' is on the meta device"));
  EXPECT_THAT(error("w", at::eye(2).to_sparse()), HasSubstr("tensor 'w' is sparse or has no storage"));
  const at::Tensor without_storage = at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>(), at::Device(at::kCPU));
  EXPECT_THAT(error("w", without_storage), HasSubstr("tensor 'w' is sparse or has no storage"));
  EXPECT_THAT(error("w", at::ones({2}, at::kComplexDouble)),
              HasSubstr("tensor 'w' is ComplexDouble, which safetensors has no name for"));
  EXPECT_THAT(error("__metadata__", at::ones({2})), HasSubstr("a tensor cannot be named '__metadata__'"));
  EXPECT_EQ(error("w", at::ones({2})), "no error");
}

TEST_F(Refusals, OfCastsThatHaveNoRelativeError) {
  const at::Tensor x = at::ones({2}), whole = at::ones({2}, at::kLong);
  const auto error = [](const at::Tensor& a, const at::Tensor& b) {
    return error_of([&] { cast_loss(a, b); });
  };
  EXPECT_THAT(error(x, at::ones({3})), HasSubstr("cast_loss: shapes [2] and [3] differ"));
  EXPECT_THAT(error(x, whole), HasSubstr("cast_loss: dtypes Float and Long are not both floating-point"));
  EXPECT_THAT(error(whole, x), HasSubstr("cast_loss: dtypes Long and Float are not both floating-point"));
  EXPECT_EQ(error(x, x), "no error");
}

TEST_F(Refusals, OfAQueueWithoutRoom) {
  EXPECT_THAT(error_of([] { BackgroundWriter writer(0); }),
              HasSubstr("max_queued is 0; give it room for 1 job"));
  EXPECT_EQ(error_of([] { BackgroundWriter writer(1); }), "no error");
}

}  // namespace
}  // namespace mantissa::refusals_test
