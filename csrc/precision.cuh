// Precision matrices of Eq. 4 and the right sides of its solves: group scaling fused into the one copy they need.
#pragma once

#include "cuda_compat.cuh"

namespace psdrl {

constexpr int kTransposeTile = 32;
constexpr int kTransposeRows = 8;  // blocks of 32 x 8 threads, 4 elements each
constexpr int kDiagonalThreads = 256;

// scale (groups,): mean of the diagonal of I / prior + gram / noise; one block of kDiagonalThreads per group, summed
// in a fixed order.
__global__ void __launch_bounds__(kDiagonalThreads) mean_diagonal_kernel(double* scale, const double* gram,
                                                                         const double* prior, const double* noise,
                                                                         int64_t k) {
  __shared__ double partial[kDiagonalThreads / 32];
  const int g = blockIdx.x;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < k; i += kDiagonalThreads) sum += gram[i * k + i] / noise[g] + 1 / prior[g];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    for (int w = 0; w < kDiagonalThreads / 32; ++w) total += partial[w];
    scale[g] = total / static_cast<double>(k);
  }
}

// precision (k, k) column-major, lower triangle = I / prior[g] + gram / noise[g] + jitter[g] I, zero above it, from
// gram (k, k) row-major: a transposition through shared memory. bad[g] becomes 1 if an element is not finite (all
// writers write the same). Blocks (tiles of columns, tiles of rows) of (kTransposeTile, kTransposeRows) threads.
__global__ void precision_kernel(double* precision, int* bad, const double* gram, const double* prior,
                                 const double* noise, const double* jitter, int64_t g, int64_t k) {
  __shared__ double tile[kTransposeTile][kTransposeTile + 1];
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kTransposeTile;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTransposeTile;
  for (int s = threadIdx.y; s < kTransposeTile; s += kTransposeRows) {
    const int64_t i = row0 + s, j = column0 + threadIdx.x;
    double value = 0;
    if (i < k && j <= i) {
      value = gram[i * k + j] / noise[g] + (i == j ? 1 / prior[g] + jitter[g] : 0.0);
      if (!isfinite(value)) bad[g] = 1;
    }
    tile[s][threadIdx.x] = value;
  }
  __syncthreads();
  for (int s = threadIdx.y; s < kTransposeTile; s += kTransposeRows) {
    const int64_t i = row0 + threadIdx.x, j = column0 + s;
    if (i < k && j < k) precision[j * k + i] = tile[threadIdx.x][s];
  }
}

// right (count, k) row-major = cross[:, first : first + count]^T / noise[g] for cross (k, outputs) row-major: read
// column-major it is the right side (k, count) of the solve for the group's means. Blocks as for precision_kernel,
// with columns counting outputs.
__global__ void right_side_kernel(double* right, const double* cross, const double* noise, int64_t g, int64_t first,
                                  int64_t count, int64_t k, int64_t outputs) {
  __shared__ double tile[kTransposeTile][kTransposeTile + 1];
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kTransposeTile;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTransposeTile;
  for (int s = threadIdx.y; s < kTransposeTile; s += kTransposeRows) {
    const int64_t i = row0 + s, j = column0 + threadIdx.x;
    tile[s][threadIdx.x] = i < k && j < count ? cross[i * outputs + first + j] / noise[g] : 0.0;
  }
  __syncthreads();
  for (int s = threadIdx.y; s < kTransposeTile; s += kTransposeRows) {
    const int64_t i = row0 + threadIdx.x, j = column0 + s;
    if (i < k && j < count) right[j * k + i] = tile[threadIdx.x][s];
  }
}

}  // namespace psdrl
