// Every kernel of csrc/*.cuh, instantiated for nvcc -cubin: no torch, no GPU.

#include "gram.cuh"
#include "noise.cuh"
#include "precision.cuh"

namespace psdrl {

#define PSDRL_GRAM(T, U)                                                                                      \
  template __global__ void gram_kernel<T, U>(double*, double*, const T*, const U*, int64_t, int64_t, int64_t, \
                                             double);
PSDRL_GRAM(float, float)
PSDRL_GRAM(__nv_bfloat16, __nv_bfloat16)
PSDRL_GRAM(__nv_bfloat16, float)
PSDRL_GRAM(double, double)

}  // namespace psdrl
