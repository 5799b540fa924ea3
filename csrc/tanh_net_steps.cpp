// Adam steps of networks of tanh layers with one linear output on squared errors, float32 on the CPU: for each of n
// batches the forward pass, the gradients of all layers and the optimiser's step, for each of several networks.
//
// A step of the cpu preset's value network (64 rows, 358, 256, 256, 1) is five products of some 30 us: called one by
// one, with bias, tanh and optimiser between them, they reach a third of the CPU's speed. Here activations are kept
// transposed (units, rows), so one kernel serves all products (products.h): the weights are its left side as they are,
// forwards by rows and backwards by columns; a gradient is used up in registers by Adam and never stored. A sum's order
// does not depend on the number of threads.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "turned.h"

namespace {

using psdrl::Adam;
using psdrl::Floats;
using psdrl::Layer;
using psdrl::load;
using psdrl::padded;
using psdrl::store;

// What the products of a step read and write: rows of activations lie side by side, `width` to a unit.
struct Sizes {
  int64_t rows, width;  // of the batch, and padded
};

// The output layer: values, loss, the gradient with respect to its input x (inputs, width), its own step.
struct Output {
  const Layer& l;
  const float *x, *targets, *weights;  // targets and weights (rows,); no weights: 1
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
      const float e = b < s.rows ? error[b] - targets[b] : 0.0f, weight = weights && b < s.rows ? weights[b] : 1.0f;
      squares += static_cast<double>(weight) * e * e;
      error[b] = scale * weight * e;
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
      psdrl::adam<Set>(of_weight, l.weight, i, load<Set>(gradient + i), l.inputs - i);
    psdrl::adam<Set>(of_bias, l.bias, 0, psdrl::all<Set>(static_cast<float>(sum)), 1);
  }
};

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
    psdrl::transpose(plain.data(), s.rows, inputs, stride, turned.data(), s.width);
  }
};

// One network's step on a batch; its loss.
float step(std::vector<Layer>& layers, Batch& b, const float* targets, const float* weights,
           const psdrl::Rates& rates) {
  const size_t last = layers.size() - 1;
  const float* x = b.turned.data();
  for (size_t i = 0; i < last; ++i) {
    psdrl::shared_out(psdrl::Forward{layers[i], x, b.hidden[i].data(), b.s.width}, layers[i].outputs,
                      layers[i].inputs * b.s.width);
    x = b.hidden[i].data();
  }
  float loss = 0;
  const Adam of_output = rates.at(layers[last].weight.step + 1), of_output_bias = rates.at(layers[last].bias.step + 1);
  psdrl::run(Output{layers[last], x, targets, weights, b.error.data(), b.delta.data(), b.gradient.data(), &loss, b.s,
                    of_output, of_output_bias});
  for (size_t i = last; i-- > 0;) {
    const Layer& l = layers[i];
    const Adam of_weight = rates.at(l.weight.step + 1), of_bias = rates.at(l.bias.step + 1);
    if (i > 0) {
      const Layer& below = layers[i - 1];
      psdrl::shared_out(psdrl::Backward{l, b.hidden[i - 1].data(), b.delta.data(), b.before.data(), b.s.width},
                        l.inputs, l.outputs * b.s.width);
      psdrl::transpose(b.hidden[i - 1].data(), below.outputs, b.s.rows, b.s.width, b.by_row[i - 1].data(),
                       padded(below.outputs));
    }
    const float* rows = i > 0 ? b.by_row[i - 1].data() : b.plain.data();
    const int64_t stride = i > 0 ? padded(l.inputs) : b.stride;
    psdrl::shared_out(psdrl::Step{l, rows, b.delta.data(), stride, b.s.rows, b.s.width, 1, 0, b.gradient.data(),
                                  of_weight, of_bias},
                      l.outputs, l.inputs * b.s.rows);
    std::swap(b.delta, b.before);
  }
  for (Layer& l : layers) l.stepped();
  return loss;
}

at::Tensor tanh_net_steps_(const at::Tensor& states, const at::Tensor& targets,
                           const std::optional<at::Tensor>& weights, at::TensorList parameters, at::TensorList averages,
                           at::TensorList squares, at::TensorList steps, int64_t networks, double rate, double beta1,
                           double beta2, double eps) {
  const psdrl::Parameters all_parameters = {parameters, averages, squares, steps};
  TORCH_CHECK(states.dim() == 3 && targets.dim() == 2 && targets.sizes() == states.sizes().slice(0, 2) &&
                  states.scalar_type() == at::kFloat && targets.scalar_type() == at::kFloat,
              "tanh_net_steps_: states (n, B, D) and targets (n, B) must be float32, got ", states.scalar_type(), " ",
              states.sizes(), " and ", targets.scalar_type(), " ", targets.sizes());
  TORCH_CHECK(!weights || (weights->sizes() == targets.sizes() && weights->scalar_type() == at::kFloat),
              "tanh_net_steps_: weights must be float32 (n, B)");
  const int64_t count = static_cast<int64_t>(parameters.size());
  TORCH_CHECK(networks > 0 && count > 0 && count % (2 * networks) == 0,
              "tanh_net_steps_: a weight and a bias for each layer of each network");
  all_parameters.check("tanh_net_steps_");
  const int64_t depth = count / (2 * networks);
  std::vector<std::vector<Layer>> all(networks);
  for (int64_t n = 0; n < networks; ++n) {
    int64_t inputs = states.size(2);
    for (int64_t d = 0; d < depth; ++d) {
      const int64_t i = 2 * (n * depth + d);
      const auto &weight = parameters[i], &bias = parameters[i + 1];
      TORCH_CHECK(weight.dim() == 2 && bias.dim() == 1 && weight.size(1) == inputs && weight.size(0) == bias.size(0) &&
                      (d + 1 < depth || weight.size(0) == 1) && weight.numel() > 0 && weight.is_contiguous(),
                  "tanh_net_steps_: layer ", d, " of network ", n, " does not fit: ", weight.sizes(), ", ",
                  bias.sizes());
      all[n].push_back({all_parameters.at(i), all_parameters.at(i + 1), inputs, weight.size(0)});
      inputs = weight.size(0);
    }
    const auto same = [](const Layer& a, const Layer& b) { return a.outputs == b.outputs; };
    TORCH_CHECK(depth > 1 && std::equal(all[n].begin(), all[n].end(), all[0].begin(), same),
                "tanh_net_steps_: networks must have a hidden layer, and all the same shape");
  }
  const int64_t n = states.size(0), rows = states.size(1), inputs = states.size(2);
  auto losses = at::empty({n, networks}, states.options());
  if (losses.numel() == 0 || rows == 0) return losses.zero_();
  const auto x = states.contiguous(), y = targets.contiguous(), w = weights ? weights->contiguous() : at::Tensor();
  const float* given = weights ? w.const_data_ptr<float>() : nullptr;
  const psdrl::Rates rates = {rate, beta1, beta2, eps};
  Batch batch(all[0], rows);
  for (int64_t t = 0; t < n; ++t) {
    batch.take(x.const_data_ptr<float>() + t * rows * inputs, inputs);
    for (int64_t i = 0; i < networks; ++i)
      losses.mutable_data_ptr<float>()[t * networks + i] =
          step(all[i], batch, y.const_data_ptr<float>() + t * rows, given ? given + t * rows : nullptr, rates);
  }
  all_parameters.count(n);
  return losses;
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("tanh_net_steps_", &tanh_net_steps_); }
