// Convolutions on vectors of frames, one frame to a lane, and their gradients; see autoencoder_steps.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "adam.h"

namespace psdrl::pictures {

// Channels and places that are summed up at once.
constexpr int kRows = 6;
template <class Set>
constexpr int kPlaces = Set::kRegisters >= 32 ? 4 : 2;

// tile(place to start at, how many) for `count` things, COUNT at a time while there are so many, then fewer.
template <int COUNT, class Tile>
PSDRL_INLINE void in_tiles(int64_t count, const Tile& tile) {
  int64_t i = 0;
  for (; i + COUNT <= count; i += COUNT) tile(i, std::integral_constant<int, COUNT>{});
  if (COUNT > 4 && i + 4 <= count) {
    tile(i, std::integral_constant<int, 4>{});
    i += 4;
  }
  if (COUNT > 2 && i + 2 <= count) {
    tile(i, std::integral_constant<int, 2>{});
    i += 2;
  }
  for (; i < count; ++i) tile(i, std::integral_constant<int, 1>{});
}

// Between a picture of large x large places of `wide` channels and one of small x small of `deep`.
struct Layer {
  int64_t wide, deep, kernel, stride, large, small;
  at::Tensor weight;           // (deep, wide, kernel, kernel), in any layout; of a patch layer (deep, c, p, p)
  psdrl::Parameter of_weight, of_bias;
  std::vector<float> packed;   // (deep, kernel, kernel, wide)
  std::vector<int64_t> places;  // of these in the memory of `weight`
  int64_t size() const { return deep * kernel * kernel * wide; }
  int64_t bias_size;
};

// y = act(W x + b) of ROWS channels from `o` on and PLACES places beside each other, from (row, column) on.
template <class Set, int ROWS, int PLACES, class Done>
PSDRL_INLINE void down_tile(const Layer& l, const float* x, int64_t row, int64_t column, int64_t o, const Done& done) {
  constexpr int kLanes = Set::kLanes;
  Floats<Set> sums[ROWS][PLACES] = {};
  const int64_t run = l.kernel * l.wide, next = l.stride * l.wide * kLanes, all = l.kernel * run;
  for (int64_t dy = 0; dy < l.kernel; ++dy) {
    const float* in = x + ((row * l.stride + dy) * l.large + column * l.stride) * l.wide * kLanes;
    const float* w = l.packed.data() + o * all + dy * run;
    for (int64_t i = 0; i < run; ++i, in += kLanes, ++w) {
      Floats<Set> v[PLACES];
      for (int p = 0; p < PLACES; ++p) v[p] = load<Set>(in + p * next);
      for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PLACES; ++p) sums[r][p] += w[r * all] * v[p];
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int p = 0; p < PLACES; ++p) done((row * l.small + column + p) * l.deep + o + r, o + r, sums[r][p]);
}

// From the larger picture to the smaller: done(index of (place, channel), channel, sums) for each.
template <class Set, class Done>
PSDRL_INLINE void down(const Layer& l, const float* x, const Done& done) {
  for (int64_t row = 0; row < l.small; ++row) {
    in_tiles<kPlaces<Set>>(l.small, [&](int64_t column, auto places) __attribute__((always_inline)) {
      in_tiles<kRows>(l.deep, [&](int64_t o, auto rows) __attribute__((always_inline)) {
        down_tile<Set, decltype(rows)::value, decltype(places)::value>(l, x, row, column, o, done);
      });
    });
  }
}

// ROWS channels from `c` on of PLACES places (Y, X), (Y, X + stride), ... of the larger picture, where Y = stride q + d
// and X = stride k + e: the sum over the kernel's places (d + stride i, e + stride j) and the smaller picture's
// channels.
template <class Set, int ROWS, int PLACES, class Done>
PSDRL_INLINE void up_tile(const Layer& l, const float* x, int64_t q, int64_t d, int64_t k, int64_t e, int64_t c,
                          const Done& done) {
  constexpr int kLanes = Set::kLanes;
  Floats<Set> sums[ROWS][PLACES] = {};
  const int64_t all = l.kernel * l.kernel * l.wide, next = l.deep * kLanes;
  for (int64_t i = 0; d + i * l.stride < l.kernel; ++i) {
    if (q - i < 0 || q - i >= l.small) continue;
    for (int64_t j = 0; e + j * l.stride < l.kernel; ++j) {
      if (k - j < 0 || k - j + PLACES - 1 >= l.small) continue;
      const float* in = x + ((q - i) * l.small + k - j) * next;
      const float* w = l.packed.data() + ((d + i * l.stride) * l.kernel + e + j * l.stride) * l.wide + c;
      for (int64_t o = 0; o < l.deep; ++o, in += kLanes, w += all) {
        Floats<Set> v[PLACES];
        for (int p = 0; p < PLACES; ++p) v[p] = load<Set>(in + p * next);
        for (int r = 0; r < ROWS; ++r)
          for (int p = 0; p < PLACES; ++p) sums[r][p] += w[r] * v[p];
      }
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int p = 0; p < PLACES; ++p)
      done(((q * l.stride + d) * l.large + (k + p) * l.stride + e) * l.wide + c + r, c + r, sums[r][p]);
}

template <class Set, int PLACES, class Done>
PSDRL_INLINE void up_places(const Layer& l, const float* x, int64_t q, int64_t d, int64_t k, int64_t e,
                            const Done& done) {
  in_tiles<kRows>(l.wide, [&](int64_t c, auto rows) __attribute__((always_inline)) {
    up_tile<Set, decltype(rows)::value, PLACES>(l, x, q, d, k, e, c, done);
  });
}

// From the smaller picture to the larger: done(index of (place, channel), channel, sums) for each.
template <class Set, class Done>
PSDRL_INLINE void up(const Layer& l, const float* x, const Done& done) {
  const int64_t reach = (l.kernel - 1) / l.stride;  // places of the smaller picture to the left that count too
  for (int64_t y = 0; y < l.large; ++y) {
    const int64_t q = y / l.stride, d = y % l.stride;
    for (int64_t e = 0; e < l.stride; ++e) {
      const int64_t count = (l.large - e + l.stride - 1) / l.stride;
      int64_t k = 0;
      while (k < count) {
        // Places whose sums have the same terms: none at the left edge, where some are missing, nor at the right one.
        if (k >= reach && k + kPlaces<Set> <= std::min(count, l.small)) {
          up_places<Set, kPlaces<Set>>(l, x, q, d, k, e, done);
          k += kPlaces<Set>;
        } else {
          up_places<Set, 1>(l, x, q, d, k++, e, done);
        }
      }
    }
  }
}

// gradient (deep, kernel, kernel, wide) of the weights, from a picture of the smaller and one of the larger kind: sums
// over places and frames. `sums` has a vector for each number; it is worked on by stripes of places that stay in the
// first-level cache.
template <class Set, int ROWS, int COLUMNS>
PSDRL_INLINE void weights_tile(const Layer& l, const float* small, const float* large, int64_t row, int64_t o,
                               int64_t dy, int64_t i, float* sums) {
  constexpr int kLanes = Set::kLanes;
  const int64_t run = l.kernel * l.wide, all = l.kernel * run;
  float* at = sums + (o * all + dy * run + i) * kLanes;
  Floats<Set> total[ROWS][COLUMNS];
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) total[r][c] = load<Set>(at + (r * all + c) * kLanes);
  const float* a = small + (row * l.small * l.deep + o) * kLanes;
  const float* b = large + ((row * l.stride + dy) * l.large * l.wide + i) * kLanes;
  for (int64_t p = 0; p < l.small; ++p, a += l.deep * kLanes, b += l.stride * l.wide * kLanes) {
    Floats<Set> v[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) v[c] = load<Set>(b + c * kLanes);
    for (int r = 0; r < ROWS; ++r) {
      const Floats<Set> d = load<Set>(a + r * kLanes);
      for (int c = 0; c < COLUMNS; ++c) total[r][c] += d * v[c];
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) store<Set>(at + (r * all + c) * kLanes, total[r][c]);
}

template <class Set>
PSDRL_INLINE void weights(const Layer& l, const float* small, const float* large, float* sums, float* gradient) {
  const int64_t run = l.kernel * l.wide;
  std::fill_n(sums, l.size() * Set::kLanes, 0.0f);
  for (int64_t row = 0; row < l.small; ++row) {
    for (int64_t dy = 0; dy < l.kernel; ++dy) {
      in_tiles<kPlaces<Set>>(run, [&](int64_t i, auto columns) __attribute__((always_inline)) {
        in_tiles<kRows>(l.deep, [&](int64_t o, auto rows) __attribute__((always_inline)) {
          weights_tile<Set, decltype(rows)::value, decltype(columns)::value>(l, small, large, row, o, dy, i, sums);
        });
      });
    }
  }
  for (int64_t i = 0; i < l.size(); ++i) gradient[i] = psdrl::sum<Set>(load<Set>(sums + i * Set::kLanes));
}

// The sum of a picture's vectors, by channel modulo `channels`.
template <class Set>
PSDRL_INLINE void bias_gradient(const float* delta, int64_t count, int64_t channels, float* gradient) {
  for (int64_t c = 0; c < channels; ++c) {
    Floats<Set> total = {};
    for (int64_t i = c; i < count; i += channels) total += load<Set>(delta + i * Set::kLanes);
    gradient[c] = psdrl::sum<Set>(total);
  }
}

}  // namespace psdrl::pictures
