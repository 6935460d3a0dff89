#include "mantissa/data/npy.h"

#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::npy_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Returns a file as numpy.save() writes it.
std::string npy(const std::string& header, const std::string& values, int version = 1) {
  std::string bytes = std::string("\x93NUMPY") + static_cast<char>(version) + '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) bytes += static_cast<char>(header.size() >> 8 * i & 0xff);
  return bytes + header + values;
}
std::string header_of(const std::string& descr, const std::string& shape, const char* fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }      \n";
}
std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

class Npy : public InFolder {
 protected:
  at::Tensor read(const std::string& bytes) const {
    write_image_file(folder_ / "a.npy", bytes);
    return read_npy(folder_ / "a.npy");
  }
  std::string refused(const std::string& bytes) const {
    return error_of([&] { read(bytes); });
  }
};

TEST_F(Npy, AHeaderIsReadByItself) {
  write_image_file(folder_ / "a.npy", npy(header_of("<i2", "(2, 3)", "True"), std::string(12, 'x')));
  const NpyHeader header = read_npy_header(folder_ / "a.npy");
  EXPECT_EQ(header.dtype, at::kShort);
  EXPECT_THAT(header.shape, ElementsAre(2, 3));
  EXPECT_TRUE(header.is_fortran_order);
  EXPECT_THAT(error_of([&] { read_npy_header(folder_ / "b.npy"); }), HasSubstr("b.npy': no such file"));
}

TEST_F(Npy, EveryDtypeAndVersion) {
  const at::Tensor numbers = torch::arange(6).view({2, 3});
  for (const auto& [descr, dtype] : {std::pair("<f4", at::kFloat),
                                     {"<f8", at::kDouble},
                                     {"<f2", at::kHalf},
                                     {"<i8", at::kLong},
                                     {"<i4", at::kInt},
                                     {"<i2", at::kShort},
                                     {"|i1", at::kChar},
                                     {"|u1", at::kByte},
                                     {"|b1", at::kBool}})
    for (const int version : {1, 2, 3}) {
      const at::Tensor want = numbers.to(dtype);
      const at::Tensor got = read(npy(header_of(descr, "(2, 3)"), bytes_of(want), version));
      EXPECT_EQ(got.scalar_type(), dtype);
      EXPECT_TRUE(got.equal(want)) << descr;
    }
}

TEST_F(Npy, EveryShape) {
  EXPECT_EQ(read(npy(header_of("<i8", "()"), bytes_of(torch::tensor(7)))).item<int64_t>(), 7);
  EXPECT_THAT(read(npy(header_of("<i8", "(1,)"), bytes_of(torch::tensor({7})))).sizes(), ElementsAre(1));
  EXPECT_THAT(read(npy(header_of("<f4", "(0, 5)"), "")).sizes(), ElementsAre(0, 5));
  EXPECT_THAT(read(npy(header_of("<f4", "(5, 0)"), "")).sizes(), ElementsAre(5, 0));
  const at::Tensor want = torch::arange(24, at::kInt).view({2, 3, 4});
  const std::string transposed = bytes_of(want.permute({2, 1, 0}).contiguous());
  const at::Tensor got = read(npy(header_of("<i4", "(2, 3, 4)", "True"), transposed));
  EXPECT_TRUE(got.equal(want) && got.is_contiguous());
}

TEST_F(Npy, EveryTruncationIsRefused) {
  const std::string whole = npy(header_of("<f4", "(2, 2)"), std::string(16, 'x'));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(refused(whole.substr(0, size)), HasSubstr("a.npy'")) << size;
  EXPECT_THAT(refused(whole + "x"), HasSubstr("has 17 bytes of values"));
}

TEST_F(Npy, WhatIsNoTensorIsRefused) {
  EXPECT_THAT(refused("PK\3\4 an archive of arrays"), HasSubstr("is no .npy file"));
  EXPECT_THAT(refused(npy(header_of(">f4", "(1,)"), "1234")), HasSubstr(".astype('<f4')"));
  EXPECT_THAT(refused(npy(header_of("|O", "(1,)"), "1234")), HasSubstr("libtorch lacks"));
  EXPECT_THAT(refused(npy(header_of("<u8", "(1,)"), "12345678")), HasSubstr("libtorch lacks"));
  EXPECT_THAT(refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234")),
              HasSubstr("records of several fields"));
  EXPECT_THAT(refused(npy(header_of("<f4", "(1,)"), "1234", 4)), HasSubstr("version 4"));
  EXPECT_THAT(refused(npy(header_of("<f4", "(-1,)"), "1234")), HasSubstr("damaged shape"));
  EXPECT_THAT(refused(npy(header_of("<f4", "(1.5,)"), "1234")), HasSubstr("damaged shape"));
  EXPECT_THAT(refused(npy(header_of("<f4", "1"), "1234")), HasSubstr("damaged header"));
  EXPECT_THAT(refused(npy("{'descr': '<f4'", "1234")), HasSubstr("damaged header"));
  EXPECT_THAT(refused(npy(header_of("<f4", "(1099511627776, 1099511627776, 4)"), "1234")),
              HasSubstr("needs more"))
      << "nothing is allocated";
  EXPECT_THAT(error_of([&] { read_npy(folder_ / "none.npy"); }), HasSubstr("cannot read"));
  EXPECT_THAT(error_of([&] { read_npy(folder_); }), HasSubstr(folder_.string()));
}

}  // namespace
}  // namespace mantissa::npy_test
