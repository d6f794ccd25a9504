#include "cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <array>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace synod::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fail(Error::Kind::kFailure, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaDeviceOptions& options) : dependent_(options.dependent_launch) {
    check(cudaSetDevice(options.index), "cudaSetDevice");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, options.index), "cudaGetDeviceProperties");
    name_ = properties.name;
    total_ = static_cast<int64_t>(properties.totalGlobalMem);
    // Kernels compiled for 9.0a wait for their predecessor; older code has no such wait.
    dependent_ = dependent_ && properties.major >= 9;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  }
  ~CudaDevice() override {
    cudaStreamSynchronize(stream_);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
  }

  std::string name() const override { return name_; }
  int64_t free_bytes() const override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
  }
  int64_t total_bytes() const override { return total_; }

  std::byte* allocate(int64_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail(Error::Kind::kNoMemory, "{}: does not fit in device memory: asked for {}, {} of {} are free",
           name_, human_bytes(bytes), human_bytes(free_bytes()), human_bytes(total_));
    }
    check(error, "cudaMalloc");
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data) override { cudaFree(data); }
  std::byte* allocate_pinned(int64_t bytes) override {
    void* data = nullptr;
    check(cudaMallocHost(&data, static_cast<size_t>(bytes)), "cudaMallocHost");
    return static_cast<std::byte*>(data);
  }
  void release_pinned(std::byte* data) override { cudaFreeHost(data); }

  void upload(std::byte* device, const std::byte* host, int64_t bytes) override {
    check(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
          "upload");
  }
  void download(std::byte* host, const std::byte* device, int64_t bytes) override {
    check(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
          "download");
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "copy");
  }
  void clear(std::byte* device, int64_t bytes) override {
    check(cudaMemsetAsync(device, 0, static_cast<size_t>(bytes), stream_), "clear");
  }

  void launch(const Launch& l) override {
    raise_shared_limit(l);
    cudaLaunchConfig_t config{};
    config.gridDim = {l.grid[0], l.grid[1], l.grid[2]};
    config.blockDim = {l.block[0], l.block[1], l.block[2]};
    config.dynamicSmemBytes = l.shared_bytes;
    config.stream = stream_;
    std::array<cudaLaunchAttribute, 2> attributes{};
    config.attrs = attributes.data();
    if (dependent_) {
      attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (l.cluster > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs++].val.clusterDim = {l.cluster, 1, 1};
    }
    std::array<void*, 1> arguments = {const_cast<std::byte*>(l.params.data())};
    check(cudaLaunchKernelExC(&config, l.function, arguments.data()), l.name);
  }
  void synchronize() override { check(cudaStreamSynchronize(stream_), "a kernel or copy failed"); }

  void set_mark(int mark) override { check(cudaEventRecord(event(mark), stream_), "cudaEventRecord"); }
  void wait_mark(int mark) override { check(cudaEventSynchronize(event(mark)), "a kernel or copy failed"); }
  double seconds_between(int first, int second) override {
    float ms = 0.0F;
    check(cudaEventElapsedTime(&ms, event(first), event(second)), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e-3;
  }

  void begin_capture() override {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  Graph end_capture() override {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t ready = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "cudaGraphInstantiate");
    return ready;
  }
  void replay(Graph graph) override {
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_), "cudaGraphLaunch");
  }
  void drop(Graph graph) override { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

 private:
  cudaEvent_t event(int mark) const { return events_.at(static_cast<size_t>(mark)); }

  void raise_shared_limit(const Launch& l) {
    constexpr uint32_t kDefault = 40 << 10;  // of the 48 KB some are the kernel's static variables
    const auto [entry, is_new] = shared_limit_.try_emplace(l.function, kDefault);
    // One split between first cache and shared memory for all kernels: another one could not start before
    // the processor is empty.
    if (is_new) {
      check(cudaFuncSetAttribute(l.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared),
            l.name);
    }
    uint32_t& allowed = entry->second;
    if (l.shared_bytes <= allowed) return;
    check(cudaFuncSetAttribute(l.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(l.shared_bytes)),
          l.name);
    allowed = l.shared_bytes;
  }

  bool dependent_;
  std::string name_;
  int64_t total_ = 0;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kMarks> events_{};
  std::map<const void*, uint32_t> shared_limit_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  int n_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&n_devices);
  if (error == cudaErrorInsufficientDriver) {
    fail(Error::Kind::kFailure,
         "CUDA: the NVIDIA driver is missing or older than CUDA {}.{} needs; update it",
         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (error != cudaSuccess || n_devices == 0) {
    fail(Error::Kind::kFailure, "CUDA: no usable device: {}",
         error == cudaSuccess ? "none is present" : cudaGetErrorString(error));
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, options.index), "cudaGetDeviceProperties");
  if (properties.major < 8) {
    fail(Error::Kind::kFailure, "CUDA: {}: expected compute capability 8.0 or later, got {}.{}",
         properties.name, properties.major, properties.minor);
  }
  return std::make_unique<CudaDevice>(options);
}

}  // namespace synod::cuda
