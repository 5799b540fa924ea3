// The device kernels of csrc/*.cuh on the host, behind C functions that ctypes can call. Pointers and shapes are those
// of the kernels; `order` is 0 (forward), 1 (backward) or 2 (shuffled threads).

#define PSDRL_HOST_EXECUTION 1

#include <algorithm>

#include "gram.cuh"
#include "noise.cuh"
#include "precision.cuh"

namespace {

using host_execution::launch;

void set_order(int order) { host_execution::machine.order = static_cast<host_execution::Order>(order); }

unsigned tiles(int64_t size, int64_t tile) { return static_cast<unsigned>((size + tile - 1) / tile); }

template <typename T, typename U>
void gram(int order, double* g, double* c, const T* phi, const U* targets, int64_t n, int64_t k, int64_t o, double w) {
  set_order(order);
  launch(dim3(static_cast<unsigned>(psdrl::gram_tiles(k, o))), dim3(psdrl::kGramThreads), psdrl::gram_kernel<T, U>, g,
         c, phi, targets, n, k, o, w);
}

const dim3 kTransposeBlock(psdrl::kTransposeTile, psdrl::kTransposeRows);

}  // namespace

extern "C" {

void gram_float(int order, double* g, double* c, const float* phi, const float* t, int64_t n, int64_t k, int64_t o,
                double w) {
  gram(order, g, c, phi, t, n, k, o, w);
}

void gram_bfloat16(int order, double* g, double* c, const __nv_bfloat16* phi, const float* t, int64_t n, int64_t k,
                   int64_t o, double w) {
  gram(order, g, c, phi, t, n, k, o, w);
}

void gram_double(int order, double* g, double* c, const double* phi, const double* t, int64_t n, int64_t k, int64_t o,
                 double w) {
  gram(order, g, c, phi, t, n, k, o, w);
}

void mean_diagonal(int order, double* scale, const double* g, const double* prior, const double* noise, int64_t groups,
                   int64_t k) {
  set_order(order);
  launch(dim3(static_cast<unsigned>(groups)), dim3(psdrl::kDiagonalThreads), psdrl::mean_diagonal_kernel, scale, g,
         prior, noise, k);
}

void precision(int order, double* result, int* bad, const double* g, const double* prior, const double* noise,
               const double* jitter, int64_t which, int64_t k) {
  set_order(order);
  const dim3 grid(tiles(k, psdrl::kTransposeTile), tiles(k, psdrl::kTransposeTile));
  launch(grid, kTransposeBlock, psdrl::precision_kernel, result, bad, g, prior, noise, jitter, which, k);
}

void right_side(int order, double* right, const double* cross, const double* noise, int64_t which, int64_t first,
                int64_t count, int64_t k, int64_t outputs) {
  set_order(order);
  const dim3 grid(tiles(count, psdrl::kTransposeTile), tiles(k, psdrl::kTransposeTile));
  launch(grid, kTransposeBlock, psdrl::right_side_kernel, right, cross, noise, which, first, count, k, outputs);
}

void philox(uint32_t* words, uint64_t seed, uint64_t low, uint64_t high) {
  const psdrl::Philox block = psdrl::philox(seed, low, high);
  std::copy(block.word, block.word + 4, words);
}

// captured_seed and captured_offset may be null.
void normal(int order, unsigned blocks, double* noise, int64_t count, uint64_t seed, uint64_t offset,
            const int64_t* captured_seed, const int64_t* captured_offset) {
  set_order(order);
  launch(dim3(blocks), dim3(256), psdrl::normal_kernel, noise, count, seed, offset, captured_seed, captured_offset);
}
}
