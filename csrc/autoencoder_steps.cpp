// Adam steps of a convolutional autoencoder (Eq. 1), float32 on the CPU: pixels, forward pass, gradients and the
// optimiser's step of n batches in one call.
//
// Frames are taken a vector at a time, one frame to a lane: a convolution is then sums of numbers of the weights times
// vectors, for neighbouring places and several channels in registers at once, and all activations of a vector of frames
// fit into the second-level cache. The first kernel tiles a frame, so the pixels of a tile are the channels of a place,
// and the first and the last layer are convolutions of 1 x 1. A layer of the encoder and one of the decoder are the
// same three functions: `down` from the larger picture to the smaller, `up` back, and the gradient of the weights.
// A step on 40 frames of the cpu preset is 74 million operations, of which ATen does 11 million in a millisecond.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pictures.h"

namespace {

using namespace psdrl::pictures;
using psdrl::Floats;
using psdrl::load;
using psdrl::store;

struct Net {
  std::vector<Layer> encoder, decoder;  // the encoder's from the frame on; the decoder's as well, so in reverse order
  int64_t planes, side, patch;
  const float *mean;  // (planes, side, side)
  float contrast;
  float scale;  // of the squared errors in the loss
  float quotient[256];  // x / 255, by division as the oracle has it

  int64_t pixels() const { return planes * side * side; }
  // Where all gradients of a vector of frames lie: of each layer the weights', then the bias's.
  int64_t gradients() const {
    int64_t total = 0;
    for (const auto* layers : {&encoder, &decoder})
      for (const Layer& l : *layers) total += l.size() + l.bias_size;
    return total;
  }
};

// What a vector of frames needs on its way, kept by each thread: fresh memory for every vector would cost more than the
// arithmetic.
struct Scratch {
  // seen[i]: what layer i of the encoder sees, made[i]: what layer i of the decoder makes; the last seen is z.
  std::vector<std::vector<float>> seen, made;
  std::vector<float> sums, delta, next;

  Scratch(const Net& net, int64_t lanes) {
    int64_t widest = 0, weights_most = 0;
    for (const Layer& l : net.encoder) seen.emplace_back(l.large * l.large * l.wide * lanes);
    seen.emplace_back(net.encoder.back().small * net.encoder.back().small * net.encoder.back().deep * lanes);
    for (const Layer& l : net.decoder) {
      made.emplace_back(l.large * l.large * l.wide * lanes);
      widest = std::max({widest, l.large * l.large * l.wide, l.small * l.small * l.deep});
      weights_most = std::max(weights_most, l.size());  // the encoder's are as large
    }
    sums.resize(weights_most * lanes);
    delta.resize(widest * lanes);
    next.resize(widest * lanes);
  }
};

// A vector of frames through the net and back: their gradients and squared errors.
struct Group {
  const Net& net;
  Scratch& scratch;
  const uint8_t* frames;  // (count, planes, side, side)
  int64_t count;
  float* gradient;
  double* loss;

  template <class Set>
  PSDRL_INLINE void pixels(float* picture) const {
    constexpr int kLanes = Set::kLanes;
    const int64_t side = net.side, patch = net.patch, across = side / patch, channels = patch * patch * net.planes;
    if (count < kLanes) std::fill_n(picture, net.pixels() * kLanes, 0.0f);
    for (int64_t f = 0; f < count; ++f) {
      const uint8_t* frame = frames + f * net.pixels();
      const float* mean = net.mean;
      for (int64_t plane = 0; plane < net.planes; ++plane)
        for (int64_t y = 0; y < side; ++y)
          for (int64_t x = 0; x < side; x += patch, frame += patch, mean += patch) {
            const int64_t channel = y % patch * patch * net.planes + plane;
            float* to = picture + ((y / patch * across + x / patch) * channels + channel) * kLanes + f;
            for (int64_t i = 0; i < patch; ++i)
              to[i * net.planes * kLanes] = (net.quotient[frame[i]] - mean[i]) * net.contrast;
          }
    }
  }

  template <class Set>
  PSDRL_INLINE void operator()() const {
    constexpr int kLanes = Set::kLanes;
    const auto& encoder = net.encoder;
    const auto& decoder = net.decoder;
    const size_t depth = encoder.size();
    auto &[seen, made, sums, delta, next] = scratch;
    pixels<Set>(seen[0].data());
    for (size_t i = 0; i < depth; ++i) {
      float* y = seen[i + 1].data();
      const float* bias = encoder[i].of_bias.value;
      down<Set>(encoder[i], seen[i].data(), [=](int64_t at, int64_t o, Floats<Set> v) __attribute__((always_inline)) {
        const Floats<Set> sum = v + bias[o];
        store<Set>(y + at * kLanes, sum > 0.0f ? sum : Floats<Set>{});
      });
    }
    for (size_t i = depth; i-- > 0;) {
      const Layer& l = decoder[i];
      float* y = made[i].data();
      const float* bias = l.of_bias.value;
      const float* x = i + 1 < depth ? made[i + 1].data() : seen[depth].data();
      const int64_t channels = l.bias_size;
      if (i > 0) {
        up<Set>(l, x, [=](int64_t at, int64_t c, Floats<Set> v) __attribute__((always_inline)) {
          const Floats<Set> sum = v + bias[c];
          store<Set>(y + at * kLanes, sum > 0.0f ? sum : Floats<Set>{});
        });
      } else {
        up<Set>(l, x, [=](int64_t at, int64_t c, Floats<Set> v) __attribute__((always_inline)) {
          store<Set>(y + at * kLanes, v + bias[c % channels]);
        });
      }
    }
    // The last picture becomes the gradient of its pixels; lanes without a frame have none.
    Floats<Set> present = {};
    for (int64_t f = 0; f < count; ++f) present[f] = 1.0f;
    double total = 0;
    for (int64_t at = 0; at < net.pixels();) {
      Floats<Set> squares = {};  // of a stretch of pixels, in float32
      for (const int64_t end = std::min(net.pixels(), at + 256); at < end; ++at) {
        const Floats<Set> error =
            present * (load<Set>(made[0].data() + at * kLanes) - load<Set>(seen[0].data() + at * kLanes));
        squares += error * error;
        store<Set>(made[0].data() + at * kLanes, 2.0f * net.scale * error);
      }
      total += psdrl::sum<Set>(squares);
    }
    *loss = total * net.scale;
    float* out = gradient + net.gradients();
    const float* above = made[0].data();
    for (size_t i = 0; i < depth; ++i) {  // back through the decoder
      const Layer& l = decoder[i];
      const float* x = i + 1 < depth ? made[i + 1].data() : seen[depth].data();
      out -= l.size() + l.bias_size;
      weights<Set>(l, x, above, sums.data(), out);
      bias_gradient<Set>(above, l.large * l.large * l.wide, l.bias_size, out + l.size());
      float* to = next.data();
      down<Set>(l, above, [=](int64_t at, int64_t, Floats<Set> v) __attribute__((always_inline)) {
        store<Set>(to + at * kLanes, load<Set>(x + at * kLanes) > 0.0f ? v : Floats<Set>{});
      });
      std::swap(delta, next);
      above = delta.data();
    }
    for (size_t i = depth; i-- > 0;) {  // and through the encoder
      const Layer& l = encoder[i];
      const float* x = seen[i].data();
      out -= l.size() + l.bias_size;
      weights<Set>(l, above, x, sums.data(), out);
      bias_gradient<Set>(above, l.small * l.small * l.deep, l.deep, out + l.size());
      if (i == 0) break;
      float* to = next.data();
      up<Set>(l, above, [=](int64_t at, int64_t, Floats<Set> v) __attribute__((always_inline)) {
        store<Set>(to + at * kLanes, load<Set>(x + at * kLanes) > 0.0f ? v : Floats<Set>{});
      });
      std::swap(delta, next);
      above = delta.data();
    }
  }
};

struct AdamAll {
  const psdrl::Adam& a;
  const psdrl::Parameter& p;
  const float* gradient;  // in the parameter's own layout
  int64_t count;
  template <class Set>
  PSDRL_INLINE void operator()() const {
    for (int64_t i = 0; i < count; i += Set::kLanes) {
      const int64_t rest = count - i;
      psdrl::adam<Set>(a, p, i, rest >= Set::kLanes ? load<Set>(gradient + i) : load<Set>(gradient + i, rest), rest);
    }
  }
};

void pack(Layer& l) {
  for (int64_t i = 0; i < l.size(); ++i) l.packed[i] = l.of_weight.value[l.places[i]];
}

// `gradient`: the weights' as packed, then the bias's.
void descend(Layer& l, const float* gradient, const psdrl::Rates& rates) {
  std::vector<float> placed(l.size());
  for (int64_t i = 0; i < l.size(); ++i) placed[l.places[i]] = gradient[i];
  const psdrl::Adam of_weight = rates.at(++l.of_weight.step), of_bias = rates.at(++l.of_bias.step);
  psdrl::run(AdamAll{of_weight, l.of_weight, placed.data(), l.size()});
  psdrl::run(AdamAll{of_bias, l.of_bias, gradient + l.size(), l.bias_size});
  pack(l);
}

int64_t lanes() {
  return psdrl::isa() == psdrl::Isa::kAvx512 ? psdrl::Avx512::kLanes
         : psdrl::isa() == psdrl::Isa::kAvx2 ? psdrl::Avx2::kLanes
                                             : psdrl::Portable::kLanes;
}

// The encoder's layers from the frame on, or the decoder's: weights (deep, wide, k, k), the first tiling the frame.
std::vector<Layer> layers_of(const psdrl::Parameters& all, size_t first, at::IntArrayRef strides, int64_t planes,
                             int64_t side, bool reversed) {
  std::vector<Layer> layers;
  const size_t depth = strides.size();
  int64_t wide = planes;
  for (size_t i = 0; i < depth; ++i) {
    const size_t at = first + 2 * (reversed ? depth - 1 - i : i);
    const auto &weight = all.values[at], &bias = all.values[at + 1];
    TORCH_CHECK(weight.dim() == 4 && weight.size(2) == weight.size(3) && weight.size(1) == wide && bias.dim() == 1 &&
                    bias.size(0) == weight.size(reversed ? 1 : 0) && strides[i] > 0,
                "autoencoder_steps_: layer ", i, " of the ", reversed ? "decoder" : "encoder", " does not fit: ",
                weight.sizes(), ", ", bias.sizes());
    const int64_t kernel = weight.size(2), deep = weight.size(0);
    const bool patch = i == 0;
    TORCH_CHECK(!patch || (kernel == strides[0] && side % kernel == 0),
                "autoencoder_steps_: the first kernel must tile the frame");
    const int64_t large = patch ? side / kernel : layers.back().small;
    Layer l = {patch ? planes * kernel * kernel : wide, deep, patch ? 1 : kernel, patch ? 1 : strides[i], large, 0,
               weight, all.at(at), all.at(at + 1), {}, {}, bias.size(0)};
    TORCH_CHECK(large >= l.kernel && (large - l.kernel) % l.stride == 0, "autoencoder_steps_: layer ", i,
                " does not fit its picture of ", large, " places");
    l.small = (large - l.kernel) / l.stride + 1;
    const auto s = weight.strides();
    for (int64_t o = 0; o < deep; ++o)
      for (int64_t y = 0; y < kernel; ++y)
        for (int64_t x = 0; x < kernel; ++x)
          for (int64_t c = 0; c < wide; ++c) l.places.push_back(o * s[0] + c * s[1] + y * s[2] + x * s[3]);
    l.packed.resize(l.size());
    pack(l);
    layers.push_back(std::move(l));
    wide = deep;
  }
  return layers;
}

at::Tensor autoencoder_steps_(const at::Tensor& frames, const at::Tensor& mean, const at::Tensor& contrast,
                              at::TensorList parameters, at::TensorList averages, at::TensorList squares,
                              at::TensorList steps, at::IntArrayRef strides, bool mean_loss, double rate, double beta1,
                              double beta2, double eps) {
  TORCH_CHECK(frames.dim() == 5 && frames.size(3) == frames.size(4) && frames.scalar_type() == at::kByte,
              "autoencoder_steps_: frames must be uint8 (n, B, c, s, s), got ", frames.scalar_type(), " ",
              frames.sizes());
  const size_t depth = strides.size();
  TORCH_CHECK(depth > 0 && parameters.size() == 4 * depth,
              "autoencoder_steps_: weight and bias of each layer of the encoder, then of the decoder");
  const psdrl::Parameters all = {parameters, averages, squares, steps};
  all.check("autoencoder_steps_");
  const int64_t n = frames.size(0), batch = frames.size(1), planes = frames.size(2), side = frames.size(3);
  const auto m = mean.contiguous(), pictures = frames.contiguous();
  TORCH_CHECK(m.scalar_type() == at::kFloat && m.numel() == planes * side * side && contrast.numel() == 1 &&
                  contrast.scalar_type() == at::kFloat,
              "autoencoder_steps_: mean must be float32 with a number for each pixel, and contrast one number");
  auto losses = at::empty({n}, frames.options().dtype(at::kFloat));
  Net net = {layers_of(all, 0, strides, planes, side, false), layers_of(all, 2 * depth, strides, planes, side, true),
             planes, side, parameters[0].size(2), m.const_data_ptr<float>(), *contrast.const_data_ptr<float>(), 0, {}};
  for (size_t i = 0; i < depth; ++i) {
    const Layer &a = net.encoder[i], &b = net.decoder[i];
    TORCH_CHECK(a.wide == b.wide && a.deep == b.deep && a.kernel == b.kernel,
                "autoencoder_steps_: the decoder must mirror the encoder");
  }
  if (n == 0 || batch == 0) return losses.zero_();
  for (int i = 0; i < 256; ++i) net.quotient[i] = static_cast<float>(i) / 255.0f;
  net.scale = static_cast<float>(1.0 / static_cast<double>(batch * (mean_loss ? net.pixels() : 1)));
  const psdrl::Rates rates = {rate, beta1, beta2, eps};
  const int64_t wide = lanes(), groups = (batch + wide - 1) / wide, size = net.gradients();
  std::vector<float> gradients(groups * size);
  std::vector<double> parts(groups);
  std::vector<Scratch> scratch;  // of each thread
  for (int64_t i = 0; i < std::min<int64_t>(at::get_num_threads(), groups); ++i) scratch.emplace_back(net, wide);
  for (int64_t t = 0; t < n; ++t) {
    const uint8_t* now = pictures.const_data_ptr<uint8_t>() + t * batch * net.pixels();
    at::parallel_for(0, scratch.size(), 1, [&](int64_t first, int64_t last) {
      for (int64_t thread = first; thread < last; ++thread)
        for (int64_t g = thread; g < groups; g += static_cast<int64_t>(scratch.size()))
          psdrl::run(Group{net, scratch[thread], now + g * wide * net.pixels(), std::min(wide, batch - g * wide),
                           gradients.data() + g * size, &parts[g]});
    });
    for (int64_t g = 1; g < groups; ++g)  // in the same order for any number of threads
      for (int64_t i = 0; i < size; ++i) gradients[i] += gradients[g * size + i];
    const float* gradient = gradients.data();
    double loss = 0;
    for (const double part : parts) loss += part;
    losses.mutable_data_ptr<float>()[t] = static_cast<float>(loss);
    for (Layer& l : net.encoder) {
      descend(l, gradient, rates);
      gradient += l.size() + l.bias_size;
    }
    for (size_t i = depth; i-- > 0;) {
      descend(net.decoder[i], gradient, rates);
      gradient += net.decoder[i].size() + net.decoder[i].bias_size;
    }
  }
  all.count(n);
  return losses;
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("autoencoder_steps_", &autoencoder_steps_); }
