#include "mantissa/data/batch_transfer.h"

#include <algorithm>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "mantissa/core/device.h"

namespace mantissa::batch_transfer_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

Batch batch_of(float value) { return {torch::full({2, 3}, value), torch::zeros({2}, at::kLong), {}}; }

Batch as_it_is(const Batch& batch) { return batch; }

TEST(BatchTransfer, OnTheCpuPassesTensorsThrough) {
  BatchTransfer transfer(at::kCPU, as_it_is);
  Batch batch = batch_of(1);
  batch.target = at::Tensor();
  batch.fields["mask"] = torch::ones({2});
  transfer.begin(batch);
  EXPECT_FALSE(transfer.empty());
  const Batch taken = transfer.take();
  EXPECT_TRUE(taken.data.is_same(batch.data));
  EXPECT_TRUE(taken.fields.at("mask").is_same(batch.fields["mask"]));
  EXPECT_FALSE(taken.target.defined());
  EXPECT_TRUE(transfer.empty());
}

TEST(BatchTransfer, OnTheCpuConvertsNotBeforeTake) {
  std::vector<float> converted;
  BatchTransfer transfer(at::kCPU, [&](const Batch& batch) {
    converted.push_back(batch.data[0][0].item<float>());
    return map_tensors(batch, [](const at::Tensor& t) { return t.to(at::kDouble); });
  });
  transfer.begin(batch_of(1));
  transfer.begin(batch_of(2));
  EXPECT_THAT(converted, IsEmpty());
  EXPECT_EQ(transfer.take().data.scalar_type(), at::kDouble);
  EXPECT_THAT(converted, ElementsAre(1));
  EXPECT_EQ(transfer.take().data[1][2].item<double>(), 2);
}

TEST(BatchTransfer, ABatchThatCannotBeConvertedLeavesTheNextOneWhereItWas) {
  BatchTransfer transfer(at::kCPU, [](const Batch& batch) {
    if (batch.data[0][0].item<float>() == 1) throw std::runtime_error("cannot convert");
    return batch;
  });
  transfer.begin(batch_of(1));
  transfer.begin(batch_of(2));
  EXPECT_THROW(transfer.take(), std::runtime_error);
  EXPECT_EQ(transfer.take().data[0][0].item<float>(), 2);
}

TEST(BatchTransfer, TakingMoreThanWasBegunIsAnError) {
  BatchTransfer transfer(at::kCPU, as_it_is);
  EXPECT_THAT([&] { transfer.take(); }, ThrowsMessage<c10::Error>(HasSubstr("call begin() first")));
}

TEST(BatchTransfer, ToAGpuThatCannotBeUsedSaysWhy) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT([] { BatchTransfer(at::Device(at::kCUDA, 0), as_it_is); },
              ThrowsMessage<c10::ValueError>(HasSubstr(why_no_cuda())));
}

// A device of this test whose memory is the host's. It computes nothing and records what it is asked to do.

std::vector<std::string>& asked() {
  static std::vector<std::string> lines;
  return lines;
}
std::vector<std::string> asked_since() { return std::exchange(asked(), {}); }

constexpr c10::StreamId kCopying = 7;
thread_local c10::StreamId current_stream = 0;

std::string name_of(const c10::Stream& stream) { return "stream " + std::to_string(stream.id()); }

struct NotingGuard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::kPrivateUse1; }
  at::Device exchangeDevice(at::Device /*device*/) const override { return getDevice(); }
  at::Device getDevice() const override { return {at::kPrivateUse1, 0}; }
  void setDevice(at::Device /*device*/) const override {}
  void uncheckedSetDevice(at::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(at::Device device) const override { return stream(device, current_stream); }
  c10::Stream getDefaultStream(at::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool /*isHighPriority*/) const override {
    return stream(device, kCopying);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), std::exchange(current_stream, next.id()));
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    *event = event;
    asked().push_back("event on " + name_of(stream));
  }
  void block(void* /*event*/, const c10::Stream& stream) const override {
    asked().push_back(name_of(stream) + " waits");
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    asked().push_back(std::to_string(*static_cast<const float*>(data.get())) + " is used on " +
                      name_of(stream));
  }

 private:
  static c10::Stream stream(at::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
};

struct HostMemory final : c10::Allocator {
  explicit HostMemory(at::Device of) : device(of) {}
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = std::malloc(std::max<size_t>(bytes, 1));
    return {memory, memory, &std::free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  at::Device device;
};

struct NotingHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    asked().emplace_back("page-locked memory");
    static HostMemory memory(at::kCPU);
    return &memory;
  }
};

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                         std::optional<bool> /*pinned*/) {
  static HostMemory memory({at::kPrivateUse1, 0});
  return at::detail::empty_strided_generic(sizes, strides, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), *dtype);
}

at::Tensor on_host(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  asked().push_back(std::string(non_blocking ? "copy" : "blocking copy") + " on stream " +
                    std::to_string(current_stream));
  on_host(to).copy_(on_host(from));
  return to;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
}

class BatchTransferToADevice : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (cuda_device_count() > 0) return;
    static NotingGuard guard;
    static NotingHooks hooks;
    c10::impl::registerDeviceGuard(at::kPrivateUse1, &guard);
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::register_privateuse1_backend("noting");
  }
  void SetUp() override {
    if (cuda_device_count() > 0) GTEST_SKIP() << "a process has one kind of accelerator, here CUDA";
    asked().clear();
  }
  const at::Device device{at::kPrivateUse1, 0};
};

Batch one_tensor(float value) { return {torch::full({2, 3}, value), {}, {}}; }

TEST_F(BatchTransferToADevice, TheComputingStreamWaitsForTheCopy) {
  BatchTransfer transfer(device, as_it_is);
  transfer.begin(one_tensor(1));
  EXPECT_THAT(asked_since(), ElementsAre("page-locked memory", "copy on stream 7", "event on stream 7"));
  transfer.begin(one_tensor(2));
  EXPECT_THAT(asked_since(), ElementsAre("page-locked memory", "copy on stream 7", "event on stream 7"));
  const Batch first = transfer.take();
  EXPECT_THAT(asked_since(), ElementsAre("stream 0 waits", "1.000000 is used on stream 0"));
  EXPECT_EQ(first.data.device(), device);
  EXPECT_TRUE(on_host(first.data).equal(torch::full({2, 3}, 1.0F)));
  const Batch second = transfer.take();
  EXPECT_THAT(asked_since(), ElementsAre("stream 0 waits", "2.000000 is used on stream 0"));
  EXPECT_TRUE(transfer.empty());
}

TEST_F(BatchTransferToADevice, TheStreamThatComputesIsTheCurrentOne) {
  BatchTransfer transfer(device, as_it_is);
  const c10::StreamGuard users(c10::Stream(c10::Stream::UNSAFE, device, 3));
  transfer.begin(one_tensor(1));
  EXPECT_EQ(current_stream, 3) << "begin() leaves the current stream as it is";
  asked().clear();
  transfer.take();
  EXPECT_THAT(asked_since(), ElementsAre("stream 3 waits", "1.000000 is used on stream 3"));
}

TEST_F(BatchTransferToADevice, WithoutANumberItIsTheCurrentOne) {
  BatchTransfer transfer(at::kPrivateUse1, as_it_is);
  transfer.begin(one_tensor(1));
  EXPECT_EQ(transfer.take().data.device(), device);
}

TEST_F(BatchTransferToADevice, WhatIsThereAlreadyStaysWhereItIs) {
  BatchTransfer transfer(device, as_it_is);
  const at::Tensor there = one_tensor(1).data.to(device);
  asked().clear();
  transfer.begin({there, {}, {}});
  EXPECT_TRUE(transfer.take().data.is_same(there));
  EXPECT_THAT(asked_since(), ElementsAre("event on stream 7", "stream 0 waits"));
}

TEST_F(BatchTransferToADevice, StridesAreThoseOfTo) {
  const at::Tensor image = torch::rand({2, 3, 4, 4});
  for (const at::Tensor& tensor :
       {image, image.contiguous(at::MemoryFormat::ChannelsLast), image.transpose(0, 1),
        image.slice(3, 0, 4, 2), image.permute({3, 0, 2, 1}).slice(0, 1, 3),
        torch::rand({1, 3}).expand({4, 3}), torch::rand({0, 5}), torch::rand({}), torch::arange(6),
        torch::rand({3}).gt(0.5)}) {
    BatchTransfer transfer(device, as_it_is);
    transfer.begin({tensor, {}, {}});
    const at::Tensor moved = transfer.take().data;
    EXPECT_EQ(moved.strides(), tensor.to(device).strides()) << tensor.sizes() << ", " << tensor.strides();
    EXPECT_TRUE(on_host(moved).equal(tensor));
  }
}

TEST_F(BatchTransferToADevice, ConvertsBeforeTheCopy) {
  BatchTransfer transfer(device, [](const Batch& batch) {
    EXPECT_TRUE(batch.data.is_cpu());
    return map_tensors(batch, [](const at::Tensor& t) { return t.to(at::kHalf); });
  });
  transfer.begin(one_tensor(1));
  EXPECT_EQ(transfer.take().data.scalar_type(), at::kHalf);
}

TEST_F(BatchTransferToADevice, ABatchThatCannotBeConvertedIsNotUnderWay) {
  BatchTransfer transfer(device, [](const Batch& batch) -> Batch {
    if (batch.size() == 1) throw std::runtime_error("cannot convert");
    return batch;
  });
  EXPECT_THROW(transfer.begin({torch::ones({1}), {}, {}}), std::runtime_error);
  EXPECT_TRUE(transfer.empty());
  EXPECT_EQ(current_stream, 0);
  transfer.begin(one_tensor(2));
  EXPECT_TRUE(on_host(transfer.take().data).equal(torch::full({2, 3}, 2.0F)));
}

TEST(BatchTransferCuda, GivesWhatToGives) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const at::Device device(at::kCUDA, 0);
  BatchTransfer transfer(device, as_it_is);
  const at::Tensor image = torch::rand({2, 3, 4, 4});
  for (const at::Tensor& tensor :
       {image, image.transpose(0, 1), image.slice(3, 0, 4, 2), torch::rand({1, 3}).expand({4, 3}),
        torch::rand({0, 5}), torch::eye(3).to_sparse(), image.to(device), image.pin_memory()}) {
    transfer.begin({tensor, {}, {}});
    const at::Tensor moved = transfer.take().data, wanted = tensor.to(device);
    EXPECT_EQ(moved.device(), device);
    EXPECT_TRUE(moved.to_dense().equal(wanted.to_dense()));
    if (!tensor.is_sparse()) {
      EXPECT_EQ(moved.strides(), wanted.strides());
    }
  }
}

// Each batch is dropped while the device still reads it; the next one must not be written into its memory.
TEST(BatchTransferCuda, MemoryInUseIsNotGivenToTheNextBatch) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const at::Device device(at::kCUDA, 0);
  BatchTransfer transfer(device, as_it_is);
  const int64_t batches = 20, size = 1 << 22;
  at::Tensor sum = torch::zeros({size}, device);
  transfer.begin({torch::full({size}, 0.0F), {}, {}});
  for (int64_t i = 1; i <= batches; ++i) {
    transfer.begin({torch::full({size}, static_cast<float>(i)), {}, {}});
    const at::Tensor data = transfer.take().data;
    for (int repeat = 0; repeat < 8; ++repeat) sum = sum + data;
  }
  EXPECT_TRUE(sum.eq(8.0 * batches * (batches - 1) / 2).all().item<bool>());
}

}  // namespace
}  // namespace mantissa::batch_transfer_test
