// What the kernels need besides CUDA C++ itself, so that the same headers run on a device and, in tests, on the host
// (PSDRL_HOST_EXECUTION, tests/host/host_execution.h).
#pragma once

#include <cstdint>

#if defined(PSDRL_HOST_EXECUTION)
#include "host_execution.h"
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

namespace psdrl {

// float64 matrix product of a warp: c (8, 8) += a (8, 4) b (4, 8). Lane l holds a[l / 4][l % 4], b[l % 4][l / 4] and
// c[l / 4][2 (l % 4) + 0 and 1]. From sm_80 on this is a tensor core instruction at twice the rate of plain FMA.
__device__ __forceinline__ void mma_8x8x4(double (&c)[2], double a, double b) {
#if defined(PSDRL_HOST_EXECUTION)
  host_execution::mma_8x8x4(c, a, b);
#else
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(c[0]), "+d"(c[1])
               : "d"(a), "d"(b));
#endif
}

// Sum over the lanes of a warp, the same in every lane and in every run.
__device__ __forceinline__ double warp_sum(double x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ double to_double(double x) { return x; }
__device__ __forceinline__ double to_double(float x) { return x; }
__device__ __forceinline__ double to_double(__nv_bfloat16 x) { return __bfloat162float(x); }

}  // namespace psdrl
