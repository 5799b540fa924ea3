// Linear layers for a handful of rows: y (r, n) = x (r, k) W (n, k)^T + b (n), float32 on the CPU.
//
// Acting evaluates |A| rows per environment, so each weight is read once for 6 multiply-adds: the work is bound by
// memory bandwidth, of which a general GEMM of 6 rows reaches about a third. Here two rows of W stream through the
// registers while six rows of x stay in cache; further rows of x reuse the two rows of W from the first-level cache.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

namespace {

constexpr int kLanes = 8;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

inline Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);  // unaligned load
  return v;
}

inline float sum(Lanes v) {
  return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

// Dot products of ROWS rows of x with COLUMNS rows of W.
template <int ROWS, int COLUMNS>
inline __attribute__((always_inline)) void tile(const float* x, const float* w, const float* b, float* y, int64_t k,
                                                int64_t n) {
  Lanes acc[ROWS][COLUMNS] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Lanes column[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) column[c] = load(w + c * k + i);
    for (int r = 0; r < ROWS; ++r) {
      const Lanes row = load(x + r * k + i);
      for (int c = 0; c < COLUMNS; ++c) acc[r][c] += row * column[c];
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    for (int c = 0; c < COLUMNS; ++c) {
      float total = sum(acc[r][c]);
      for (int64_t j = i; j < k; ++j) total += x[r * k + j] * w[c * k + j];
      y[r * n + c] = total + (b ? b[c] : 0.0f);
    }
  }
}

template <int COLUMNS>
inline __attribute__((always_inline)) void rows_of(const float* x, const float* w, const float* b, float* y,
                                                   int64_t rows, int64_t k, int64_t n) {
  for (; rows >= 6; rows -= 6, x += 6 * k, y += 6 * n) tile<6, COLUMNS>(x, w, b, y, k, n);
  switch (rows) {
    case 5: tile<5, COLUMNS>(x, w, b, y, k, n); break;
    case 4: tile<4, COLUMNS>(x, w, b, y, k, n); break;
    case 3: tile<3, COLUMNS>(x, w, b, y, k, n); break;
    case 2: tile<2, COLUMNS>(x, w, b, y, k, n); break;
    case 1: tile<1, COLUMNS>(x, w, b, y, k, n); break;
    default: break;
  }
}

// Compiled for several instruction sets, chosen when the library is loaded: the build stays portable.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
void outputs(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t k, int64_t n,
             int64_t begin, int64_t end) {
  int64_t j = begin;
  for (; j + 2 <= end; j += 2) rows_of<2>(x, w + j * k, b ? b + j : nullptr, y + j, rows, k, n);
  if (j < end) rows_of<1>(x, w + j * k, b ? b + j : nullptr, y + j, rows, k, n);
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
  // A thread is worth its start from about 2^15 multiply-adds on.
  const int64_t grain = std::max<int64_t>(2, (int64_t{1} << 15) / std::max<int64_t>(1, r * k));
  at::parallel_for(0, n, grain,
                   [&](int64_t begin, int64_t end) { outputs(px, pw, pb, py, r, k, n, begin, end); });
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("linear_rows", &linear_rows); }
