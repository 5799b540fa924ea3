// Adam steps of the flat world model (Eq. 2) on windows of truncated backpropagation through time, float32 on the CPU:
// GRU scan, feature network, output layer, their gradients and the optimiser's step of all windows of a batch in one
// call.
//
// Activations of a time step are kept transposed, a block (units, batch), as in turned.h. A block of the input of the
// output layer is [phi, h', z, onehot(a)], of which every other layer sees a part; the targets of a step are the z of the
// next. A window of the cpu preset (4 x 64 rows, 278,000 weights) is 0.43 billion operations; one by one, its 60 calls
// of ATen with autograd take more than twice the time of its products.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "turned.h"

namespace {

using psdrl::Floats;
using psdrl::Layer;
using psdrl::load;
using psdrl::padded;
using psdrl::store;

struct Net {
  std::vector<Layer> gru;  // from [z, a] and from h to 3 H gates r, u, n; empty: h stays zero
  std::vector<Layer> features;
  Layer output;
  bool bends, with_inputs;  // the last feature layer has tanh; the output layer sees [h', z, a] too
  int64_t latent, hidden, actions, units;  // Z, H, A, U
  int64_t seen() const { return hidden + latent + actions; }
  int64_t block_rows() const { return units + seen(); }
};

// GRU after its products: gates of one step, units `begin` to `end`. r, u and n take the place of the input's part.
struct Gates {
  float* in;           // (3H, width)
  const float *of_h, *h;  // (3H, width), (H, width)
  float* next;         // (H, width)
  int64_t hidden, width;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const int64_t gate = hidden * width;
    for (int64_t i = begin * width; i < end * width; i += Set::kLanes) {
      const Floats<Set> r = psdrl::sigmoid_of<Set>(load<Set>(in + i) + load<Set>(of_h + i)),
                        u = psdrl::sigmoid_of<Set>(load<Set>(in + gate + i) + load<Set>(of_h + gate + i)),
                        n = psdrl::tanh_of<Set>(load<Set>(in + 2 * gate + i) + r * load<Set>(of_h + 2 * gate + i));
      store<Set>(in + i, r);
      store<Set>(in + gate + i, u);
      store<Set>(in + 2 * gate + i, n);
      store<Set>(next + i, n + u * (load<Set>(h + i) - n));
    }
  }
};

// Its gradient: from dh to the gates' sums of the input, `in`, and of h, `of_h` (in whose last third h's part of n lies),
// and to what goes on to the step before, dh u.
struct GatesBackward {
  float *in, *of_h;
  const float *h, *dh;
  float* carry;
  int64_t hidden, width;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const int64_t gate = hidden * width;
    for (int64_t i = begin * width; i < end * width; i += Set::kLanes) {
      const Floats<Set> r = load<Set>(in + i), u = load<Set>(in + gate + i), n = load<Set>(in + 2 * gate + i),
                        d = load<Set>(dh + i), of_n = load<Set>(of_h + 2 * gate + i);
      const Floats<Set> dn = d * (1.0f - u) * (1.0f - n * n), du = d * (load<Set>(h + i) - n) * u * (1.0f - u),
                        dr = dn * of_n * r * (1.0f - r);
      store<Set>(in + i, dr);
      store<Set>(in + gate + i, du);
      store<Set>(in + 2 * gate + i, dn);
      store<Set>(of_h + i, dr);
      store<Set>(of_h + gate + i, du);
      store<Set>(of_h + 2 * gate + i, dn * r);
      store<Set>(carry + i, d * u);
    }
  }
};

// y (inputs, width) += W^T delta, inputs `begin` to `end` of the layer.
struct BackwardInto {
  const Layer& l;
  const float* delta;
  float* y;
  int64_t width;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    float* out = y;
    const int64_t w = width;
    psdrl::product_of<Set, float>({l.weight.value, 1, l.inputs}, {delta, w}, l.outputs, w, begin, end,
                                  [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
                                    store<Set>(out + i * w + j, load<Set>(out + i * w + j) + v);
                                  });
  }
};

// The output layer of one step: errors, their squares (outputs, kWidest) added up, and the gradient of the loss with
// respect to the outputs `begin` to `end`.
struct Errors {
  const Layer& l;
  const float *x, *following, *rewards, *share;  // (inputs, width), (Z, width), (width), (width)
  float reward_weight;
  float *delta, *squares;
  int64_t width;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const int64_t w = width, latent = l.outputs - 1;
    const float *bias = l.bias.value, *z = following, *r = rewards, *s = share;
    const float of_reward = reward_weight;
    float *out = delta, *sums = squares;
    psdrl::product_of<Set, float>(
        {l.weight.value, l.inputs, 1}, {x, w}, l.inputs, w, begin, end,
        [=](int64_t i, int64_t j, Floats<Set> v) __attribute__((always_inline)) {
          const Floats<Set> error = v + bias[i] - load<Set>(i < latent ? z + i * w + j : r + j);
          const Floats<Set> slope = (i < latent ? 1.0f : of_reward) * load<Set>(s + j) * error;
          store<Set>(out + i * w + j, 2.0f * slope);
          store<Set>(sums + i * psdrl::kWidest, load<Set>(sums + i * psdrl::kWidest) + slope * error);
        });
  }
};

// From the output layer back to phi, through its tanh if it has one, and to h': inputs `begin` to `end`.
struct OutputBackward {
  const Layer& l;
  const float *x, *delta;
  float* before;
  int64_t width, units;
  bool bends;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    const int64_t middle = std::min(std::max(bends ? units : 0, begin), end);
    psdrl::Backward{l, x, delta, before, width, true}.template operator()<Set>(begin, middle);
    psdrl::Backward{l, x, delta, before, width, false}.template operator()<Set>(middle, end);
  }
};

// All numbers of a window of at most `steps` steps.
struct Window {
  const Net& net;
  int64_t steps, batch, width, stride;  // width: batch padded; stride: of the rows
  std::vector<float> blocks;            // (steps + 1, [phi, h', z, a], width)
  std::vector<float> rows, before_rows;  // the same and h by row: (steps batch, stride), (steps batch, padded H)
  std::vector<float> start, in, of_h;   // h_0 (H, width); gates (steps, 3H, width)
  std::vector<std::vector<float>> inner, inner_rows;  // of the feature layers but the last
  std::vector<float> errors, back, delta, next;       // gradients: of outputs, of [phi, h'], of inner layers
  std::vector<float> carry, rewards, share, squares, sums;

  Window(const Net& n, int64_t window, int64_t size)
      : net(n), steps(window), batch(size), width(padded(size)), stride(padded(n.block_rows())),
        blocks((window + 1) * n.block_rows() * width), rows(window * size * stride + psdrl::kWidest),
        before_rows(window * size * padded(n.hidden)), start(n.hidden * width), in(window * 3 * n.hidden * width),
        of_h(in.size()), errors(window * n.output.outputs * width), back(window * (n.units + n.hidden) * width),
        carry(n.hidden * width), rewards(window * width), share(window * width),
        squares(n.output.outputs * psdrl::kWidest) {
    int64_t widest = std::max(n.output.outputs, 3 * n.hidden);
    for (const Layer& l : n.features) widest = std::max(widest, l.outputs);
    for (size_t i = 0; i + 1 < n.features.size(); ++i) {
      inner.emplace_back(window * n.features[i].outputs * width);
      inner_rows.emplace_back(window * size * padded(n.features[i].outputs));
    }
    delta.resize(window * widest * width);
    next.resize(delta.size());
    sums.resize(padded(widest));
  }

  float* block(int64_t t) { return blocks.data() + t * net.block_rows() * width; }
  float* h_of(int64_t t) { return block(t) + net.units * width; }  // h' of step t
  float* z_of(int64_t t) { return h_of(t) + net.hidden * width; }
  const float* h_before(int64_t t) { return t ? h_of(t - 1) : start.data(); }

  // Latent states (l + 1, B, Z), actions and rewards (l, B), weights (l, B) or none, of which the mean is taken.
  void take(const float* latents, const int64_t* actions, const float* reward, const float* weights, int64_t length,
            float scale) {
    const int64_t latent = net.latent;
    for (int64_t t = 0; t <= length; ++t)
      psdrl::transpose(latents + t * batch * latent, batch, latent, latent, z_of(t), width);
    for (int64_t t = 0; t < length; ++t) {
      float* onehot = z_of(t) + latent * width;
      std::fill_n(onehot, net.actions * width, 0.0f);
      for (int64_t b = 0; b < batch; ++b) {
        const int64_t n = t * batch + b;
        onehot[actions[n] * width + b] = 1.0f;
        float* row = rows.data() + n * stride + net.units + net.hidden;
        std::copy_n(latents + n * latent, latent, row);
        std::fill_n(row + latent, net.actions, 0.0f);
        row[latent + actions[n]] = 1.0f;
        rewards[t * width + b] = reward[n];
        share[t * width + b] = scale * (weights ? weights[n] : 1.0f);
      }
    }
  }

  void forward(int64_t length) {
    const int64_t hidden = net.hidden, gates = 3 * hidden * width;
    for (int64_t t = 0; t < length; ++t) {
      if (!net.gru.empty()) {
        const Layer &of_input = net.gru[0], &of_state = net.gru[1];
        psdrl::shared_out(psdrl::Forward{of_input, z_of(t), in.data() + t * gates, width, false}, 3 * hidden,
                          of_input.inputs * width);
        psdrl::shared_out(psdrl::Forward{of_state, h_before(t), of_h.data() + t * gates, width, false}, 3 * hidden,
                          of_state.inputs * width);
        psdrl::run(Gates{in.data() + t * gates, of_h.data() + t * gates, h_before(t), h_of(t), hidden, width},
                   int64_t{0}, hidden);
      }
      const float* x = h_of(t);
      for (size_t i = 0; i < net.features.size(); ++i) {
        const Layer& l = net.features[i];
        const bool last = i + 1 == net.features.size();
        float* y = last ? block(t) : inner[i].data() + t * l.outputs * width;
        psdrl::shared_out(psdrl::Forward{l, x, y, width, !last || net.bends}, l.outputs, l.inputs * width);
        x = y;
      }
      psdrl::shared_out(Errors{net.output, block(t), z_of(t + 1), rewards.data() + t * width, share.data() + t * width,
                               reward_weight, errors.data() + t * net.output.outputs * width, squares.data(), width},
                        net.output.outputs, net.output.inputs * width);
    }
  }

  // What the weights' gradients need row by row.
  void turn(int64_t length) {
    for (int64_t t = 0; t < length; ++t) {
      float* row = rows.data() + t * batch * stride;
      psdrl::transpose(block(t), net.units + net.hidden, batch, width, row, stride);
      psdrl::transpose(h_before(t), net.hidden, batch, width, before_rows.data() + t * batch * padded(net.hidden),
                       padded(net.hidden));
      for (size_t i = 0; i < inner.size(); ++i) {
        const int64_t units = net.features[i].outputs;
        psdrl::transpose(inner[i].data() + t * units * width, units, batch, width,
                         inner_rows[i].data() + t * batch * padded(units), padded(units));
      }
    }
  }

  void descend(Layer& l, const float* x, int64_t x_stride, const float* gradient, int64_t jump, int64_t length,
               const psdrl::Rates& rates) {
    const psdrl::Adam of_weight = rates.at(l.weight.step + 1), of_bias = rates.at(l.bias.step + 1);
    psdrl::shared_out(psdrl::Step{l, x, gradient, x_stride, batch, width, length, jump, sums.data(), of_weight, of_bias},
                      l.outputs, l.inputs * batch * length);
    l.stepped();
  }

  void backward(Net& trained, int64_t length, const psdrl::Rates& rates) {
    const int64_t units = net.units, hidden = net.hidden, outputs = net.output.outputs;
    const int64_t back_jump = (units + hidden) * width, reached = net.with_inputs ? units + hidden : units;
    std::fill(back.begin(), back.end(), 0.0f);
    for (int64_t t = 0; t < length; ++t)
      psdrl::shared_out(OutputBackward{net.output, block(t), errors.data() + t * outputs * width,
                                       back.data() + t * back_jump, width, units, net.bends},
                        reached, outputs * width);
    descend(trained.output, rows.data(), stride, errors.data(), outputs * width, length, rates);
    const float* gradient = back.data();
    int64_t jump = back_jump;
    for (size_t i = net.features.size(); i-- > 0;) {
      Layer& l = trained.features[i];
      if (i > 0) {
        const int64_t inputs = l.inputs * width;
        for (int64_t t = 0; t < length; ++t)
          psdrl::shared_out(psdrl::Backward{l, inner[i - 1].data() + t * inputs, gradient + t * jump,
                                            next.data() + t * inputs, width},
                            l.inputs, l.outputs * width);
        descend(l, inner_rows[i - 1].data(), padded(l.inputs), gradient, jump, length, rates);
        std::swap(delta, next);
        gradient = delta.data();
        jump = inputs;
      } else {
        if (!net.gru.empty())
          for (int64_t t = 0; t < length; ++t)
            psdrl::shared_out(BackwardInto{l, gradient + t * jump, back.data() + t * back_jump + units * width, width},
                              hidden, l.outputs * width);
        descend(l, rows.data() + units, stride, gradient, jump, length, rates);
      }
    }
    if (!net.gru.empty()) recur(trained, length, back_jump, rates);
  }

  // Back through time, and the GRU's own step.
  void recur(Net& trained, int64_t length, int64_t back_jump, const psdrl::Rates& rates) {
    const int64_t hidden = net.hidden, gates = 3 * hidden * width;
    Layer &of_input = trained.gru[0], &of_state = trained.gru[1];
    for (int64_t t = length; t-- > 0;) {
      float *dh = back.data() + t * back_jump + net.units * width, *to_h = of_h.data() + t * gates;
      if (t + 1 < length)
        for (int64_t i = 0; i < hidden * width; ++i) dh[i] += carry[i];
      psdrl::run(GatesBackward{in.data() + t * gates, to_h, h_before(t), dh, carry.data(), hidden, width}, int64_t{0},
                 hidden);
      if (t > 0) psdrl::shared_out(BackwardInto{of_state, to_h, carry.data(), width}, hidden, 3 * hidden * width);
    }
    // Columns beyond the batch have errors of zero, and so gradients of zero.
    descend(of_input, rows.data() + net.units + hidden, stride, in.data(), gates, length, rates);
    descend(of_state, before_rows.data(), padded(hidden), of_h.data(), gates, length, rates);
  }

  float reward_weight = 1;

  // Steps on one window; its loss. h goes on to the next one.
  float learn(Net& trained, int64_t length, const psdrl::Rates& rates) {
    std::fill(squares.begin(), squares.end(), 0.0f);
    forward(length);
    turn(length);
    backward(trained, length, rates);
    std::copy_n(h_of(length - 1), net.hidden * width, start.data());
    double loss = 0;
    for (const float x : squares) loss += x;
    return static_cast<float>(loss);
  }
};

Net net_of(const psdrl::Parameters& all, int64_t latent, int64_t hidden, bool recurrent, bool bends,
           bool with_inputs) {
  const auto& values = all.values;
  const auto layer = [&](size_t weight, size_t bias) {
    const auto &w = values[weight], &b = values[bias];
    TORCH_CHECK(w.dim() == 2 && b.dim() == 1 && w.is_contiguous() && w.size(0) == b.size(0) && w.numel() > 0,
                "window_steps_: a layer does not fit: ", w.sizes(), ", ", b.sizes());
    return Layer{all.at(weight), all.at(bias), w.size(1), w.size(0)};
  };
  const size_t first = recurrent ? 4 : 0;
  TORCH_CHECK(values.size() >= first + 4 && values.size() % 2 == 0,
              "window_steps_: the GRU's four parameters, then weight and bias of each layer");
  Net net = {{}, {}, layer(values.size() - 2, values.size() - 1), bends, with_inputs, latent, hidden, 0, 0};
  if (recurrent) net.gru = {layer(0, 2), layer(1, 3)};
  for (size_t i = first; i + 2 < values.size(); i += 2) net.features.push_back(layer(i, i + 1));
  net.units = net.features.back().outputs;
  net.actions = net.features.front().inputs - hidden - latent;
  bool fits = net.actions > 0 && net.output.outputs == latent + 1 &&
              net.output.inputs == net.units + (with_inputs ? net.seen() : 0);
  for (size_t i = 1; i < net.features.size(); ++i) fits &= net.features[i].inputs == net.features[i - 1].outputs;
  for (const Layer& l : net.gru) fits &= l.outputs == 3 * hidden;
  if (recurrent) fits &= net.gru[0].inputs == latent + net.actions && net.gru[1].inputs == hidden;
  TORCH_CHECK(fits, "window_steps_: the layers do not fit each other, Z = ", latent, " and H = ", hidden);
  return net;
}

at::Tensor window_steps_(const at::Tensor& latents, const at::Tensor& actions, const at::Tensor& rewards,
                         const std::optional<at::Tensor>& weights, at::TensorList parameters, at::TensorList averages,
                         at::TensorList squares, at::TensorList steps, int64_t hidden, bool recurrent, bool bends,
                         bool with_inputs, int64_t window, const at::Tensor& reward_weight, bool mean, double rate, double beta1,
                         double beta2, double eps) {
  TORCH_CHECK(latents.dim() == 3 && actions.dim() == 2 && latents.size(0) == actions.size(0) + 1 &&
                  latents.size(1) == actions.size(1) && rewards.sizes() == actions.sizes() &&
                  (!weights || weights->sizes() == actions.sizes()),
              "window_steps_: latent states (L + 1, B, Z), actions, rewards and weights (L, B), got ", latents.sizes(),
              ", ", actions.sizes(), ", ", rewards.sizes());
  TORCH_CHECK(latents.scalar_type() == at::kFloat && actions.scalar_type() == at::kLong &&
                  rewards.scalar_type() == at::kFloat && (!weights || weights->scalar_type() == at::kFloat),
              "window_steps_: latent states, rewards and weights must be float32, actions int64");
  const psdrl::Parameters all = {parameters, averages, squares, steps};
  all.check("window_steps_");
  const int64_t length = actions.size(0), batch = actions.size(1), latent = latents.size(2);
  TORCH_CHECK(reward_weight.numel() == 1 && reward_weight.scalar_type() == at::kFloat,
              "window_steps_: the reward's weight must be one float32");
  TORCH_CHECK(window > 0 && hidden > 0 && latent > 0, "window_steps_: window, H and Z must be positive");
  Net net = net_of(all, latent, hidden, recurrent, bends, with_inputs);
  const int64_t count = (length + window - 1) / window;
  auto losses = at::empty({count}, latents.options());
  if (count == 0 || batch == 0) return losses.zero_();
  const auto z = latents.contiguous(), a = actions.contiguous(), r = rewards.contiguous(),
             w = weights ? weights->contiguous() : at::Tensor();
  const int64_t* chosen = a.const_data_ptr<int64_t>();
  TORCH_CHECK(std::all_of(chosen, chosen + a.numel(), [&](int64_t i) { return 0 <= i && i < net.actions; }),
              "window_steps_: actions must be in [0, ", net.actions, ")");
  Window numbers(net, std::min(window, length), batch);
  numbers.reward_weight = *reward_weight.const_data_ptr<float>();
  const psdrl::Rates rates = {rate, beta1, beta2, eps};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = i * window, steps_now = std::min(window, length - first);
    const double scale = 1.0 / static_cast<double>(steps_now * batch * (mean ? latent + 1 : 1));
    numbers.take(z.const_data_ptr<float>() + first * batch * latent, chosen + first * batch,
                 r.const_data_ptr<float>() + first * batch,
                 weights ? w.const_data_ptr<float>() + first * batch : nullptr, steps_now, static_cast<float>(scale));
    losses.mutable_data_ptr<float>()[i] = numbers.learn(net, steps_now, rates);
  }
  all.count(count);
  return losses;
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("window_steps_", &window_steps_); }
