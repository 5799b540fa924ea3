// What gradient steps in csrc share: activations are kept transposed, (units, rows of the batch), so that the weights of
// a layer are the left side of its products as they are, forwards by rows and backwards by columns.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "adam.h"
#include "products.h"

namespace psdrl {

constexpr int64_t kWidest = 16;  // a multiple of every set's lanes

inline int64_t padded(int64_t n) { return (n + kWidest - 1) / kWidest * kWidest; }

struct Layer {
  Parameter weight, bias;  // (outputs, inputs), (outputs)
  int64_t inputs, outputs;

  void stepped() {
    ++weight.step;
    ++bias.step;
  }
};

// to (columns, to_stride) = from (rows, from_stride)^T, in squares of four.
inline void transpose(const float* from, int64_t rows, int64_t columns, int64_t from_stride, float* to,
                      int64_t to_stride) {
  using V = Vector<4>::Floats;
  const int64_t r4 = rows / 4 * 4, c4 = columns / 4 * 4;
  for (int64_t c = 0; c < c4; c += 4) {
    for (int64_t r = 0; r < r4; r += 4) {
      const float* p = from + r * from_stride + c;
      const V a0 = load_lanes<V>(p), a1 = load_lanes<V>(p + from_stride), a2 = load_lanes<V>(p + 2 * from_stride),
              a3 = load_lanes<V>(p + 3 * from_stride);
      const V b0 = __builtin_shufflevector(a0, a1, 0, 4, 1, 5), b1 = __builtin_shufflevector(a2, a3, 0, 4, 1, 5),
              b2 = __builtin_shufflevector(a0, a1, 2, 6, 3, 7), b3 = __builtin_shufflevector(a2, a3, 2, 6, 3, 7);
      const V square[4] = {
          __builtin_shufflevector(b0, b1, 0, 1, 4, 5), __builtin_shufflevector(b0, b1, 2, 3, 6, 7),
          __builtin_shufflevector(b2, b3, 0, 1, 4, 5), __builtin_shufflevector(b2, b3, 2, 3, 6, 7)};
      for (int i = 0; i < 4; ++i) std::memcpy(to + (c + i) * to_stride + r, &square[i], sizeof(V));
    }
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < r4 ? c4 : 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
}

// Rows of a product, shared out between threads if each has a million multiply-adds.
template <class Body>
void shared_out(const Body& body, int64_t rows, int64_t work) {
  const int64_t grain = std::max<int64_t>(24, (int64_t{1} << 20) / std::max<int64_t>(1, work));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) { run(body, begin, end); });
}

// y (outputs, width) = W x + b of x (inputs, width), or its tanh; units `begin` to `end`.
struct Forward {
  const Layer& l;
  const float* x;
  float* y;
  int64_t width;
  bool bend = true;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const float* bias = l.bias.value;
    float* out = y;
    const int64_t w = width;
    const Left<float> left = {l.weight.value, l.inputs, 1};
    if (bend) {
      product_of<Set, float>(left, {x, w}, l.inputs, w, begin, end,
                             [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                               store<Set>(out + i * w + j, tanh_of<Set>(v + bias[i]));
                             });
    } else {
      product_of<Set, float>(left, {x, w}, l.inputs, w, begin, end,
                             [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                               store<Set>(out + i * w + j, v + bias[i]);
                             });
    }
  }
};

// before (inputs, width) = W^T delta, times 1 - x^2 if `bent`; inputs `begin` to `end` of the layer, x its input.
struct Backward {
  const Layer& l;
  const float *x, *delta;
  float* before;
  int64_t width;
  bool bent = true;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const float* in = x;
    float* out = before;
    const int64_t w = width;
    const Left<float> left = {l.weight.value, 1, l.inputs};
    if (bent) {
      product_of<Set, float>(left, {delta, w}, l.outputs, w, begin, end,
                             [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                               const Floats<Set> h = load<Set>(in + i * w + j);
                               store<Set>(out + i * w + j, v * (1.0f - h * h));
                             });
    } else {
      product_of<Set, float>(left, {delta, w}, l.outputs, w, begin, end,
                             [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                               store<Set>(out + i * w + j, v);
                             });
    }
  }
};

// W and b of a layer after their step, outputs `begin` to `end`. delta has `blocks` blocks (outputs, width), `jump`
// numbers apart, of which `rows` columns count and the others are zero; x (blocks * rows, stride) is the layer's input,
// row by row. A gradient is used up in registers and never stored.
struct Step {
  const Layer& l;
  const float *x, *delta;
  int64_t stride, rows, width, blocks, jump;
  float* sums;  // (padded outputs), of the bias's gradient
  const Adam &of_weight, &of_bias;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const int64_t inputs = l.inputs;
    for (int64_t i = begin; i < end; ++i) {
      Floats<Set> total = {};
      for (int64_t t = 0; t < blocks; ++t)
        for (int64_t j = 0; j < width; j += Set::kLanes) total += load<Set>(delta + t * jump + i * width + j);
      sums[i] = sum<Set>(total);
    }
    for (int64_t i = begin; i < end; i += Set::kLanes)
      adam<Set>(of_bias, l.bias, i, load<Set>(sums + i, std::min<int64_t>(end - i, Set::kLanes)), end - i);
    const Parameter weight = l.weight;
    const Adam a = of_weight;
    product_of<Set, float>({delta, width, 1, rows, jump}, {x, stride}, blocks * rows, inputs, begin, end,
                           [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                             const Parameter row = {weight.value + i * inputs, weight.average + i * inputs,
                                                    weight.square + i * inputs, 0};
                             adam<Set>(a, row, j, v, inputs - j);
                           });
  }
};

}  // namespace psdrl
