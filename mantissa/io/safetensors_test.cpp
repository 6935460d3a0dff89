#include "mantissa/io/safetensors.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <unistd.h>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/atomic_file.h"

namespace mantissa::safetensors_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mantissa-safetensors-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ / "t.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string load_error() const {
    try {
      load_safetensors(path_);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

  fs::path folder_, path_;
};
using SafetensorsFileTest = SafetensorsTest;

TEST_F(SafetensorsTest, EveryCutOfAFileIsRefused) {
  save_safetensors(path_, {{"w", at::arange(3, at::kFloat)}, {"b", at::ones({}, at::kByte)}}, {{"k", "v"}});
  const std::string whole = bytes_of(path_);
  EXPECT_EQ(load_error(), "no error");
  for (size_t n = 0; n < whole.size(); ++n) {
    write_file_atomically(path_, whole.substr(0, n));
    EXPECT_THAT(load_error(), AllOf(HasSubstr(path_.string()), HasSubstr("truncated"))) << n << " bytes";
  }
  write_file_atomically(path_, whole.substr(0, 40));
  EXPECT_THAT(load_error(), AllOf(HasSubstr("needs "), HasSubstr(" bytes, but the file has 40")));
  write_file_atomically(path_, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(load_error(), HasSubstr("promises 13 bytes of tensors, but only 12 are there"));
  write_file_atomically(path_, whole + "x");
  EXPECT_THAT(load_error(), HasSubstr("1 bytes after the last tensor"));
  write_file_atomically(path_, std::string(8, '\0'));
  EXPECT_THAT(load_error(), HasSubstr("its header does not begin with '{'"));
}

TEST_F(SafetensorsTest, AbsurdHeaderLengthAllocatesNothing) {
  write_file_atomically(path_, std::string(8, '\xff') + "{}");
  EXPECT_THAT(load_error(),
              HasSubstr("its header of 18446744073709551615 bytes is over the limit of 100000000"));
  const auto with_length = [&](uint64_t length) {
    write_file_atomically(path_, std::string(reinterpret_cast<const char*>(&length), 8) + "{}");
    return load_error();
  };
  EXPECT_THAT(with_length(100'000'001), HasSubstr("its header of 100000001 bytes is over the limit"));
  EXPECT_THAT(with_length(100'000'000),
              HasSubstr("its header alone needs 100000008 bytes, but the file has 10"));
}

TEST_F(SafetensorsTest, MissingFileAndFolder) {
  EXPECT_THAT(load_error(),
              AllOf(HasSubstr(path_.string()), HasSubstr("No such file or directory; check the path")));
  path_ = folder_;
  EXPECT_THAT(load_error(), HasSubstr("not a regular file"));
}

// Written by the reference implementation, safetensors 0.7.0 for Python, with torch's dtypes and the values
// 0, 1, 1.
TEST_F(SafetensorsTest, ReadsAndWritesTheReferencesBytes) {
  const Safetensors loaded = load_safetensors(test_data("every_dtype.safetensors"));
  EXPECT_EQ(loaded.tensors.size(), 18u);
  EXPECT_EQ(loaded.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  for (const auto& [name, tensor] : loaded.tensors) {
    if (tensor.dim() != 1) continue;
    const at::Tensor values = tensor.is_complex() ? at::real(tensor) : tensor;
    EXPECT_TRUE(at::equal(values.to(at::kFloat), at::tensor({0.f, 1.f, 1.f}))) << name << tensor;
  }
  EXPECT_EQ(loaded.tensors.at("float8_e4m3fn").scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(loaded.tensors.at("uint16").scalar_type(), at::kUInt16);
  EXPECT_EQ(loaded.tensors.at("b.scalar").item<float>(), 2.5f);
  EXPECT_EQ(loaded.tensors.at("a.empty").sizes(), (std::vector<int64_t>{0, 3}));
  save_safetensors(path_, loaded.tensors, loaded.metadata);
  EXPECT_EQ(bytes_of(path_), bytes_of(test_data("every_dtype.safetensors")));
}

TEST_F(SafetensorsTest, ReadsAQuantizedLayerOfBitsandbytes) {
  const Safetensors loaded = load_safetensors(test_data("state_linear4bit_fp4.safetensors"));
  EXPECT_EQ(loaded.metadata.at("bitsandbytes"), "0.50.2");
  EXPECT_EQ(loaded.tensors.at("layer.weight").sizes(), (std::vector<int64_t>{1024, 1}));
  EXPECT_EQ(loaded.tensors.at("layer.bias").scalar_type(), at::kBFloat16);
  const at::Tensor map = loaded.tensors.at("layer.weight.quant_map");
  EXPECT_EQ(map.abs().max().item<float>(), 1.f);
}

TEST_F(SafetensorsTest, RoundTripOfEveryDtypeAndLayout) {
  for (const at::ScalarType dtype :
       {at::kBool, at::kByte, at::kChar, at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kFloat8_e8m0fnu,
        at::kShort, at::kUInt16, at::kHalf, at::kBFloat16, at::kInt, at::kUInt32, at::kFloat,
        at::kComplexFloat, at::kDouble, at::kLong, at::kUInt64}) {
    // Every bit pattern of a byte, in every element; only bool has just two values.
    const int64_t size = int64_t(c10::elementSize(dtype));
    at::Tensor bytes = at::arange(256, at::kByte).repeat({size, 1}).t().contiguous();
    if (dtype == at::kBool) bytes = bytes % 2;
    const at::Tensor base = bytes.view(dtype).view({16, 16});
    const std::map<std::string, at::Tensor> saved{{"whole", base},
                                                  {"transposed", base.t()},
                                                  {"part", base.slice(0, 3, 9, 2)},
                                                  {"column", base.select(1, 3)},
                                                  {"scalar", base.select(0, 5).select(0, 7)},
                                                  {"expanded", base.slice(0, 0, 1).expand({3, 16})},
                                                  {"empty", base.slice(0, 4, 4)}};
    save_safetensors(path_, saved);
    const Safetensors loaded = load_safetensors(path_);
    ASSERT_EQ(loaded.tensors.size(), saved.size());
    for (const auto& [name, want] : saved) {
      const at::Tensor& got = loaded.tensors.at(name);
      EXPECT_EQ(got.scalar_type(), dtype);
      EXPECT_EQ(got.sizes(), want.sizes()) << name;
      EXPECT_TRUE(got.is_contiguous());
      const at::Tensor flat = want.contiguous();
      // Compares bytes, not values, so that NaNs count too.
      EXPECT_EQ(std::string(static_cast<const char*>(got.const_data_ptr()), got.nbytes()),
                std::string(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()))
          << c10::toString(dtype) << " " << name;
    }
  }
}

TEST_F(SafetensorsTest, LazyConjugateAndGradient) {
  const at::Tensor z = at::complex(at::tensor({1.f, 2.f}), at::tensor({3.f, 4.f}));
  const at::Tensor w = at::ones({2}).requires_grad_();
  save_safetensors(path_, {{"conj", z.conj()}, {"imag", at::imag(z.conj())}, {"w", w * 2}});
  const Safetensors loaded = load_safetensors(path_);
  EXPECT_TRUE(at::equal(at::imag(loaded.tensors.at("conj")), at::tensor({-3.f, -4.f})));
  EXPECT_TRUE(at::equal(loaded.tensors.at("imag"), at::tensor({-3.f, -4.f})));
  EXPECT_FALSE(loaded.tensors.at("w").requires_grad());
}

TEST_F(SafetensorsTest, BoolBytesOtherThanOneAreTrue) {
  save_safetensors(path_, {{"mask", at::ones({3}, at::kBool)}});
  std::string whole = bytes_of(path_);
  whole[whole.size() - 3] = 2;
  whole[whole.size() - 2] = 0;
  whole[whole.size() - 1] = char(255);
  write_file_atomically(path_, whole);
  const at::Tensor mask = load_safetensors(path_).tensors.at("mask");
  EXPECT_TRUE(at::equal(mask.view(at::kByte), at::tensor({1, 0, 1}, at::kByte)));
}

TEST_F(SafetensorsTest, AFailedSaveKeepsTheOldFile) {
  save_safetensors(path_, {{"w", at::ones({2})}});
  const std::string before = bytes_of(path_);
  EXPECT_THROW(save_safetensors(path_, {{"w", at::Tensor()}}), c10::ValueError);
  EXPECT_THROW(save_safetensors(path_, {{"w", at::empty({2}, at::kMeta)}}), c10::ValueError);
  EXPECT_THROW(save_safetensors(path_, {{"w", at::eye(2).to_sparse()}}), c10::ValueError);
  EXPECT_THROW(save_safetensors(path_, {{"w", at::ones({2}, at::kComplexDouble)}}), c10::ValueError);
  EXPECT_EQ(bytes_of(path_), before);
}

TEST_F(SafetensorsTest, NoTensors) {
  save_safetensors(path_, {});
  EXPECT_EQ(bytes_of(path_), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_TRUE(load_safetensors(path_).tensors.empty());
}

TEST_F(SafetensorsTest, TensorOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const at::Tensor w = at::arange(6, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).view({2, 3}).t();
  save_safetensors(path_, {{"w", w}});
  EXPECT_TRUE(at::equal(load_safetensors(path_).tensors.at("w"), w.cpu()));
}

TEST_F(SafetensorsFileTest, ReadsOneTensorAtATime) {
  save_safetensors(path_,
                   {{"weight", at::arange(6, at::kLong).view({2, 3})}, {"bias", at::ones({2}, at::kHalf)}});
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.entries().at("weight").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.entries().at("bias").dtype, at::kHalf);
  EXPECT_TRUE(at::equal(file.read("weight"), at::arange(6, at::kLong).view({2, 3})));
  try {
    file.read("wieght");
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("has no tensor 'wieght'; did you mean 'weight'?"));
  }
}

TEST_F(SafetensorsFileTest, ReadsSomeElements) {
  save_safetensors(path_, {{"a", at::arange(10, at::kFloat).view({2, 5})}, {"b", at::ones({3}, at::kBool)}});
  const SafetensorsFile file(path_);
  const at::Tensor out = at::zeros({2, 2});
  file.read_into("a", 5, out);
  EXPECT_TRUE(at::equal(out, at::arange(5, 9, at::kFloat).view({2, 2})));
  file.read_into("a", 10, at::empty({0}));
  const auto error = [&](int64_t begin, const at::Tensor& into) {
    try {
      file.read_into("a", begin, into);
    } catch (const c10::ValueError& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error(-1, out), HasSubstr("4 elements from -1 were asked for, but it has 10"));
  EXPECT_THAT(error(7, out), HasSubstr("but it has 10"));
  EXPECT_THAT(error(11, at::empty({0})), HasSubstr("but it has 10"));
  EXPECT_THAT(error(0, at::empty({1}, at::kInt)),
              HasSubstr("it is Float and cannot be read into a tensor that is Int"));
  EXPECT_THAT(error(0, at::empty({2, 2}).t()), HasSubstr("not contiguous"));
  EXPECT_THAT(error(0, at::empty({2}, at::kMeta)), HasSubstr("a tensor that is Float on meta; give"));
  // Only its own part of the buffer is written.
  const at::Tensor flags = at::zeros({3}, at::kBool);
  file.read_into("b", 1, flags.narrow(0, 0, 2));
  EXPECT_TRUE(at::equal(flags.view(at::kByte), at::tensor({1, 1, 0}, at::kByte)));
}

TEST_F(SafetensorsFileTest, FileCutWhileOpen) {
  save_safetensors(path_, {{"w", at::ones({100})}});
  const SafetensorsFile file(path_);
  fs::resize_file(path_, fs::file_size(path_) - 100);
  EXPECT_THROW(file.read("w"), c10::Error);
}

}  // namespace
}  // namespace mantissa::safetensors_test
