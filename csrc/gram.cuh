// Sums of Eq. 4 in one pass over the rows: gram += w Phi^T Phi (lower triangle) and cross += w Phi^T T.
//
// [Phi | T] is read in float32, bfloat16 or float64 and converted on its way into shared memory; products and sums are
// float64 on tensor cores. A block owns a 64 x 64 tile of gram or cross for all rows, so that the order of the sum is
// fixed: the result is the same in every run. Tiles above gram's diagonal are not launched.
#pragma once

#include "cuda_compat.cuh"

namespace psdrl {

constexpr int kGramTile = 64;                // tile of the result
constexpr int kGramDepth = 16;               // rows of Phi per step
constexpr int kGramPitch = kGramTile + 4;    // 4 mod 16: the 16 lanes of a half warp read 16 different banks
constexpr int kGramThreads = 128;            // 4 warps, each 32 x 32 of the tile
constexpr int kGramLoads = kGramTile * kGramDepth / kGramThreads;

// Tiles of the lower triangle of gram, then those of cross.
__host__ __device__ inline int64_t gram_tiles(int64_t k, int64_t outputs) {
  const int64_t down = (k + kGramTile - 1) / kGramTile, across = (outputs + kGramTile - 1) / kGramTile;
  return down * (down + 1) / 2 + down * across;
}

// kGramDepth x kGramTile elements of x (n, width), zero outside, into the registers of the block's threads.
template <typename T>
__device__ __forceinline__ void gram_fetch(double (&held)[kGramLoads], const T* x, int64_t n, int64_t width,
                                           int64_t row, int64_t column) {
  const int64_t j = column + threadIdx.x % kGramTile;
#pragma unroll
  for (int s = 0; s < kGramLoads; ++s) {
    const int64_t i = row + threadIdx.x / kGramTile + s * (kGramThreads / kGramTile);
    held[s] = i < n && j < width ? to_double(x[i * width + j]) : 0.0;
  }
}

__device__ __forceinline__ void gram_store(double (&tile)[kGramDepth][kGramPitch], const double (&held)[kGramLoads]) {
#pragma unroll
  for (int s = 0; s < kGramLoads; ++s) {
    tile[threadIdx.x / kGramTile + s * (kGramThreads / kGramTile)][threadIdx.x % kGramTile] = held[s];
  }
}

// gram (k, k), cross (k, outputs), phi (n, k), targets (n, outputs), all row-major; gram_tiles(k, outputs) blocks of
// kGramThreads threads.
template <typename T, typename U>
__global__ void __launch_bounds__(kGramThreads) gram_kernel(double* gram, double* cross, const T* phi, const U* targets,
                                                            int64_t n, int64_t k, int64_t outputs, double weight) {
  __shared__ double left[2][kGramDepth][kGramPitch];
  __shared__ double right[2][kGramDepth][kGramPitch];
  const int64_t down = (k + kGramTile - 1) / kGramTile, triangle = down * (down + 1) / 2;
  int64_t tile = blockIdx.x, tile_row, tile_column;
  const bool symmetric = tile < triangle;
  if (symmetric) {  // tile = row (row + 1) / 2 + column
    tile_row = static_cast<int64_t>((sqrt(8.0 * static_cast<double>(tile) + 1.0) - 1.0) / 2.0);
    if (tile_row * (tile_row + 1) / 2 > tile) --tile_row;  // the root may be off by one
    if ((tile_row + 1) * (tile_row + 2) / 2 <= tile) ++tile_row;
    tile_column = tile - tile_row * (tile_row + 1) / 2;
  } else {
    tile_row = (tile - triangle) % down;
    tile_column = (tile - triangle) / down;
  }
  const int64_t row0 = tile_row * kGramTile, column0 = tile_column * kGramTile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / 2 * 32 + lane / 4, warp_column = warp % 2 * 32 + lane / 4;

  double sum[4][4][2] = {};
  double held_left[kGramLoads], held_right[kGramLoads];
  const auto fetch = [&](int64_t row) {
    gram_fetch(held_left, phi, n, k, row, row0);
    if (symmetric) {
      gram_fetch(held_right, phi, n, k, row, column0);
    } else {
      gram_fetch(held_right, targets, n, outputs, row, column0);
    }
  };
  fetch(0);
  int stage = 0;
  for (int64_t row = 0; row < n; row += kGramDepth, stage ^= 1) {
    gram_store(left[stage], held_left);
    gram_store(right[stage], held_right);
    __syncthreads();  // one barrier per step: the other stage is free once all have passed the previous one
    if (row + kGramDepth < n) fetch(row + kGramDepth);  // in flight during the products
#pragma unroll
    for (int d = 0; d < kGramDepth; d += 4) {
      double a[4], b[4];
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        a[s] = left[stage][d + lane % 4][warp_row + 8 * s];
        b[s] = right[stage][d + lane % 4][warp_column + 8 * s];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_8x8x4(sum[i][j], a[i], b[j]);
      }
    }
  }
  double* result = symmetric ? gram : cross;
  const int64_t width = symmetric ? k : outputs;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int64_t r = row0 + warp / 2 * 32 + 8 * i + lane / 4;
        const int64_t c = column0 + warp % 2 * 32 + 8 * j + 2 * (lane % 4) + e;
        if (r < k && c < width && (!symmetric || c <= r)) result[r * width + c] += weight * sum[i][j][e];
      }
    }
  }
}

}  // namespace psdrl
