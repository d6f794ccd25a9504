// A CUDA device behind the Device interface.
#pragma once

#include <memory>

#include "cuda/device.h"

namespace synod::cuda {

struct CudaDeviceOptions {
  int index = 0;
  bool dependent_launch = true;  // programmatic dependent launch between kernels of the stream
};

// Throws kFailure when there is no driver, no device, or one older than sm_80.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

}  // namespace synod::cuda
