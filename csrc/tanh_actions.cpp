// Networks of tanh layers on all actions of states, float32 on the CPU, block of rows by block of rows: what lies
// between two layers stays in the cache. In the first layer a state adds a term to the rows of all its actions, and an
// action to its row of every state; bias and tanh are the last thing that happens to a sum in registers. An output layer
// of one unit is summed up on the way, and the layer below it is never stored.
//
// Rows are the left side of the products (products.h) as they are; weights are packed once per call, transposed, in
// panels as wide as the kernel's tiles.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "products.h"

namespace {

using psdrl::Floats;
using psdrl::load;
using psdrl::store;

constexpr int64_t kRows = 96;    // of a block
constexpr int64_t kWidest = 16;  // a multiple of every set's lanes

int64_t padded(int64_t n) { return (n + kWidest - 1) / kWidest * kWidest; }

struct Layer {
  int64_t inputs, units;
  std::vector<float> packed;  // (panels, inputs, panel width), zero beyond the last unit
  std::vector<float> bias;    // (padded units)
};

struct Net {
  std::vector<Layer> layers;
  std::vector<float> output;  // (padded units) of the last layer, or none
  float output_bias = 0;
  int64_t actions;
};

template <class Set>
constexpr int64_t kPanel = psdrl::kTileVectors<Set>* Set::kLanes;

struct Pack {
  Layer& l;
  const float* weight;  // (units, inputs)
  int64_t stride;
  template <class Set>
  PSDRL_INLINE void operator()() const {
    constexpr int64_t wide = kPanel<Set>;
    const int64_t panels = (l.units + wide - 1) / wide;
    l.packed.assign(panels * l.inputs * wide, 0.0f);
    for (int64_t u = 0; u < l.units; ++u) {
      float* to = l.packed.data() + u / wide * l.inputs * wide + u % wide;
      for (int64_t i = 0; i < l.inputs; ++i) to[i * wide] = weight[u * stride + i];
    }
  }
};

// Rows (count, inputs) from x on through a layer, a panel of units after the other: done(row, unit, sums).
template <class Set, class Done>
PSDRL_INLINE void layer_of(const Layer& l, const float* x, int64_t stride, int64_t count, const Done& done) {
  constexpr int64_t wide = kPanel<Set>;
  const psdrl::Left<float> left = {x, stride, 1};
  for (int64_t first = 0; first < l.units; first += wide) {
    const psdrl::Right<float> right = {l.packed.data() + first * l.inputs, wide};
    psdrl::panel_of<Set, float, psdrl::kTileVectors<Set>>(
        left, right, l.inputs, 0, count, 0, [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
          done(i, first + j, v);
        });
  }
}

// Rows `begin` to `end` of x (n A, inputs), to y (n A, units) or, with an output layer, to y (n A,).
struct Rows {
  const Net& net;
  const float *x, *state, *columns;  // (n, padded units), (A, padded units)
  float* y;
  int64_t x_stride;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    constexpr int kLanes = Set::kLanes;
    int64_t widest = 0;
    for (const Layer& l : net.layers) widest = std::max(widest, l.units);
    const int64_t stride = padded(widest) + kPanel<Set>;  // room for a whole panel
    std::vector<float> now(kRows * stride), next(kRows * stride), totals(kRows * kLanes);
    std::vector<const float*> of_states(kRows), of_actions(kRows);  // of each row
    const int64_t width = padded(net.layers[0].units);
    const bool sums_up = !net.output.empty();
    for (int64_t first = begin; first < end; first += kRows) {
      const int64_t count = std::min(kRows, end - first);
      std::fill(totals.begin(), totals.end(), 0.0f);
      for (int64_t r = 0; r < count; ++r) {
        of_states[r] = state + (first + r) / net.actions * width;
        of_actions[r] = columns + (first + r) % net.actions * width;
      }
      for (size_t i = 0; i < net.layers.size(); ++i) {
        const Layer& l = net.layers[i];
        const bool last = i + 1 == net.layers.size();
        const float* in = i ? now.data() : x + first * x_stride;
        const int64_t in_stride = i ? stride : x_stride, units = l.units;
        const float *bias = l.bias.data(), *const *s = of_states.data(), *const *c = of_actions.data(),
                    *w = net.output.data();
        float *to = next.data(), *sums = totals.data(), *out = y + first * units;
        // The panel may be wider than the layer: what is beyond it is left alone.
        if (i == 0) {
          layer_of<Set>(l, in, in_stride, count,
                        [=](int64_t r, int64_t u, Floats<Set> v) __attribute__((always_inline)) {
                          if (u >= units) return;
                          const Floats<Set> terms = load<Set>(s[r] + u) + load<Set>(c[r] + u);
                          store<Set>(to + r * stride + u, psdrl::tanh_of<Set>(v + terms));
                        });
        } else if (!last || !sums_up) {
          layer_of<Set>(l, in, in_stride, count,
                        [=](int64_t r, int64_t u, Floats<Set> v) __attribute__((always_inline)) {
                          if (u >= units) return;
                          store<Set>(to + r * stride + u, psdrl::tanh_of<Set>(v + load<Set>(bias + u)));
                        });
        } else {
          layer_of<Set>(l, in, in_stride, count,
                        [=](int64_t r, int64_t u, Floats<Set> v) __attribute__((always_inline)) {
                          if (u >= units) return;
                          const Floats<Set> h = psdrl::tanh_of<Set>(v + load<Set>(bias + u));
                          store<Set>(sums + r * kLanes, load<Set>(sums + r * kLanes) + h * load<Set>(w + u));
                        });
        }
        if (last && !sums_up)
          for (int64_t r = 0; r < count; ++r) std::copy_n(to + r * stride, units, out + r * units);
        if (last && sums_up && i == 0) {  // a single layer: it was stored
          for (int64_t r = 0; r < count; ++r)
            for (int64_t u = 0; u < units; u += kLanes)
              store<Set>(sums + r * kLanes,
                         load<Set>(sums + r * kLanes) + load<Set>(to + r * stride + u) * load<Set>(w + u));
        }
        std::swap(now, next);
      }
      if (sums_up)
        for (int64_t r = 0; r < count; ++r)
          y[first + r] = psdrl::sum<Set>(load<Set>(totals.data() + r * kLanes)) + net.output_bias;
    }
  }
};

// (rows, padded columns) of x (rows, columns), zero beyond the last one.
std::vector<float> roomy(const at::Tensor& x) {
  const auto from = x.contiguous();
  const int64_t rows = x.size(0), columns = x.size(1), wide = padded(columns);
  std::vector<float> to(rows * wide);
  const float* x_data = from.const_data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) std::copy_n(x_data + r * columns, columns, to.data() + r * wide);
  return to;
}

at::Tensor tanh_actions(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& state,
                        const at::Tensor& columns, at::TensorList weights, at::TensorList biases, bool sums_up) {
  const auto fits = [](const at::Tensor& t, int64_t dims) { return t.dim() == dims && t.scalar_type() == at::kFloat; };
  TORCH_CHECK(fits(x, 2) && fits(weight, 2) && fits(state, 2) && fits(columns, 2),
              "tanh_actions: x (n A, k), weight (U, k), state (n, U) and columns (A, U) must be float32 matrices");
  TORCH_CHECK(weight.size(1) == x.size(1) && state.size(1) == weight.size(0) && columns.size(1) == weight.size(0) &&
                  x.size(0) == state.size(0) * columns.size(0) && weight.numel() > 0,
              "tanh_actions: x ", x.sizes(), ", weight ", weight.sizes(), ", state ", state.sizes(), " and columns ",
              columns.sizes(), " do not fit");
  TORCH_CHECK(weights.size() == biases.size() && (!sums_up || !weights.empty()),
              "tanh_actions: a weight and a bias for each further layer");
  Net net;
  net.actions = columns.size(0);
  const auto add = [&](const at::Tensor& w, const at::Tensor* b) {
    const auto from = w.contiguous();
    Layer l = {w.size(1), w.size(0), {}, std::vector<float>(padded(w.size(0)))};
    if (b) std::copy_n(b->contiguous().const_data_ptr<float>(), l.units, l.bias.data());
    psdrl::run(Pack{l, from.const_data_ptr<float>(), l.inputs});
    net.layers.push_back(std::move(l));
  };
  add(weight, nullptr);
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto &w = weights[i], &b = biases[i];
    const int64_t inputs = net.layers.back().units;
    TORCH_CHECK(fits(w, 2) && fits(b, 1) && w.size(1) == inputs && b.size(0) == w.size(0) && w.numel() > 0,
                "tanh_actions: layer ", i + 1, " does not fit: ", w.sizes(), ", ", b.sizes());
    if (sums_up && i + 1 == weights.size()) {
      TORCH_CHECK(w.size(0) == 1, "tanh_actions: the output layer must have one unit, not ", w.size(0));
      net.output = roomy(w);
      net.output_bias = b.item<float>();
    } else {
      add(w, &b);
    }
  }
  const int64_t rows = x.size(0);
  auto y = sums_up ? at::empty({rows}, x.options()) : at::empty({rows, net.layers.back().units}, x.options());
  if (rows == 0) return y;
  const auto in = x.stride(1) == 1 ? x : x.contiguous();
  const auto s = roomy(state), c = roomy(columns);
  const Rows body = {net, in.const_data_ptr<float>(), s.data(), c.data(), y.mutable_data_ptr<float>(), in.stride(0)};
  at::parallel_for(0, (rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
    psdrl::run(body, begin * kRows, std::min(rows, end * kRows));
  });
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("tanh_actions", &tanh_actions); }
