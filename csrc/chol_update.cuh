// Rank-n update and downdate of a Cholesky factor on the device: the reflectors of chol_update.h, panel by panel.
#pragma once

#include "cuda_compat.cuh"

namespace psdrl {

constexpr int kUpdatePanel = 32;     // columns per panel
constexpr int kUpdateRows = 64;      // rows of X per pass, two per lane
constexpr int kUpdateThreads = 256;  // 8 warps, each a row of the factor at a time

// A pass over factor (k, k) with element (i, j) at factor[i * row + j * column] and xt (k, kUpdateRows), zero-padded.
struct DeviceUpdate {
  double* factor;
  int64_t row, column;
  double* xt;
  int64_t k;
  double sign;
};

// A warp applies one reflector, x the lane's part of its vector, to a row: p = factor (i, j), q the lane's part of xt.
__device__ __forceinline__ double update_row(double p, double (&q)[2], const double (&x)[2], double diagonal,
                                             double updated, double sign) {
  const double dot = warp_sum(x[0] * q[0] + x[1] * q[1]);
  const double result = (diagonal * p + sign * dot) / updated;
  const double step = (p + result) / (diagonal + updated);
  q[0] -= x[0] * step;
  q[1] -= x[1] * step;
  return result;
}

// Reflectors of the columns [begin, begin + kUpdatePanel) and their effect inside the panel; one block. diagonals and
// updateds (kUpdatePanel,) receive l and l'. info (1,): 0, -1 (not finite) or j + 1 (not positive definite at column j);
// once it is not 0 all further launches return at once.
__global__ void __launch_bounds__(kUpdateThreads) update_panel_kernel(DeviceUpdate u, int64_t begin, double* diagonals,
                                                                      double* updateds, int* info) {
  __shared__ double x[kUpdatePanel][kUpdateRows];
  __shared__ double block[kUpdatePanel][kUpdatePanel + 1];
  __shared__ int failed;
  if (threadIdx.x == 0) failed = *info;
  __syncthreads();
  if (failed != 0) return;
  const int width = static_cast<int>(u.k - begin < kUpdatePanel ? u.k - begin : kUpdatePanel);
  for (int e = threadIdx.x; e < width * kUpdateRows; e += kUpdateThreads) {
    x[e / kUpdateRows][e % kUpdateRows] = u.xt[begin * kUpdateRows + e];
  }
  for (int e = threadIdx.x; e < width * width; e += kUpdateThreads) {
    block[e / width][e % width] = u.factor[(begin + e / width) * u.row + (begin + e % width) * u.column];
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int j = 0; j < width; ++j) {
    const double mine[2] = {x[j][lane], x[j][lane + 32]};
    const double diagonal = block[j][j];
    const double square = diagonal * diagonal + u.sign * warp_sum(mine[0] * mine[0] + mine[1] * mine[1]);
    if (!isfinite(square) || square <= 0) {  // every thread sees the same square
      if (threadIdx.x == 0) *info = isfinite(square) ? static_cast<int>(begin) + j + 1 : -1;
      return;
    }
    const double updated = sqrt(square);
    for (int i = j + 1 + warp; i < width; i += kUpdateThreads / 32) {
      double q[2] = {x[i][lane], x[i][lane + 32]};
      const double result = update_row(block[i][j], q, mine, diagonal, updated, u.sign);
      x[i][lane] = q[0];
      x[i][lane + 32] = q[1];
      if (lane == 0) block[i][j] = result;
    }
    __syncthreads();  // all have read block[j][j], and row j + 1 is complete
    if (threadIdx.x == 0) {
      block[j][j] = updated;
      diagonals[j] = diagonal;
      updateds[j] = updated;
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < width * kUpdateRows; e += kUpdateThreads) {
    u.xt[begin * kUpdateRows + e] = x[e / kUpdateRows][e % kUpdateRows];
  }
  for (int e = threadIdx.x; e < width * width; e += kUpdateThreads) {
    const int i = e / width, j = e % width;
    if (j <= i) u.factor[(begin + i) * u.row + (begin + j) * u.column] = block[i][j];
  }
}

// The effect of a panel's reflectors on the rows below it, a warp per row; blocks of kUpdateThreads.
__global__ void __launch_bounds__(kUpdateThreads) update_below_kernel(DeviceUpdate u, int64_t begin,
                                                                      const double* diagonals, const double* updateds,
                                                                      const int* info) {
  __shared__ double x[kUpdatePanel][kUpdateRows];
  __shared__ int failed;
  if (threadIdx.x == 0) failed = *info;
  for (int e = threadIdx.x; e < kUpdatePanel * kUpdateRows; e += kUpdateThreads) {
    x[e / kUpdateRows][e % kUpdateRows] = u.xt[begin * kUpdateRows + e];
  }
  __syncthreads();
  const int64_t warps = kUpdateThreads / 32;
  const int64_t i = begin + kUpdatePanel + blockIdx.x * warps + threadIdx.x / 32;
  if (failed != 0 || i >= u.k) return;
  const int lane = threadIdx.x % 32;
  double q[2] = {u.xt[i * kUpdateRows + lane], u.xt[i * kUpdateRows + lane + 32]};
  // Lane j holds the row's element of column j of the panel.
  double& element = u.factor[i * u.row + (begin + lane) * u.column];
  double held = element;
  for (int j = 0; j < kUpdatePanel; ++j) {
    const double mine[2] = {x[j][lane], x[j][lane + 32]};
    const double p = __shfl_sync(0xffffffffu, held, j);
    const double result = update_row(p, q, mine, diagonals[j], updateds[j], u.sign);
    if (lane == j) held = result;
  }
  element = held;
  u.xt[i * kUpdateRows + lane] = q[0];
  u.xt[i * kUpdateRows + lane + 32] = q[1];
}

}  // namespace psdrl
