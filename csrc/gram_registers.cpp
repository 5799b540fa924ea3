// The sums of gram.cpp without BLAS: products in registers (products.h), float64. Rows are packed as the kernel reads
// them, 128 at a time. 4096 rows, k = 492, o = 295, one thread of an AMD EPYC (Zen 5): 22 ms with AVX-512 and 43 with
// AVX2, where MKL's panels take 47 to 55. `kernels.choice` measures which of the two serves.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
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

void gram_registers_(at::Tensor& gram, at::Tensor& cross, const at::Tensor& features, const at::Tensor& targets,
                     double weight) {
  psdrl::check_gram(gram, cross, features, targets);
  const bool floats = plain(features, at::kFloat) && plain(targets, at::kFloat);
  if (floats) return accumulate<float>(gram, cross, features, targets, weight);
  accumulate<double>(gram, cross, features.to(at::kDouble).contiguous(), targets.to(at::kDouble).contiguous(), weight);
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("gram_registers_", &gram_registers_); }
