// Linear layers for a handful of rows: y (r, n) = x (r, k) W (n, k)^T + b (n), float32 on the CPU.
//
// Acting evaluates |A| rows per environment, so each weight is read once for 6 multiply-adds: the work is bound by
// memory bandwidth, of which a general GEMM of 6 rows reaches about a third. Here a few rows of W are streamed while
// the rows of x stay in the first-level cache, and all products of the two are summed up in registers.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "lanes.h"
#include "rows.h"

namespace {

using psdrl::Floats;
using psdrl::load;

// Rows of x per pass over some rows of W. With 16 registers 3 x 4 sums beat 6 x 1: the second pass finds W in the cache,
// and 3 rows of 2292 numbers, 27 KB, stay in the first-level one.
template <class Set>
constexpr int kMost = Set::kRegisters >= 32 ? 6 : 3;

// Rows of W that are streamed at once: their products with ROWS rows of x, these and one of W fill the registers, and
// more than four streams are too many for the prefetcher.
template <class Set, int ROWS>
constexpr int columns_at_once() {
  const int fit = (Set::kRegisters - 1 - ROWS) / ROWS;
  return fit > 4 ? 4 : fit;
}

struct Layer {
  const float *x, *tails, *w, *b;  // tails (rows, lanes): the end of each row of x, zero where a whole vector has it
  float* y;
  int64_t rows, k, n;
};

// y (ROWS, COLUMNS) from row `r` of x and row `j` of W on; meanwhile AHEAD rows of W are fetched, from row `next` on.
template <class Set, int ROWS, int COLUMNS, int AHEAD>
PSDRL_INLINE void tile(const Layer& g, int64_t r, int64_t j, int64_t next) {
  const float *x = g.x + r * g.k, *w = g.w + j * g.k, *ahead = g.w + next * g.k;
  Floats<Set> acc[ROWS][COLUMNS] = {};
  const int64_t whole = g.k / Set::kLanes * Set::kLanes;
  for (int64_t i = 0; i < whole; i += Set::kLanes) {
    Floats<Set> row[ROWS];
    for (int s = 0; s < ROWS; ++s) row[s] = load<Set>(x + s * g.k + i);
    // The CPU's own prefetcher begins anew with each row. 6 rows of 756 x 2292 are read at 23 GB/s instead of 14, of
    // 1536 x 1536 at 24 instead of 18, where a sum reads at 21 to 24 (AVX-512, one thread of an Intel Xeon).
    for (int c = 0; c < AHEAD; ++c) __builtin_prefetch(ahead + c * g.k + i, 0, 2);
    for (int c = 0; c < COLUMNS; ++c) {
      const Floats<Set> column = load<Set>(w + c * g.k + i);
      for (int s = 0; s < ROWS; ++s) acc[s][c] += row[s] * column;
    }
  }
  if (whole < g.k && whole > 0) {  // the last vector of W overlaps the one before; there `tails` is zero
    for (int c = 0; c < COLUMNS; ++c) {
      const Floats<Set> column = load<Set>(w + (c + 1) * g.k - Set::kLanes);
      for (int s = 0; s < ROWS; ++s) acc[s][c] += load<Set>(g.tails + (r + s) * Set::kLanes) * column;
    }
  }
  for (int s = 0; s < ROWS; ++s) {
    float totals[COLUMNS];
    if constexpr (COLUMNS == 4) {
      const psdrl::Four four = psdrl::sums<Set>(acc[s]);
      std::memcpy(totals, &four, sizeof totals);
    } else {
      for (int c = 0; c < COLUMNS; ++c) totals[c] = psdrl::sum<Set>(acc[s][c]);
    }
    for (int c = 0; c < COLUMNS; ++c) {
      if (whole == 0)
        for (int64_t i = 0; i < g.k; ++i) totals[c] += x[s * g.k + i] * w[c * g.k + i];
      g.y[(r + s) * g.n + j + c] = totals[c] + (g.b ? g.b[j + c] : 0.0f);
    }
  }
}

// Columns `j` to `end` of y, in one of several passes over the same rows of W. A single pass fetches the rows that come
// next. Of several each fetches a part of the next block, `distance` rows away: memory is read in all of them, not only
// in the first one, which finds its rows in the cache.
template <class Set, int ROWS>
PSDRL_INLINE void columns(const Layer& g, int64_t r, int64_t j, int64_t end, int64_t distance, int64_t pass) {
  constexpr int kAtOnce = columns_at_once<Set, ROWS>(), kPart = (kAtOnce + 1) / 2;
  const int64_t part = distance + (pass % 2 ? kAtOnce - kPart : 0);
  for (; j + kAtOnce <= end; j += kAtOnce) {
    if (distance > 0)
      tile<Set, ROWS, kAtOnce, kPart>(g, r, j, j + part);
    else
      tile<Set, ROWS, kAtOnce, kAtOnce>(g, r, j, j + kAtOnce);
  }
  for (; j < end; ++j) tile<Set, ROWS, 1, 1>(g, r, j, j + 1);
}

// All rows of y, columns `begin` to `end`. Blocks of W that several passes read stay in the second-level cache.
struct Outputs {
  const Layer& g;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    constexpr int64_t kBlock = 24;
    const int64_t passes = (g.rows + kMost<Set> - 1) / kMost<Set>, block = passes == 1 ? end - begin : kBlock;
    for (int64_t j = begin; j < end; j += block) {
      const int64_t stop = std::min(end, j + block), next = passes == 1 ? 0 : kBlock;
      for (int64_t pass = 0, r = 0; pass < passes; ++pass) {
        const int64_t count = (g.rows - r + passes - pass - 1) / (passes - pass);  // passes of about equal size
        switch (count) {
          case 1: columns<Set, 1>(g, r, j, stop, next, pass); break;
          case 2: columns<Set, 2>(g, r, j, stop, next, pass); break;
          case 3: columns<Set, 3>(g, r, j, stop, next, pass); break;
          case 4: columns<Set, 4>(g, r, j, stop, next, pass); break;
          case 5: columns<Set, 5>(g, r, j, stop, next, pass); break;
          default: columns<Set, 6>(g, r, j, stop, next, pass);
        }
        r += count;
      }
    }
  }
};

// The ends of the rows of x, as `tile` wants them.
struct Tails {
  const float* x;
  int64_t rows, k;
  std::vector<float>& out;
  template <class Set>
  PSDRL_INLINE void operator()() const {
    const int64_t rest = k % Set::kLanes;
    if (rest == 0 || k < Set::kLanes) return;
    out.assign(rows * Set::kLanes, 0.0f);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(out.data() + (r + 1) * Set::kLanes - rest, x + (r + 1) * k - rest, rest * sizeof(float));
  }
};

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
  std::vector<float> tails;
  psdrl::run(Tails{px, r, k, tails});
  const Layer layer = {px, tails.data(), w.const_data_ptr<float>(), bias ? b.const_data_ptr<float>() : nullptr,
                       y.mutable_data_ptr<float>(), r, k, n};
  // A second thread from 2^19 multiply-adds on: at the cpu preset, below that, a call fell from 31 to 18 us without it.
  const int64_t grain = ((int64_t{1} << 19) / std::max<int64_t>(1, r * k) / 4 + 1) * 4;
  at::parallel_for(0, n, grain,
                   [&](int64_t begin, int64_t end) { psdrl::run(Outputs{layer}, begin, end); });
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
