// Driver for AddressSanitizer and UndefinedBehaviorSanitizer: every device kernel executed on the host, over odd
// sizes. Buffers have exactly the documented shapes, so that any access outside them is caught. Exits with 0 if the results are right too.

#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels.cpp"

namespace {

using Vector = std::vector<double>;

// Numbers in [-1, 1).
Vector numbers(size_t count, uint64_t state) {
  Vector result(count);
  for (double& x : result) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x = static_cast<double>(state >> 11) * 0x1p-52 - 1;
  }
  return result;
}

int failures = 0;

void expect(bool right, const char* what, int64_t a, int64_t b) {
  if (right) return;
  ++failures;
  std::fprintf(stderr, "wrong: %s (%ld, %ld)\n", what, static_cast<long>(a), static_cast<long>(b));
}

void sums(int64_t n, int64_t k, int64_t o) {
  const Vector phi = numbers(static_cast<size_t>(n * k), 1), t = numbers(static_cast<size_t>(n * o), 2);
  Vector g(static_cast<size_t>(k * k)), c(static_cast<size_t>(k * o));
  gram_double(2, g.data(), c.data(), phi.data(), t.data(), n, k, o, 1.0);
  double worst = 0;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < o; ++j) {
      double truth = 0;
      for (int64_t r = 0; r < n; ++r) truth += phi[r * k + i] * t[r * o + j];
      worst = std::fmax(worst, std::fabs(c[i * o + j] - truth));
    }
  }
  expect(worst < 1e-12, "sums", n, k);
  const Vector prior = {2.0, 3.0}, noise = {1.0, 0.5}, jitter = {0.0, 0.0};
  Vector result(static_cast<size_t>(k * k)), scale(2), right(static_cast<size_t>(o * k));
  int bad[2] = {0, 0};
  precision(1, result.data(), bad, g.data(), prior.data(), noise.data(), jitter.data(), 1, k);
  mean_diagonal(1, scale.data(), g.data(), prior.data(), noise.data(), 2, k);
  right_side(1, right.data(), c.data(), noise.data(), 1, 0, o, k, o);
  expect(bad[1] == 0 && result[0] == g[0] / 0.5 + 1 / 3.0 && right[0] == c[0] / 0.5, "precision", n, k);
}

}  // namespace

int main() {
  sums(1, 1, 1);
  sums(19, 66, 3);
  Vector noise(1001);
  normal(0, 2, noise.data(), 1001, 1, 4, nullptr, nullptr);
  for (const double z : noise) expect(std::isfinite(z), "noise", 0, 0);
  std::printf("sanitize: %d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
