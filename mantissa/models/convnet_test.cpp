#include "mantissa/models/convnet.h"

namespace mantissa::convnet_test {
namespace {

int64_t parameter_count(torch::nn::Module& model) {
  int64_t count = 0;
  for (const at::Tensor& p : model.parameters()) count += p.numel();
  return count;
}

TEST(Convnet, NamesAndCountOfParameters) {
  Convnet model(ConvnetOptions{.height = 8, .width = 8, .classes = 10});
  EXPECT_THAT(model->named_parameters().keys(),
              testing::ElementsAre("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                   "hidden.weight", "hidden.bias", "head.weight", "head.bias"));
  EXPECT_EQ(parameter_count(*model),
            (9 * 16 + 16) + (9 * 16 * 32 + 32) + (4 * 4 * 32 * 64 + 64) + (64 * 10 + 10));
}

TEST(Convnet, TakesMnistAndOddSizes) {
  Convnet mnist(ConvnetOptions{.height = 28, .width = 28, .classes = 10});
  EXPECT_EQ(mnist(at::zeros({3, 1, 28, 28})).sizes(), (at::IntArrayRef{3, 10}));
  Convnet odd(ConvnetOptions{.channels = 3, .height = 7, .width = 2, .classes = 4});
  EXPECT_EQ(odd(at::zeros({1, 3, 7, 2})).sizes(), (at::IntArrayRef{1, 4}));
  EXPECT_EQ(odd(at::zeros({0, 3, 7, 2})).sizes(), (at::IntArrayRef{0, 4}));
}

TEST(Convnet, RefusesWrongSizesWithTheCure) {
  EXPECT_THROW(Convnet(ConvnetOptions{.height = 1, .width = 8, .classes = 10}), c10::ValueError);
  EXPECT_THROW(Convnet(ConvnetOptions{.height = 8, .width = 8, .classes = 0}), c10::ValueError);
  EXPECT_THROW(Convnet(ConvnetOptions{.height = 8, .width = 8, .classes = 10, .hidden = -1}),
               c10::ValueError);
  Convnet model(ConvnetOptions{.height = 8, .width = 8, .classes = 10});
  try {
    model(at::zeros({3, 1, 9, 8}));
    FAIL() << "took an image of another size";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("expects [N, 1, 8, 8]; got [3, 1, 9, 8]"));
  }
  EXPECT_THROW(model(at::zeros({1, 8, 8})), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::convnet_test
