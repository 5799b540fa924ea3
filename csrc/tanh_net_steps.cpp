// Adam steps of networks of tanh layers with one linear output on squared errors, float32 on the CPU: for each of n
// batches the forward pass, the gradients of all layers and the optimiser's step, for each of several networks.
//
// A step of the cpu preset's value network (64 rows, 358, 256, 256, 1) is five products of some 30 us: called one by
// one, with bias, tanh and optimiser between them, they reach a third of the CPU's speed. Here activations are kept
// transposed (units, rows), so one kernel serves all products (products.h): the weights are its left side as they are,
// forwards by rows and backwards by columns; a gradient is used up in registers by Adam and never stored. A sum's order
// does not depend on the number of threads.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "products.h"

namespace {

using psdrl::Floats;
using psdrl::load;
using psdrl::store;

constexpr int64_t kWidest = 16;  // a multiple of every set's lanes

int64_t padded(int64_t n) { return (n + kWidest - 1) / kWidest * kWidest; }

// Adam as torch.optim.Adam has it, without weight decay; the corrections of the present step.
struct Adam {
  float size, root, first, second, decay, eps;  // rate / (1 - beta1^t), sqrt(1 - beta2^t), 1 - beta1, 1 - beta2, beta2
  Adam(double rate, double beta1, double beta2, double eps, double step)
      : size(static_cast<float>(rate / (1 - std::pow(beta1, step)))),
        root(static_cast<float>(std::sqrt(1 - std::pow(beta2, step)))),
        first(static_cast<float>(1 - beta1)),
        second(static_cast<float>(1 - beta2)),
        decay(static_cast<float>(beta2)),
        eps(static_cast<float>(eps)) {}
};

// A parameter with its two moments.
struct Parameter {
  float *value, *average, *square;
  double step;  // steps taken so far
};

template <class Set>
PSDRL_INLINE void adam(const Adam& a, const Parameter& p, int64_t at, Floats<Set> gradient, int64_t count) {
  const bool whole = count >= Set::kLanes;
  const auto get = [&](const float* x) __attribute__((always_inline)) {
    return whole ? load<Set>(x + at) : load<Set>(x + at, count);
  };
  const auto put = [&](float* x, Floats<Set> v) __attribute__((always_inline)) {
    whole ? store<Set>(x + at, v) : store<Set>(x + at, v, count);
  };
  Floats<Set> average = get(p.average), square = get(p.square);
  average += a.first * (gradient - average);
  square = a.decay * square + a.second * gradient * gradient;
  put(p.average, average);
  put(p.square, square);
  put(p.value, get(p.value) - a.size * average / (psdrl::sqrt_of<Set>(square) / a.root + a.eps));
}

struct Layer {
  Parameter weight, bias;  // (outputs, inputs), (outputs)
  int64_t inputs, outputs;
};

// What the products of a step read and write: rows of activations lie side by side, `width` to a unit.
struct Sizes {
  int64_t rows, width;  // of the batch, and padded
};

// y (outputs, width) = tanh(W x + b), units `begin` to `end`.
struct Forward {
  const Layer& l;
  const float* x;
  float* y;
  Sizes s;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const float* bias = l.bias.value;
    float* out = y;
    const int64_t width = s.width;
    psdrl::product_of<Set, float>({l.weight.value, l.inputs, 1}, {x, width}, l.inputs, width, begin, end,
                                  [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                                    store<Set>(out + i * width + j, psdrl::tanh_of<Set>(v + bias[i]));
                                  });
  }
};

// before (inputs, width) = (1 - x^2) W^T delta, inputs `begin` to `end`; x (inputs, width) is the layer's input.
struct Backward {
  const Layer& l;
  const float *x, *delta;
  float* before;
  Sizes s;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const float* in = x;
    float* out = before;
    const int64_t width = s.width;
    psdrl::product_of<Set, float>({l.weight.value, 1, l.inputs}, {delta, width}, l.outputs, width, begin, end,
                                  [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                                    const Floats<Set> h = load<Set>(in + i * width + j);
                                    store<Set>(out + i * width + j, v * (1.0f - h * h));
                                  });
  }
};

// W and b after their step, outputs `begin` to `end`; x (rows, stride) is the layer's input, row by row.
struct Step {
  const Layer& l;
  const float *x, *delta;
  int64_t stride;
  float* sums;  // (padded outputs) of the bias's gradient
  Sizes s;
  const Adam &of_weight, &of_bias;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const int64_t width = s.width, inputs = l.inputs;
    for (int64_t i = begin; i < end; ++i) {
      Floats<Set> total = {};
      for (int64_t j = 0; j < width; j += Set::kLanes) total += load<Set>(delta + i * width + j);
      sums[i] = psdrl::sum<Set>(total);
    }
    for (int64_t i = begin; i < end; i += Set::kLanes)
      adam<Set>(of_bias, l.bias, i, load<Set>(sums + i, std::min<int64_t>(end - i, Set::kLanes)), end - i);
    const Parameter weight = l.weight;
    const Adam a = of_weight;
    psdrl::product_of<Set, float>({delta, width, 1}, {x, stride}, s.rows, inputs, begin, end,
                                  [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                                    const Parameter row = {weight.value + i * inputs, weight.average + i * inputs,
                                                           weight.square + i * inputs, 0};
                                    adam<Set>(a, row, j, v, inputs - j);
                                  });
  }
};

// The output layer: values, loss, the gradient with respect to its input x (inputs, width), its own step.
struct Output {
  const Layer& l;
  const float *x, *targets;  // targets (rows,)
  float *error, *delta, *gradient, *loss;  // (width), (inputs, width), (padded inputs)
  Sizes s;
  const Adam &of_weight, &of_bias;
  template <class Set>
  PSDRL_INLINE void operator()() const {
    const int64_t width = s.width;
    float* out = error;
    const float bias = *l.bias.value;
    psdrl::product_of<Set, float>({l.weight.value, l.inputs, 1}, {x, width}, l.inputs, width, 0, 1,
                                  [=](int64_t, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                                    store<Set>(out + j, v + bias);
                                  });
    const float scale = 2.0f / static_cast<float>(s.rows);
    double squares = 0, sum = 0;
    for (int64_t b = 0; b < width; ++b) {
      const float e = b < s.rows ? error[b] - targets[b] : 0.0f;
      squares += static_cast<double>(e) * e;
      error[b] = scale * e;
      sum += error[b];
    }
    *loss = static_cast<float>(squares / static_cast<double>(s.rows));
    for (int64_t i = 0; i < l.inputs; ++i) {
      const float weight = l.weight.value[i];
      Floats<Set> total = {};
      for (int64_t j = 0; j < width; j += Set::kLanes) {
        const Floats<Set> h = load<Set>(x + i * width + j), e = load<Set>(error + j);
        total += h * e;
        store<Set>(delta + i * width + j, weight * e * (1.0f - h * h));
      }
      gradient[i] = psdrl::sum<Set>(total);
    }
    for (int64_t i = 0; i < l.inputs; i += Set::kLanes)
      adam<Set>(of_weight, l.weight, i, load<Set>(gradient + i), l.inputs - i);
    adam<Set>(of_bias, l.bias, 0, psdrl::all<Set>(static_cast<float>(sum)), 1);
  }
};

// to (columns, to_stride) = from (rows, from_stride)^T, in squares of four.
void transpose(const float* from, int64_t rows, int64_t columns, int64_t from_stride, float* to, int64_t to_stride) {
  using V = psdrl::Vector<4>::Floats;
  const int64_t r4 = rows / 4 * 4, c4 = columns / 4 * 4;
  for (int64_t c = 0; c < c4; c += 4) {
    for (int64_t r = 0; r < r4; r += 4) {
      const float* p = from + r * from_stride + c;
      const V a0 = psdrl::load_lanes<V>(p), a1 = psdrl::load_lanes<V>(p + from_stride),
              a2 = psdrl::load_lanes<V>(p + 2 * from_stride), a3 = psdrl::load_lanes<V>(p + 3 * from_stride);
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
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) { psdrl::run(body, begin, end); });
}

// Activations of one batch, which all networks share but for their own layers' results.
struct Batch {
  Sizes s;
  int64_t stride;  // of the rows of `plain`
  std::vector<float> plain, turned;                  // (rows, stride) and (inputs, width)
  std::vector<std::vector<float>> hidden, by_row;    // (units, width) and (rows, padded units) of each hidden layer
  std::vector<float> delta, before, error, gradient;  // (units, width) twice, (width), (padded units)

  Batch(const std::vector<Layer>& layers, int64_t rows)
      : s{rows, padded(rows)}, stride(padded(layers.front().inputs)), plain(rows * stride),
        turned(layers.front().inputs * s.width), error(s.width) {
    int64_t widest = 0;
    for (size_t i = 0; i + 1 < layers.size(); ++i) {
      hidden.emplace_back(layers[i].outputs * s.width);
      by_row.emplace_back(rows * padded(layers[i].outputs));
      widest = std::max(widest, layers[i].outputs);
    }
    delta.resize(widest * s.width);
    before.resize(widest * s.width);
    gradient.resize(padded(std::max(widest, layers.back().inputs)));
  }

  void take(const float* states, int64_t inputs) {
    for (int64_t r = 0; r < s.rows; ++r) std::copy_n(states + r * inputs, inputs, plain.data() + r * stride);
    transpose(plain.data(), s.rows, inputs, stride, turned.data(), s.width);
  }
};

// One network's step on a batch; its loss.
float step(std::vector<Layer>& layers, Batch& b, const float* targets, const auto& adam_of) {
  const size_t last = layers.size() - 1;
  const float* x = b.turned.data();
  for (size_t i = 0; i < last; ++i) {
    shared_out(Forward{layers[i], x, b.hidden[i].data(), b.s}, layers[i].outputs, layers[i].inputs * b.s.width);
    x = b.hidden[i].data();
  }
  float loss = 0;
  const Adam of_output = adam_of(layers[last].weight), of_output_bias = adam_of(layers[last].bias);
  psdrl::run(Output{layers[last], x, targets, b.error.data(), b.delta.data(), b.gradient.data(), &loss, b.s, of_output,
                    of_output_bias});
  for (size_t i = last; i-- > 0;) {
    const Layer& l = layers[i];
    const Adam of_weight = adam_of(l.weight), of_bias = adam_of(l.bias);
    if (i > 0) {
      const Layer& below = layers[i - 1];
      shared_out(Backward{l, b.hidden[i - 1].data(), b.delta.data(), b.before.data(), b.s}, l.inputs,
                 l.outputs * b.s.width);
      transpose(b.hidden[i - 1].data(), below.outputs, b.s.rows, b.s.width, b.by_row[i - 1].data(),
                padded(below.outputs));
    }
    const float* rows = i > 0 ? b.by_row[i - 1].data() : b.plain.data();
    const int64_t stride = i > 0 ? padded(l.inputs) : b.stride;
    shared_out(Step{l, rows, b.delta.data(), stride, b.gradient.data(), b.s, of_weight, of_bias}, l.outputs,
               l.inputs * b.s.rows);
    std::swap(b.delta, b.before);
  }
  for (Layer& l : layers) {
    ++l.weight.step;
    ++l.bias.step;
  }
  return loss;
}

at::Tensor tanh_net_steps_(const at::Tensor& states, const at::Tensor& targets, at::TensorList parameters,
                           at::TensorList averages, at::TensorList squares, at::TensorList steps, int64_t networks,
                           double rate, double beta1, double beta2, double eps) {
  TORCH_CHECK(states.dim() == 3 && targets.dim() == 2 && targets.sizes() == states.sizes().slice(0, 2) &&
                  states.scalar_type() == at::kFloat && targets.scalar_type() == at::kFloat,
              "tanh_net_steps_: states (n, B, D) and targets (n, B) must be float32, got ", states.scalar_type(), " ",
              states.sizes(), " and ", targets.scalar_type(), " ", targets.sizes());
  const int64_t count = static_cast<int64_t>(parameters.size());
  TORCH_CHECK(networks > 0 && count > 0 && count % (2 * networks) == 0 && averages.size() == parameters.size() &&
                  squares.size() == parameters.size() && steps.size() == parameters.size(),
              "tanh_net_steps_: a weight and a bias for each layer of each network, with two moments and a step each");
  const int64_t depth = count / (2 * networks);
  const auto parameter = [&](int64_t i) {
    for (const auto* list : {&parameters, &averages, &squares}) {
      TORCH_CHECK((*list)[i].is_contiguous() && (*list)[i].scalar_type() == at::kFloat &&
                      (*list)[i].sizes() == parameters[i].sizes(),
                  "tanh_net_steps_: parameter ", i, " and its moments must be contiguous, float32 and of one shape");
    }
    TORCH_CHECK(steps[i].numel() == 1 && steps[i].scalar_type() == at::kFloat,
                "tanh_net_steps_: the steps of parameter ", i, " must be one float32");
    return Parameter{parameters[i].mutable_data_ptr<float>(), averages[i].mutable_data_ptr<float>(),
                     squares[i].mutable_data_ptr<float>(), *steps[i].const_data_ptr<float>()};
  };
  std::vector<std::vector<Layer>> all(networks);
  for (int64_t n = 0; n < networks; ++n) {
    int64_t inputs = states.size(2);
    for (int64_t d = 0; d < depth; ++d) {
      const int64_t i = 2 * (n * depth + d);
      const auto &weight = parameters[i], &bias = parameters[i + 1];
      TORCH_CHECK(weight.dim() == 2 && bias.dim() == 1 && weight.size(1) == inputs && weight.size(0) == bias.size(0) &&
                      (d + 1 < depth || weight.size(0) == 1) && weight.numel() > 0,
                  "tanh_net_steps_: layer ", d, " of network ", n, " does not fit: ", weight.sizes(), ", ",
                  bias.sizes());
      all[n].push_back({parameter(i), parameter(i + 1), inputs, weight.size(0)});
      inputs = weight.size(0);
    }
    const auto same = [](const Layer& a, const Layer& b) { return a.outputs == b.outputs; };
    TORCH_CHECK(depth > 1 && std::equal(all[n].begin(), all[n].end(), all[0].begin(), same),
                "tanh_net_steps_: networks must have a hidden layer, and all the same shape");
  }
  const int64_t n = states.size(0), rows = states.size(1), inputs = states.size(2);
  auto losses = at::empty({n, networks}, states.options());
  if (losses.numel() == 0 || rows == 0) return losses.zero_();
  const auto x = states.contiguous(), y = targets.contiguous();
  const auto adam_of = [&](const Parameter& p) { return Adam(rate, beta1, beta2, eps, p.step + 1); };
  Batch batch(all[0], rows);
  for (int64_t t = 0; t < n; ++t) {
    batch.take(x.const_data_ptr<float>() + t * rows * inputs, inputs);
    for (int64_t i = 0; i < networks; ++i)
      losses.mutable_data_ptr<float>()[t * networks + i] =
          step(all[i], batch, y.const_data_ptr<float>() + t * rows, adam_of);
  }
  for (const auto& taken : steps) *taken.mutable_data_ptr<float>() += static_cast<float>(n);
  return losses;
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("tanh_net_steps_", &tanh_net_steps_); }
