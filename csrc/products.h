// Products of matrices in registers: C (m, n) = A (m, k) B (k, n), where rows of B are vectors and the numbers of A are
// spread over vectors. A may have any strides, so A and its transpose serve alike; B has contiguous rows with room for
// whole vectors after the last column. What becomes of C, a block of numbers in registers, is the caller's: the tanh of
// a layer, a factor, an optimiser's step; C itself need not be stored.
//
// 256 x 358 x 64 in float32, one thread of an AMD EPYC (Zen 5): 280 GFLOP/s with AVX-512, 134 with AVX2, near the peak.
#pragma once

#include <cstdint>

#include "lanes.h"

namespace psdrl {

template <class T>
struct Left {  // A
  const T* data;
  int64_t row, column;  // strides
  int64_t segment = INT64_MAX, jump = 0;  // after so many columns the next ones lie `jump` behind the first of these
};

template <class T>
struct Right {  // B
  const T* data;
  int64_t stride;  // of rows
};

// Rows and vectors of C that are summed up at once: with those of B and a number of A they fill the registers. With AVX2
// 6 x 2 reaches 134 GFLOP/s, 4 x 3 reaches 100.
template <class Set>
constexpr int kTileRows = Set::kLanes > 4 ? 6 : 4;
template <class Set>
constexpr int kTileVectors = Set::kRegisters >= 32 ? 4 : 2;

// The sums of ROWS rows and VECTORS vectors of C, from row `i` and column `j` on: done(row, column, vector) for each.
template <class Set, class T, int ROWS, int VECTORS, class Done>
PSDRL_INLINE void tile_of(const Left<T>& a, const Right<T>& b, int64_t k, int64_t i, int64_t j, const Done& done) {
  using V = Lanes<Set, T>;
  V sums[ROWS][VECTORS] = {};
  const T* begin = a.data + i * a.row;
  const T* right = b.data + j;
  for (int64_t first = 0; first < k; first += a.segment, begin += a.jump) {
    const T* left = begin;
    const int64_t count = k - first < a.segment ? k - first : a.segment;
    for (int64_t p = 0; p < count; ++p, left += a.column, right += b.stride) {
      V vectors[VECTORS];
      for (int v = 0; v < VECTORS; ++v) vectors[v] = load_lanes<V>(right + v * kLanesOf<Set, T>);
      for (int r = 0; r < ROWS; ++r) {
        const T number = left[r * a.row];  // V{} + number would be an addition: -0 + 0 is not -0
        for (int v = 0; v < VECTORS; ++v) sums[r][v] += number * vectors[v];
      }
    }
  }
  asm volatile("" ::: "memory");  // what `done` reads is read here: kept in registers it would drive sums out of them
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) done(i + r, j + v * kLanesOf<Set, T>, sums[r][v]);
}

template <class Set, class T, int VECTORS, class Done>
PSDRL_INLINE void panel_of(const Left<T>& a, const Right<T>& b, int64_t k, int64_t begin, int64_t end, int64_t j,
                           const Done& done) {
  constexpr int kRows = kTileRows<Set>;
  int64_t i = begin;
  for (; i + kRows <= end; i += kRows) tile_of<Set, T, kRows, VECTORS>(a, b, k, i, j, done);
  for (; i + 2 <= end; i += 2) tile_of<Set, T, 2, VECTORS>(a, b, k, i, j, done);
  if (i < end) tile_of<Set, T, 1, VECTORS>(a, b, k, i, j, done);
}

// Rows `begin` to `end` of C and all of its n columns, a panel of columns after the other: a panel of B stays in the
// first-level cache while A streams by.
template <class Set, class T, class Done>
PSDRL_INLINE void product_of(const Left<T>& a, const Right<T>& b, int64_t k, int64_t n, int64_t begin, int64_t end,
                             const Done& done) {
  constexpr int kVectors = kTileVectors<Set>, kWidth = kLanesOf<Set, T>;
  int64_t j = 0;
  for (; j + (kVectors - 1) * kWidth < n; j += kVectors * kWidth)
    panel_of<Set, T, kVectors>(a, b, k, begin, end, j, done);
  const int64_t rest = (n - j + kWidth - 1) / kWidth;  // vectors, fewer than kVectors
  if (kVectors > 2 && rest == 3) panel_of<Set, T, 3>(a, b, k, begin, end, j, done);
  if (kVectors > 2 && rest == 2) panel_of<Set, T, 2>(a, b, k, begin, end, j, done);
  if (rest == 1) panel_of<Set, T, 1>(a, b, k, begin, end, j, done);
}

}  // namespace psdrl
