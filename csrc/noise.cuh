// Standard normal float64 noise, written straight into the right side of the triangular solve.
//
// Philox-4x32-10 (Salmon et al., 2011): element pair i of the noise is block offset / 4 of subsequence i of the seed's
// stream, the layout of torch's own generators: it does not depend on the launch, takes 4 numbers off the offset and
// overlaps with nothing else drawn from the generator.
#pragma once

#include "cuda_compat.cuh"

namespace psdrl {

struct Philox {
  uint32_t word[4];
};

// Block (low, high), a 128-bit counter, of the stream of `seed`.
__host__ __device__ inline Philox philox(uint64_t seed, uint64_t low, uint64_t high) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(low), c1 = static_cast<uint32_t>(low >> 32);
  uint32_t c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * c0, second = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(second);
    c3 = static_cast<uint32_t>(first);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// noise (count,): normal numbers by Box and Muller's transformation of 53-bit uniforms; any grid, 256 threads per block.
__device__ inline void fill_normal(double* noise, int64_t count, uint64_t seed, uint64_t offset) {
  const int64_t pairs = (count + 1) / 2, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < pairs; i += step) {
    const Philox bits = philox(seed, offset / 4, static_cast<uint64_t>(i));
    const uint64_t first = (static_cast<uint64_t>(bits.word[0]) << 32 | bits.word[1]) >> 11;
    const uint64_t second = (static_cast<uint64_t>(bits.word[2]) << 32 | bits.word[3]) >> 11;
    const double radius = sqrt(-2.0 * log((static_cast<double>(first) + 1.0) * 0x1p-53));  // of (0, 1]: never log 0
    double sine, cosine;
    sincospi(static_cast<double>(second) * 0x1p-52, &sine, &cosine);
    noise[2 * i] = radius * cosine;
    if (2 * i + 1 < count) noise[2 * i + 1] = radius * sine;
  }
}

// With seed and offset by value, or (under graph capture) from device memory plus an offset inside the graph.
__global__ void __launch_bounds__(256) normal_kernel(double* noise, int64_t count, uint64_t seed, uint64_t offset,
                                                     const int64_t* captured_seed, const int64_t* captured_offset) {
  const uint64_t key = captured_seed ? static_cast<uint64_t>(*captured_seed) : seed;
  fill_normal(noise, count, key, captured_offset ? static_cast<uint64_t>(*captured_offset) + offset : offset);
}

}  // namespace psdrl
