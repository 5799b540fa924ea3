// Triangular systems of many right-hand sides and Cholesky factors without BLAS: products in registers (products.h),
// float64. One thread of an AMD EPYC (Zen 5, AVX-512), GFLOP/s: see `kernels.posterior.registers`, which asks for these
// where they are faster than LAPACK.
//
// Unknowns are eliminated in blocks. What the solved blocks contribute to the next one is a product with packed
// coefficients; within a panel of a block rows are turned, so that vectors hold the same unknown of several rows, and
// substituted one by one. A sum's order does not depend on the number of threads.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "products.h"
#include "triangular.h"

namespace {

constexpr int64_t kBlock = 128;  // unknowns that are eliminated at a time, a multiple of every set's panel
constexpr int64_t kRows = 384;   // right-hand sides at a time: with 3,200 unknowns 10 MB, which stay in the last cache
constexpr int64_t kStrip = 24;   // of these, rows that pass by all panels of a block, in the first cache

template <class Set>
constexpr int64_t kPanel = psdrl::kTileVectors<Set>* psdrl::kLanesOf<Set, double>;

// L (k, k), column-major: L[i][j] = data[j * stride + i]. The system is L x = b, or (back) L^T x = b; in the equation of
// unknown j the coefficient of i is L[j][i], or L[i][j].
struct Triangle {
  const double* data;
  int64_t k, stride;
  bool back;

  // Coefficients of unknowns [i, i + depth) in the equations [j, j + width), in panels (depth, kPanel).
  template <class Set>
  PSDRL_INLINE void pack(int64_t i, int64_t depth, int64_t j, int64_t width, double* to) const {
    constexpr int64_t wide = kPanel<Set>;
    for (int64_t q = 0; q < width; q += wide, to += wide * depth) {
      const int64_t count = std::min(wide, width - q);
      if (count < wide) std::fill_n(to, wide * depth, 0.0);
      if (back) {
        for (int64_t c = 0; c < count; ++c)
          for (int64_t p = 0; p < depth; ++p) to[p * wide + c] = data[(j + q + c) * stride + i + p];
      } else {
        for (int64_t p = 0; p < depth; ++p) std::copy_n(data + (i + p) * stride + j + q, count, to + p * wide);
      }
    }
  }
};

// Rows `first` to `last` of y -= x C, for x (rows, depth), a packed panel C (depth, kPanel) and `count` columns of y.
template <class Set>
PSDRL_INLINE void subtract(const double* x, const double* panel, int64_t depth, double* y, int64_t stride,
                           int64_t first, int64_t last, int64_t count) {
  using V = psdrl::Lanes<Set, double>;
  constexpr int64_t lanes = psdrl::kLanesOf<Set, double>;
  psdrl::panel_of<Set, double, psdrl::kTileVectors<Set>>(
      psdrl::Left<double>{x, stride, 1}, psdrl::Right<double>{panel, kPanel<Set>}, depth, first, last, 0,
      [=](int64_t i, int64_t c, V sums) __attribute__((always_inline)) {
        double* at = y + i * stride + c;
        V before = {};
        if (c + lanes <= count) {
          before = psdrl::load_lanes<V>(at) - sums;
          std::memcpy(at, &before, sizeof before);
        } else if (c < count) {
          std::memcpy(&before, at, (count - c) * sizeof(double));
          before -= sums;
          std::memcpy(at, &before, (count - c) * sizeof(double));
        }
      });
}

// Rows b (rows, k) become x.
struct Solve {
  Triangle t;
  double* x;
  int64_t stride;

  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    std::vector<double> packed(kBlock * kBlock);
    for (int64_t first = begin; first < end; first += kRows) rows<Set>(first, std::min(end, first + kRows), packed);
  }

  template <class Set>
  PSDRL_INLINE void rows(int64_t begin, int64_t end, std::vector<double>& packed) const {
    constexpr int64_t wide = kPanel<Set>;
    const int64_t blocks = (t.k + kBlock - 1) / kBlock;
    for (int64_t n = 0; n < blocks; ++n) {
      const int64_t j = (t.back ? blocks - 1 - n : n) * kBlock, width = std::min(kBlock, t.k - j);
      for (int64_t m = 0; m < n; ++m) {
        const int64_t i = (t.back ? blocks - 1 - m : m) * kBlock, depth = std::min(kBlock, t.k - i);
        t.pack<Set>(i, depth, j, width, packed.data());
        for (int64_t r = begin; r < end; r += kStrip)
          for (int64_t q = 0; q < width; q += wide)
            subtract<Set>(x + i, packed.data() + q * depth, depth, x + j + q, stride, r, std::min(end, r + kStrip),
                          std::min(wide, width - q));
      }
      t.pack<Set>(j, width, j, width, packed.data());
      for (int64_t r = begin; r < end; r += kStrip) {
        const int64_t last = std::min(end, r + kStrip);
        for (int64_t n_panel = 0; n_panel < width; n_panel += wide) {
          const int64_t q = t.back ? (width - 1) / wide * wide - n_panel : n_panel, count = std::min(wide, width - q);
          const int64_t from = t.back ? q + count : 0, depth = t.back ? width - from : q;
          const double* panel = packed.data() + q * width;
          if (depth > 0)
            subtract<Set>(x + j + from, panel + from * wide, depth, x + j + q, stride, r, last, count);
          for (int64_t i = r; i < last; i += psdrl::kLanesOf<Set, double>)
            substitute<Set>(x + i * stride + j + q, std::min<int64_t>(last - i, psdrl::kLanesOf<Set, double>),
                            panel + q * wide, count);
        }
      }
    }
  }

  // The last step for a few rows and the unknowns of one panel; c: their own coefficients (count, kPanel).
  template <class Set>
  PSDRL_INLINE void substitute(double* y, int64_t few, const double* c, int64_t count) const {
    using V = psdrl::Lanes<Set, double>;
    constexpr int64_t lanes = psdrl::kLanesOf<Set, double>, wide = kPanel<Set>;
    double turned[kPanel<Set> * lanes] = {};
    for (int64_t r = 0; r < few; ++r)
      for (int64_t j = 0; j < count; ++j) turned[j * lanes + r] = y[r * stride + j];
    for (int64_t n = 0; n < count; ++n) {
      const int64_t j = t.back ? count - 1 - n : n;
      V sum = psdrl::load_lanes<V>(turned + j * lanes);
      for (int64_t m = 0; m < n; ++m) {
        const int64_t i = t.back ? count - 1 - m : m;
        sum -= c[i * wide + j] * psdrl::load_lanes<V>(turned + i * lanes);
      }
      sum /= c[j * wide + j];
      std::memcpy(turned + j * lanes, &sum, sizeof sum);
    }
    for (int64_t r = 0; r < few; ++r)
      for (int64_t j = 0; j < count; ++j) y[r * stride + j] = turned[j * lanes + r];
  }
};

void solve(const Triangle& t, double* x, int64_t rows, int64_t stride) {
  const Solve body = {t, x, stride};
  at::parallel_for(0, rows, 2 * kStrip, [&](int64_t begin, int64_t end) { psdrl::run(body, begin, end); });
}

// Rows of y (width, width) -= x x^T, for x (width, depth) in the same rows.
struct Square {
  const double* x;
  double* y;
  int64_t depth, width, stride;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    constexpr int64_t wide = kPanel<Set>;
    std::vector<double> packed(kBlock * kBlock);
    for (int64_t i = 0; i < depth; i += kBlock) {
      const int64_t part = std::min(kBlock, depth - i);
      Triangle{x, depth, stride, true}.pack<Set>(i, part, 0, width, packed.data());
      for (int64_t q = 0; q < width; q += wide)
        subtract<Set>(x + i, packed.data() + q * part, part, y + q, stride, begin, end, std::min(wide, width - q));
    }
  }
};

// Lower factor of a small matrix, in place; how many of its leading minors are positive.
int64_t factorise(double* a, int64_t k, int64_t stride) {
  for (int64_t r = 0; r < k; ++r) {
    double* row = a + r * stride;
    for (int64_t c = 0; c < r; ++c) {
      const double* other = a + c * stride;
      double sum = row[c];
      for (int64_t p = 0; p < c; ++p) sum -= row[p] * other[p];
      row[c] = sum / other[c];
    }
    double pivot = row[r];
    for (int64_t p = 0; p < r; ++p) pivot -= row[p] * row[p];
    if (!(pivot > 0) || !std::isfinite(pivot)) return r;
    row[r] = std::sqrt(pivot);
  }
  return k;
}

}  // namespace

namespace psdrl {

void solve_rows(const at::Tensor& factor, at::Tensor& rows, bool back) {
  TORCH_CHECK(factor.dim() == 2 && factor.size(0) == factor.size(1) && factor.scalar_type() == at::kDouble,
              "solve_rows_: the factor must be a float64 matrix (k, k), got ", factor.scalar_type(), " ",
              factor.sizes());
  TORCH_CHECK(rows.dim() == 2 && rows.size(1) == factor.size(0) && rows.scalar_type() == at::kDouble &&
                  (rows.size(1) <= 1 || rows.stride(1) == 1),
              "solve_rows_: rows must be float64 (n, k), each contiguous, got ", rows.scalar_type(), " ", rows.sizes());
  if (rows.numel() == 0) return;
  const auto l = factor.stride(0) == 1 ? factor : factor.t().contiguous().t();  // column-major, as factors are made
  solve({l.const_data_ptr<double>(), l.size(0), l.stride(1), back}, rows.mutable_data_ptr<double>(), rows.size(0),
        rows.stride(0));
}

int64_t cholesky(at::Tensor& matrix, at::Tensor& factor) {
  const int64_t k = matrix.size(0);
  double *a = matrix.mutable_data_ptr<double>(), *l = factor.mutable_data_ptr<double>();
  for (int64_t i = 0; i < k; i += kBlock) {
    const int64_t width = std::min(kBlock, k - i);
    double* rows = a + i * k;
    solve({l, i, k, false}, rows, width, k);  // these rows of L, left of the diagonal block
    const Square square = {rows, rows + i, i, width, k};
    at::parallel_for(0, width, kStrip, [&](int64_t begin, int64_t end) { run(square, begin, end); });
    const int64_t done = factorise(rows + i, width, k);
    if (done < width) return i + done + 1;
    for (int64_t c = 0; c < i + width; ++c)
      for (int64_t r = std::max(c - i, int64_t{0}); r < width; ++r) l[c * k + i + r] = rows[r * k + c];
    for (int64_t c = i; c < i + width; ++c) std::fill_n(l + c * k, c, 0.0);
  }
  return 0;
}

}  // namespace psdrl

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("solve_rows_", &psdrl::solve_rows); }
