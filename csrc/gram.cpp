// Sums of Eq. 4 on the CPU: gram (k, k) += w Phi^T Phi, lower triangle, and cross (k, o) += w Phi^T T.
//
// float64 products throughout: a float32 Gram matrix made the Cholesky factorisation fail at noise 1e-3 and prior 1e3
// (smallest eigenvalue -3e-5, in float64 -2e-13). The gain is the triangle: row panels up to the diagonal, 54 % of
// gram's products at k = 2292. A thread computes whole panels with single-threaded BLAS, the largest first: one barrier
// per chunk, and a sum's order does not depend on which thread is faster. Panels of 192 rows run at the speed of the
// full product, 1.5x faster than it on one thread in all; square tiles, from halving the triangle, gave 1.2x, panels
// that all threads share 1.2x on busy cores.
//
// Where there are vector kernels (AVX2, AVX-512) the products are formed in registers instead (products.h): MKL reaches
// half of the peak on AMD's CPUs. Rows are packed as the kernel reads them, in float64, a few at a time.

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "checks.h"
#include "products.h"

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

constexpr int64_t kDeep = 128;  // rows at a time in registers: a panel of them fits into the first-level cache

// [gram cross] (k, k + o), rows of packed features against panels of packed features and targets.
struct Packed {
  double *gram, *cross;
  int64_t k, outputs;
  double weight;
  std::vector<double> left, right;  // (tiles, depth, tile rows) and (panels, depth, panel columns), zero beyond the end
  int64_t depth = 0;

  template <class Set>
  static constexpr int64_t columns() {
    return psdrl::kTileVectors<Set> * psdrl::kLanesOf<Set, double>;
  }

  // Fits the buffers; how many panels features and targets have.
  template <class Set>
  std::pair<int64_t, int64_t> reserve() {
    const int64_t rows = psdrl::kTileRows<Set>, wide = columns<Set>();
    const int64_t of_features = (k + wide - 1) / wide, of_targets = (outputs + wide - 1) / wide;
    left.assign((k + rows - 1) / rows * rows * kDeep, 0.0);
    right.assign((of_features + of_targets) * wide * kDeep, 0.0);
    return {of_features, of_targets};
  }
};

// Packs rows `begin` to `end` of the present ones.
template <class T>
struct Pack {
  Packed& p;
  const T *features, *targets;
  int64_t feature_stride, target_stride, of_features;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    constexpr int64_t rows = psdrl::kTileRows<Set>, wide = Packed::columns<Set>();
    for (int64_t r = begin; r < end; ++r) {
      const T* phi = features + r * feature_stride;
      for (int64_t j = 0; j < p.k; j += rows)
        for (int64_t i = 0; i < std::min(rows, p.k - j); ++i)
          p.left[j * p.depth + r * rows + i] = static_cast<double>(phi[j + i]);
      for (int64_t j = 0; j < p.k; j += wide)
        for (int64_t i = 0; i < std::min(wide, p.k - j); ++i)
          p.right[(j / wide * p.depth + r) * wide + i] = static_cast<double>(phi[j + i]);
      for (int64_t j = 0; j < p.outputs; j += wide)
        for (int64_t i = 0; i < std::min(wide, p.outputs - j); ++i)
          p.right[((of_features + j / wide) * p.depth + r) * wide + i] =
              static_cast<double>(targets[r * target_stride + j + i]);
    }
  }
};

// One panel of columns: of gram from the diagonal down, or (panel >= of_features) of cross.
struct Panel {
  const Packed& p;
  int64_t of_features;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t panel) const {
    using V = psdrl::Lanes<Set, double>;
    constexpr int64_t rows = psdrl::kTileRows<Set>, wide = Packed::columns<Set>();
    constexpr int lanes = psdrl::kLanesOf<Set, double>;
    const bool is_cross = panel >= of_features;
    const int64_t column = (is_cross ? panel - of_features : panel) * wide, width = is_cross ? p.outputs : p.k;
    double* out = is_cross ? p.cross : p.gram;
    const int64_t k = p.k;
    const double weight = p.weight;
    const psdrl::Right<double> right = {p.right.data() + panel * p.depth * wide, wide};
    for (int64_t i = is_cross ? 0 : column / rows * rows; i < k; i += rows) {
      const psdrl::Left<double> left = {p.left.data() + i * p.depth, 1, rows};
      const auto add = [=](int64_t r, int64_t c, V sums) __attribute__((always_inline)) {
        const int64_t count = width - column - c;
        if (i + r >= k || count <= 0) return;
        double* at = out + (i + r) * width + column + c;
        V before = {};
        if (count >= lanes) {
          before = psdrl::load_lanes<V>(at) + weight * sums;
          std::memcpy(at, &before, sizeof before);
        } else {
          std::memcpy(&before, at, count * sizeof(double));
          before += weight * sums;
          std::memcpy(at, &before, count * sizeof(double));
        }
      };
      psdrl::tile_of<Set, double, rows, psdrl::kTileVectors<Set>>(left, right, p.depth, 0, 0, add);
    }
  }
};

struct Reserve {
  Packed& p;
  int64_t &of_features, &of_targets;
  template <class Set>
  PSDRL_INLINE void operator()() const {
    std::tie(of_features, of_targets) = p.reserve<Set>();
  }
};

template <class T>
void accumulate(at::Tensor& gram, at::Tensor& cross, const at::Tensor& features, const at::Tensor& targets,
                double weight) {
  Packed p = {gram.mutable_data_ptr<double>(), cross.mutable_data_ptr<double>(), features.size(1), targets.size(1),
              weight, {}, {}};
  int64_t of_features = 0, of_targets = 0;
  psdrl::run(Reserve{p, of_features, of_targets});
  const int64_t n = features.size(0), panels = of_features + of_targets;
  for (int64_t first = 0; first < n; first += kDeep) {
    p.depth = std::min(kDeep, n - first);
    const Pack<T> pack = {p, features.const_data_ptr<T>() + first * features.stride(0),
                          targets.const_data_ptr<T>() + first * targets.stride(0), features.stride(0),
                          targets.stride(0), of_features};
    at::parallel_for(0, p.depth, 16, [&](int64_t begin, int64_t end) { psdrl::run(pack, begin, end); });
    std::atomic<int64_t> next{0};
    const int64_t workers = std::min<int64_t>(at::get_num_threads(), panels);
    at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
      for (int64_t panel = next++; panel < panels; panel = next++) psdrl::run(Panel{p, of_features}, panel);
    });
  }
}

// Whether rows can be read as they are.
bool plain(const at::Tensor& x, at::ScalarType type) {
  return x.scalar_type() == type && (x.size(1) <= 1 || x.stride(1) == 1);
}

void gram_accumulate_(at::Tensor& gram, at::Tensor& cross, const at::Tensor& features, const at::Tensor& targets,
                      double weight) {
  psdrl::check_gram(gram, cross, features, targets);
  if (psdrl::isa() != psdrl::Isa::kPortable) {
    const bool floats = plain(features, at::kFloat) && plain(targets, at::kFloat);
    if (floats) return accumulate<float>(gram, cross, features, targets, weight);
    return accumulate<double>(gram, cross, features.to(at::kDouble).contiguous(), targets.to(at::kDouble).contiguous(),
                              weight);
  }
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
