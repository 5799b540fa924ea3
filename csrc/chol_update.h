// Rank-n update and downdate of a Cholesky factor on the CPU, free of torch.
//
// L' L'^T = L L^T + sign X^T X, column by column. With l = L[j, j] and x = column j of X, the reflector that takes
// (l, x) to (l', 0), l' = sqrt(l^2 + sign |x|^2), preserves the form diag(1, sign I) and changes row i > j as
//     p' = (l p + sign x.q) / l',    q' = q - x (p + p') / (l + l'),    p = L[i, j], q = column i of X.
// Columns are taken in panels: the rows below a panel are independent of each other, so that threads share them, and
// a row's q (64 doubles) stays in the first-level cache for all columns of the panel.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace psdrl {

constexpr int64_t kPanel = 32;  // columns per panel: its reflectors, 32 x 64 doubles, fill half a 32 KB L1 cache
constexpr int64_t kRows = 64;   // rows of X per pass
constexpr int64_t kWide = 8;    // doubles per vector

typedef double Wide __attribute__((vector_size(kWide * sizeof(double))));

struct Reflector {
  double diagonal, updated;  // l, l'
};

// One pass: factor element (i, j) at factor[i * row + j * column], xt (k, n) with n a multiple of kWide, n <= kRows.
struct CholUpdate {
  double* factor;
  int64_t row, column;
  double* xt;
  int64_t n;
  double sign;
};

static inline Wide load_wide(const double* p) {
  Wide v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

static inline double sum_wide(Wide v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

// Apply reflector j to COUNT rows from i on.
template <int COUNT>
static inline __attribute__((always_inline)) void reflect(const CholUpdate& u, const Reflector& r, int64_t j,
                                                          int64_t i) {
  const double* x = u.xt + j * u.n;
  double* q = u.xt + i * u.n;
  Wide dot[COUNT] = {};
  for (int64_t c = 0; c < u.n; c += kWide) {
    const Wide xc = load_wide(x + c);
    for (int s = 0; s < COUNT; ++s) dot[s] += xc * load_wide(q + s * u.n + c);
  }
  double step[COUNT];
  for (int s = 0; s < COUNT; ++s) {
    double& p = u.factor[(i + s) * u.row + j * u.column];
    const double updated = (r.diagonal * p + u.sign * sum_wide(dot[s])) / r.updated;
    step[s] = (p + updated) / (r.diagonal + r.updated);
    p = updated;
  }
  for (int64_t c = 0; c < u.n; c += kWide) {
    const Wide xc = load_wide(x + c);
    for (int s = 0; s < COUNT; ++s) {
      const Wide next = load_wide(q + s * u.n + c) - xc * step[s];
      std::memcpy(q + s * u.n + c, &next, sizeof next);
    }
  }
}

// Compiled for several instruction sets, chosen when the library is loaded; not under sanitizers, whose runtime is not
// yet there when the choice is made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(PSDRL_SANITIZE)
#define PSDRL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PSDRL_CLONES
#endif

// Reflectors of the columns [begin, end) and their effect inside the panel. Returns 0, -1 for a value that is not
// finite, or j + 1 for the column j at which the downdated matrix is not positive definite.
PSDRL_CLONES static int64_t chol_update_panel(const CholUpdate& u, int64_t begin, int64_t end, Reflector* reflectors) {
  for (int64_t j = begin; j < end; ++j) {
    const double* x = u.xt + j * u.n;
    Wide squares = {};
    for (int64_t c = 0; c < u.n; c += kWide) squares += load_wide(x + c) * load_wide(x + c);
    double& diagonal = u.factor[j * u.row + j * u.column];
    const double square = diagonal * diagonal + u.sign * sum_wide(squares);
    if (!std::isfinite(square)) return -1;
    if (square <= 0) return j + 1;
    const Reflector r = {diagonal, std::sqrt(square)};
    diagonal = r.updated;
    int64_t i = j + 1;
    for (; i + 4 <= end; i += 4) reflect<4>(u, r, j, i);
    for (; i < end; ++i) reflect<1>(u, r, j, i);
    reflectors[j - begin] = r;
  }
  return 0;
}

// The effect of the panel's reflectors on the rows [first, last) below it.
PSDRL_CLONES static void chol_update_below(const CholUpdate& u, int64_t begin, int64_t end, int64_t first,
                                           int64_t last, const Reflector* reflectors) {
  int64_t i = first;
  for (; i + 4 <= last; i += 4) {
    for (int64_t j = begin; j < end; ++j) reflect<4>(u, reflectors[j - begin], j, i);
  }
  for (; i < last; ++i) {
    for (int64_t j = begin; j < end; ++j) reflect<1>(u, reflectors[j - begin], j, i);
  }
}

}  // namespace psdrl
