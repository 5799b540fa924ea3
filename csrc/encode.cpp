// The encoder on the CPU, frame by frame: uint8 pixels in, latent state out, every layer's activations in the cache.
//     (x / 255 - mean) contrast, patches of p x p pixels that tile the frame, a linear layer and ReLU;
//     then convolutions (kernel k, stride s, no padding) and ReLU; the result is flattened channels first.
//
// ATen needs a pass over memory for each of: tiles, float32, less mean, times contrast, product, bias, ReLU, layout.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lanes.h"

namespace {

using psdrl::Floats;
using psdrl::load;

constexpr int kOutputs = 6;  // channels that are summed up together

// A layer with its weights (outputs, k, k, inputs), inputs padded with zeros to whole vectors.
struct Layer {
  int64_t inputs, padded, outputs, kernel, stride, side;  // side: of its output
  std::vector<float> weight, bias;
};

struct Encoder {
  int64_t patch, tiles, height, channels, padded;  // tiles: patches along a side; channels of the first layer
  std::vector<float> weight, bias;                 // (patch * patch, padded)
  const float* mean;                               // (height, height)
  float contrast;
  std::vector<Layer> layers;
};

// COUNT patches beside each other, from `corner` in the picture on: out (COUNT, padded).
template <class Set, int COUNT>
PSDRL_INLINE void patches(const Encoder& e, const float* corner, float* out) {
  for (int64_t c = 0; c < e.padded; c += Set::kLanes) {
    Floats<Set> acc[COUNT];
    for (int n = 0; n < COUNT; ++n) acc[n] = load<Set>(e.bias.data() + c);
    const float* weight = e.weight.data() + c;
    for (int64_t y = 0; y < e.patch; ++y) {
      for (int64_t x = 0; x < e.patch; ++x, weight += e.padded) {
        const Floats<Set> w = load<Set>(weight);
        for (int n = 0; n < COUNT; ++n) acc[n] += corner[y * e.height + n * e.patch + x] * w;
      }
    }
    for (int n = 0; n < COUNT; ++n)
      psdrl::store<Set>(out + n * e.padded + c, acc[n] > 0.0f ? acc[n] : Floats<Set>{});
  }
}

// The first layer of one frame: out (tiles, tiles, padded); picture (height, height) is for its pixels as numbers.
template <class Set>
PSDRL_INLINE void first(const Encoder& e, const uint8_t* frame, float* picture, float* out) {
  constexpr int kAtOnce = 8;  // sums that do not wait for each other
  // As divided, which the oracle does: a rounded 1 / 255 would be off by the same factor in every frame. With one rounding
  // of a multiplication and an addition the remainder mends that, for each of the 256 numbers.
  constexpr bool kFused = Set::kLanes > 4;
  for (int64_t i = 0; i < e.height * e.height; ++i) {
    const float x = static_cast<float>(frame[i]), near = x * (1 / 255.0f);
    const float divided = kFused ? near + (x - near * 255.0f) * (1 / 255.0f) : x / 255.0f;
    picture[i] = (divided - e.mean[i]) * e.contrast;
  }
  for (int64_t y = 0; y < e.tiles; ++y) {
    const float* row = picture + y * e.patch * e.height;
    float* to = out + y * e.tiles * e.padded;
    int64_t x = 0;
    for (; x + kAtOnce <= e.tiles; x += kAtOnce) patches<Set, kAtOnce>(e, row + x * e.patch, to + x * e.padded);
    for (; x < e.tiles; ++x) patches<Set, 1>(e, row + x * e.patch, to + x * e.padded);
  }
}

// COUNT output pixels of a row, OUTPUTS channels from `o` on: sums of in (k, k * padded) times weight, to out[pixel][o].
template <class Set, int COUNT, int OUTPUTS>
PSDRL_INLINE void pixels(const Layer& l, const float* in, int64_t row, int64_t o, float* out) {
  Floats<Set> acc[COUNT][OUTPUTS] = {};
  const int64_t run = l.kernel * l.padded, step = l.stride * l.padded;
  for (int64_t y = 0; y < l.kernel; ++y) {
    for (int64_t i = 0; i < run; i += Set::kLanes) {
      Floats<Set> x[COUNT];
      for (int p = 0; p < COUNT; ++p) x[p] = load<Set>(in + y * row + p * step + i);
      for (int c = 0; c < OUTPUTS; ++c) {
        const Floats<Set> w = load<Set>(l.weight.data() + ((o + c) * l.kernel + y) * run + i);
        for (int p = 0; p < COUNT; ++p) acc[p][c] += x[p] * w;
      }
    }
  }
  for (int p = 0; p < COUNT; ++p)
    for (int c = 0; c < OUTPUTS; ++c)
      out[p * l.outputs + o + c] = std::max(0.0f, psdrl::sum<Set>(acc[p][c]) + l.bias[o + c]);
}

template <class Set, int COUNT>
PSDRL_INLINE void channels(const Layer& l, const float* in, int64_t row, float* out) {
  int64_t o = 0;
  for (; o + kOutputs <= l.outputs; o += kOutputs) pixels<Set, COUNT, kOutputs>(l, in, row, o, out);
  for (; o < l.outputs; ++o) pixels<Set, COUNT, 1>(l, in, row, o, out);
}

// A convolution: in (before, before, padded) -> out (side, side, outputs).
template <class Set>
PSDRL_INLINE void convolution(const Layer& l, const float* in, int64_t before, float* out) {
  constexpr int kAtOnce = Set::kRegisters >= 32 ? 4 : 2;
  const int64_t row = before * l.padded;
  for (int64_t y = 0; y < l.side; ++y) {
    const float* from = in + y * l.stride * row;
    int64_t x = 0;
    for (; x + kAtOnce <= l.side; x += kAtOnce)
      channels<Set, kAtOnce>(l, from + x * l.stride * l.padded, row, out + (y * l.side + x) * l.outputs);
    for (; x < l.side; ++x)
      channels<Set, 1>(l, from + x * l.stride * l.padded, row, out + (y * l.side + x) * l.outputs);
  }
}

// Frames `begin` to `end`: uint8 (height, height) -> out (outputs * side * side), channels first.
struct Frames {
  const Encoder& e;
  const uint8_t* frames;
  float* out;
  int64_t size;  // of a latent state
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    int64_t most = e.tiles * e.tiles * e.padded;
    for (const Layer& l : e.layers) most = std::max(most, l.side * l.side * std::max(l.outputs, l.padded));
    std::vector<float> now(most), next(most), picture(e.height * e.height);
    for (int64_t n = begin; n < end; ++n) {
      first<Set>(e, frames + n * e.height * e.height, picture.data(), now.data());
      int64_t side = e.tiles, channels = e.channels, stride = e.padded;
      for (size_t i = 0; i < e.layers.size(); ++i) {
        const Layer& l = e.layers[i];
        convolution<Set>(l, now.data(), side, next.data());
        side = l.side;
        channels = stride = l.outputs;
        std::swap(now, next);
        if (i + 1 == e.layers.size()) break;
        const int64_t padded = e.layers[i + 1].padded;  // room for whole vectors, backwards in place
        for (int64_t p = side * side - 1; p >= 0; --p) {
          std::memmove(now.data() + p * padded, now.data() + p * channels, channels * sizeof(float));
          std::fill_n(now.data() + p * padded + channels, padded - channels, 0.0f);
        }
        stride = padded;
      }
      float* z = out + n * size;
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t p = 0; p < side * side; ++p) z[c * side * side + p] = now[p * stride + c];
    }
  }
};

int64_t whole(int64_t n) { return (n + 15) / 16 * 16; }  // a multiple of every set's lanes

at::Tensor encode_tiles(const at::Tensor& frames, const at::Tensor& mean, const at::Tensor& contrast,
                        at::TensorList weights, at::TensorList biases, at::IntArrayRef strides) {
  TORCH_CHECK(frames.dim() == 4 && frames.size(1) == 1 && frames.size(2) == frames.size(3) &&
                  frames.scalar_type() == at::kByte,
              "encode_tiles: frames must be uint8 (n, 1, s, s), got ", frames.scalar_type(), " ", frames.sizes());
  TORCH_CHECK(!weights.empty() && weights.size() == biases.size() && weights.size() == strides.size(),
              "encode_tiles: a weight, a bias and a stride for each layer");
  for (size_t i = 0; i < weights.size(); ++i) {
    TORCH_CHECK(weights[i].dim() == 4 && weights[i].size(2) == weights[i].size(3) &&
                    weights[i].scalar_type() == at::kFloat && biases[i].scalar_type() == at::kFloat &&
                    biases[i].dim() == 1 && biases[i].size(0) == weights[i].size(0) && strides[i] > 0 &&
                    weights[i].size(1) == (i ? weights[i - 1].size(0) : 1),
                "encode_tiles: layer ", i, " must have a float32 weight (o, c, k, k), a bias (o,) and a stride");
  }
  Encoder e;
  e.height = frames.size(2);
  e.patch = weights[0].size(2);
  TORCH_CHECK(e.patch == strides[0] && e.height % e.patch == 0,
              "encode_tiles: the first kernel must tile the frame");
  e.tiles = e.height / e.patch;
  e.channels = weights[0].size(0);
  e.padded = whole(e.channels);
  const int64_t size = e.patch * e.patch;
  const auto m = mean.contiguous();
  TORCH_CHECK(m.scalar_type() == at::kFloat && m.numel() == e.height * e.height && contrast.numel() == 1 &&
                  contrast.scalar_type() == at::kFloat,
              "encode_tiles: mean must be float32 with a number for each pixel, and contrast one number");
  e.mean = m.const_data_ptr<float>();
  e.contrast = *contrast.const_data_ptr<float>();
  const auto w = weights[0].contiguous(), b = biases[0].contiguous();
  e.weight.assign(size * e.padded, 0.0f);
  e.bias.assign(e.padded, 0.0f);
  for (int64_t c = 0; c < e.channels; ++c) {
    e.bias[c] = b.const_data_ptr<float>()[c];
    for (int64_t i = 0; i < size; ++i)
      e.weight[i * e.padded + c] = w.const_data_ptr<float>()[c * size + i];
  }
  int64_t side = e.tiles, channels = e.channels;
  for (size_t i = 1; i < weights.size(); ++i) {
    Layer l = {channels, whole(channels), weights[i].size(0), weights[i].size(2), strides[i], 0, {}, {}};
    TORCH_CHECK(side >= l.kernel, "encode_tiles: layer ", i, " shrinks its input to nothing");
    l.side = (side - l.kernel) / l.stride + 1;
    const auto layer = weights[i].contiguous(), bias = biases[i].contiguous();
    const float* from = layer.const_data_ptr<float>();
    l.weight.assign(l.outputs * l.kernel * l.kernel * l.padded, 0.0f);
    for (int64_t n = 0; n < l.outputs; ++n)
      for (int64_t c = 0; c < l.inputs; ++c)
        for (int64_t at = 0; at < l.kernel * l.kernel; ++at)
          l.weight[(n * l.kernel * l.kernel + at) * l.padded + c] = from[(n * l.inputs + c) * l.kernel * l.kernel + at];
    l.bias.assign(bias.const_data_ptr<float>(), bias.const_data_ptr<float>() + l.outputs);
    side = l.side;
    channels = l.outputs;
    e.layers.push_back(std::move(l));
  }
  const auto pictures = frames.contiguous();
  auto z = at::empty({frames.size(0), channels * side * side}, frames.options().dtype(at::kFloat));
  const Frames body = {e, pictures.const_data_ptr<uint8_t>(), z.mutable_data_ptr<float>(), z.size(1)};
  at::parallel_for(0, frames.size(0), 16, [&](int64_t begin, int64_t end) { psdrl::run(body, begin, end); });
  return z;
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("encode_tiles", &encode_tiles); }
