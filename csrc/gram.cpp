// Sums of Eq. 4 on the CPU: gram (k, k) += w Phi^T Phi, lower triangle, and cross (k, o) += w Phi^T T.
//
// float64 products throughout: a float32 Gram matrix made the Cholesky factorisation fail at noise 1e-3 and prior 1e3
// (smallest eigenvalue -3e-5, in float64 -2e-13). The gain is the triangle: row panels up to the diagonal, 54 % of
// gram's products at k = 2292. A thread computes whole panels with single-threaded BLAS, the largest first: one barrier
// per chunk, and a sum's order does not depend on which thread is faster. Panels of 192 rows run at the speed of the
// full product, 1.5x faster than it on one thread in all; square tiles, from halving the triangle, gave 1.2x, panels
// that all threads share 1.2x on busy cores.

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "checks.h"

namespace {

constexpr int64_t kPanel = 192;       // rows of gram per panel
constexpr int64_t kCrossPanel = 576;  // rows of cross, where no triangle is to be gained; kPanel for many threads
constexpr int64_t kNarrowest = 512;   // columns below which a panel is not cut further
constexpr int64_t kChunk = 2048;      // rows converted to float64 at a time, 63 MB at the paper's size

// Rows and columns of gram, or (cross) of cross.
struct Tile {
  bool cross;
  int64_t row, rows, column, columns;
  int64_t size() const { return rows * columns; }
};

// Adds a panel, cut into pieces of at most `largest` elements where threads are many.
void add_panel(std::vector<Tile>& tiles, const Tile& t, int64_t largest) {
  const int64_t half = t.columns / 2;
  if (t.size() > largest && half >= kNarrowest) {
    add_panel(tiles, {t.cross, t.row, t.rows, t.column, half}, largest);
    add_panel(tiles, {t.cross, t.row, t.rows, t.column + half, t.columns - half}, largest);
  } else if (t.size() > 0) {
    tiles.push_back(t);
  }
}

// All panels, the largest first.
std::vector<Tile> tiling(int64_t k, int64_t outputs) {
  const int64_t threads = at::get_num_threads(), largest = (k * k / 2 + k * outputs) / (3 * threads);
  std::vector<Tile> tiles;
  for (int64_t i = 0; i < k; i += kPanel) {
    const int64_t rows = std::min(kPanel, k - i);
    add_panel(tiles, {false, i, rows, 0, i + rows}, largest);
  }
  const int64_t height = threads <= 4 ? kCrossPanel : kPanel;
  for (int64_t i = 0; i < k; i += height) add_panel(tiles, {true, i, std::min(height, k - i), 0, outputs}, largest);
  std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.size() > b.size(); });
  return tiles;
}

// Rows [begin, begin + count) of x as contiguous float64: x itself if it is that already, else in the buffer.
at::Tensor block(const at::Tensor& x, int64_t begin, int64_t count, at::Tensor& buffer) {
  const auto rows = x.narrow(0, begin, count);
  if (x.scalar_type() == at::kDouble) return rows.contiguous();
  if (!buffer.defined()) buffer = at::empty({std::min(kChunk, x.size(0)), x.size(1)}, x.options().dtype(at::kDouble));
  return buffer.narrow(0, 0, count).copy_(rows);
}

// One tile's product, by the thread that calls.
void multiply(const Tile& t, const at::Tensor& gram, const at::Tensor& cross, const at::Tensor& phi,
              const at::Tensor& targets, double weight) {
  auto result = (t.cross ? cross : gram).narrow(0, t.row, t.rows).narrow(1, t.column, t.columns);
  result.addmm_(phi.narrow(1, t.row, t.rows).t(), (t.cross ? targets : phi).narrow(1, t.column, t.columns), 1, weight);
}

void gram_accumulate_(at::Tensor& gram, at::Tensor& cross, const at::Tensor& features, const at::Tensor& targets,
                      double weight) {
  psdrl::check_gram(gram, cross, features, targets);
  const int64_t n = features.size(0), k = features.size(1), outputs = targets.size(1);
  const auto tiles = tiling(k, outputs);
  const int64_t count = static_cast<int64_t>(tiles.size()), workers = std::min<int64_t>(at::get_num_threads(), count);
  at::Tensor feature_buffer, target_buffer;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t rows = std::min(kChunk, n - begin);
    const auto phi = block(features, begin, rows, feature_buffer), t = block(targets, begin, rows, target_buffer);
    std::atomic<int64_t> next{0};
    at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
      const at::AutoDispatchBelowADInplaceOrView guard;  // of this thread: no autograd below
      for (int64_t i = next++; i < count; i = next++) {
        multiply(tiles[i], gram, cross, phi, t, weight);
      }
    });
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("gram_accumulate_", &gram_accumulate_); }
