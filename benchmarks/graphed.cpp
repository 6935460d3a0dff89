#include "benchmarks/graphed.h"

#include <utility>

#include <c10/util/Exception.h>

#ifdef MANTISSA_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace mantissa {

#ifdef MANTISSA_CUDA

struct Graphed::Graph {
  Graph(at::Device device, const std::function<void()>& step, int warm_ups)
      : side(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
    const c10::cuda::CUDAGuard device_is_current(device);
    c10::cuda::device_synchronize();  // the step reads data that was made in another stream
    const c10::cuda::CUDAStreamGuard guard(side);
    for (int i = 0; i < warm_ups; ++i) step();
    c10::cuda::device_synchronize();
    graph.capture_begin();
    step();
    graph.capture_end();
  }
  c10::cuda::CUDAStream side;
  at::cuda::CUDAGraph graph;
};

#else

struct Graphed::Graph {
  Graph(at::Device /*device*/, const std::function<void()>& /*step*/, int /*warm_ups*/) {
    TORCH_CHECK(false, "Graphed: this build has no CUDA; build the `cuda` preset (MANTISSA_CUDA=ON)");
  }
  struct {
    void replay() {}
  } graph;
};

#endif

Graphed::Graphed(at::Device device, std::function<void()> step, int warm_ups) : step_(std::move(step)) {
  if (device.is_cuda()) {
    graph_ = std::make_unique<Graph>(device, step_, warm_ups);
  } else {
    for (int i = 0; i < warm_ups; ++i) step_();
  }
}

Graphed::~Graphed() = default;

void Graphed::replay() {
  if (graph_) {
    graph_->graph.replay();
  } else {
    step_();
  }
}

}  // namespace mantissa
