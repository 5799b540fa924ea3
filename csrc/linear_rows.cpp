// Linear layers for a handful of rows: y (r, n) = x (r, k) W (n, k)^T + b (n), float32 on the CPU.
//
// Acting evaluates |A| rows per environment, so each weight is read once for 6 multiply-adds: the work is bound by
// memory bandwidth, of which a general GEMM of 6 rows reaches about a third. Here four rows of W are streamed while a
// block of the rows of x stays in the first-level cache, and each number loaded enters three or four products.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "lanes.h"
#include "rows.h"

namespace {

using psdrl::kLanes;
using psdrl::Lanes;
using psdrl::load;

constexpr int64_t kRows = 6;     // rows of x per pass over four rows of W
constexpr int64_t kInner = 512;  // inputs per block: 6 rows of x and 4 of W take 20 KB of the first-level cache

inline float sum(Lanes v) {
  static_assert(kLanes == 16);
  typedef float Half __attribute__((vector_size(8 * sizeof(float))));
  Half low, high;
  std::memcpy(&low, &v, sizeof low);
  std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
  const Half h = low + high;
  return ((h[0] + h[4]) + (h[1] + h[5])) + ((h[2] + h[6]) + (h[3] + h[7]));
}

// Add to acc the products of ROWS rows of x with COLUMNS rows of W over `count` (a multiple of kLanes) inputs.
// AHEAD: meanwhile fetch the next COLUMNS rows of W into the second-level cache.
template <int ROWS, int COLUMNS, bool AHEAD>
inline __attribute__((always_inline)) void products(const float* x, const float* w, int64_t k, int64_t count,
                                                    Lanes (*total)[COLUMNS]) {
  Lanes acc[ROWS][COLUMNS];
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) acc[r][c] = total[r][c];
  for (int64_t i = 0; i < count; i += kLanes) {
    Lanes column[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) column[c] = load(w + c * k + i);
    if (AHEAD && i % 16 == 0) {  // once per cache line
      for (int c = 0; c < COLUMNS; ++c) __builtin_prefetch(w + (c + COLUMNS) * k + i, 0, 2);
    }
    for (int r = 0; r < ROWS; ++r) {
      const Lanes row = load(x + r * k + i);
      for (int c = 0; c < COLUMNS; ++c) acc[r][c] += row * column[c];
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) total[r][c] = acc[r][c];
}

// y (rows, COLUMNS of n) for at most kRows rows.
template <int COLUMNS>
inline __attribute__((always_inline)) void tile(const float* x, const float* w, const float* b, float* y, int64_t rows,
                                                int64_t k, int64_t n) {
  Lanes acc[kRows][COLUMNS] = {};
  const int64_t whole = k / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kInner) {
    const int64_t count = std::min(kInner, whole - i);
    int64_t r = 0;
    for (; r + 3 <= rows; r += 3) {
      if (r == 0) products<3, COLUMNS, true>(x + i, w + i, k, count, acc);
      else products<3, COLUMNS, false>(x + r * k + i, w + i, k, count, acc + r);
    }
    if (rows - r == 2) products<2, COLUMNS, true>(x + r * k + i, w + i, k, count, acc + r);
    if (rows - r == 1) products<1, COLUMNS, true>(x + r * k + i, w + i, k, count, acc + r);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int c = 0; c < COLUMNS; ++c) {
      float total = sum(acc[r][c]);
      for (int64_t j = whole; j < k; ++j) total += x[r * k + j] * w[c * k + j];
      y[r * n + c] = total + (b ? b[c] : 0.0f);
    }
  }
}

// Compiled for several instruction sets, chosen when the library is loaded: the build stays portable.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(PSDRL_SANITIZE)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
void outputs(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t k, int64_t n,
             int64_t begin, int64_t end) {
  int64_t j = begin;
  for (; j < end; j += j + 4 <= end ? 4 : 1) {
    const float* bias = b ? b + j : nullptr;
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t count = std::min(kRows, rows - r);
      if (j + 4 <= end) {
        tile<4>(x + r * k, w + j * k, bias, y + r * n + j, count, k, n);
      } else {
        tile<1>(x + r * k, w + j * k, bias, y + r * n + j, count, k, n);
      }
    }
  }
}

at::Tensor linear_rows(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1),
              "linear_rows: x must be (rows, k) and weight (n, k), got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat,
              "linear_rows: float32 only, got ", x.scalar_type(), " and ", weight.scalar_type());
  TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == weight.size(0) && bias->scalar_type() == at::kFloat),
              "linear_rows: bias must be float32 of shape (n,)");
  const auto rows = x.contiguous(), w = weight.contiguous();
  const auto b = bias ? bias->contiguous() : at::Tensor();
  const int64_t r = x.size(0), k = x.size(1), n = weight.size(0);
  auto y = at::empty({r, n}, x.options());
  if (r == 0 || n == 0) return y;
  const float* px = rows.const_data_ptr<float>();
  const float* pw = w.const_data_ptr<float>();
  const float* pb = bias ? b.const_data_ptr<float>() : nullptr;
  float* py = y.mutable_data_ptr<float>();
  // A second thread from 2^19 multiply-adds on: at the cpu preset, below that, a call fell from 31 to 18 us without it.
  const int64_t grain = ((int64_t{1} << 19) / std::max<int64_t>(1, r * k) / 4 + 1) * 4;
  at::parallel_for(0, n, grain,
                   [&](int64_t begin, int64_t end) { outputs(px, pw, pb, py, r, k, n, begin, end); });
  return y;
}

// A whole network of tanh layers and a linear output in one call: at the cpu preset's three layers of 128 or 256 units
// the calls cost as much as the arithmetic.
at::Tensor tanh_net_rows(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  TORCH_CHECK(!weights.empty() && weights.size() == biases.size(), "tanh_net_rows: a bias for each of the weights");
  auto y = x;
  for (size_t i = 0; i < weights.size(); ++i) {
    y = linear_rows(y, weights[i], biases[i]);
    if (i + 1 < weights.size()) psdrl::tanh_in_place(y.mutable_data_ptr<float>(), y.numel());
  }
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) {
  m.impl("linear_rows", &linear_rows);
  m.impl("tanh_net_rows", &tanh_net_rows);
}
