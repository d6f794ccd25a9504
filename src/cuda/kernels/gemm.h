// The kernels behind gemm(): gemm.cu has one for every card and storage, gemm_warpgroup.cu one for Hopper.
#pragma once

#include "cuda/kernels/params.h"

namespace synod::cuda {

bool warpgroup_fits(const DeviceMatrix& m);
Launch warpgroup_gemm(GemmParams p);

}  // namespace synod::cuda
