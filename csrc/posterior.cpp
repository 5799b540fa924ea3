// Posterior of the output layer on the CPU: factors, means, samples (Eq. 4).

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "checks.h"
#include "triangular.h"

namespace {

// Lower triangle of I / prior + gram / noise, zeros above it; returns whether all of it is finite.
bool assemble(const at::Tensor& gram, double prior, double noise, at::Tensor& precision) {
  const int64_t k = gram.size(0);
  const double* from = gram.const_data_ptr<double>();
  double* to = precision.mutable_data_ptr<double>();
  std::atomic<bool> finite{true};
  at::parallel_for(0, k, 64, [&](int64_t begin, int64_t end) {
    double probe = 0;  // 0 x is 0 for every finite x, and NaN otherwise
    for (int64_t i = begin; i < end; ++i) {
      double* row = to + i * k;
      for (int64_t j = 0; j <= i; ++j) row[j] = from[i * k + j] / noise;
      row[i] += 1 / prior;
      for (int64_t j = 0; j <= i; ++j) probe += 0 * row[j];
      std::fill(row + i + 1, row + k, 0.0);
    }
    if (std::isnan(probe)) finite = false;
  });
  return finite;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> posterior_factor(const at::Tensor& gram, const at::Tensor& prior,
                                                                const at::Tensor& noise, int64_t attempts,
                                                                bool registers) {
  psdrl::check_variances(gram, prior, noise);
  const int64_t k = gram.size(0), groups = prior.size(0);
  const auto sums = gram.contiguous(), priors = prior.contiguous(), noises = noise.contiguous();
  // Column-major matrices, as LAPACK wants them.
  auto factors = at::empty({groups, k, k}, gram.options()).transpose(1, 2);
  auto jitter = at::zeros({groups}, gram.options());
  auto info = at::zeros({groups}, gram.options().dtype(at::kInt));
  auto precision = at::empty({k, k}, gram.options());
  for (int64_t g = 0; g < groups; ++g) {
    auto factor = factors.select(0, g);
    int& code = info.mutable_data_ptr<int>()[g];
    double& added = jitter.mutable_data_ptr<double>()[g];
    if (!assemble(sums, priors.const_data_ptr<double>()[g], noises.const_data_ptr<double>()[g], precision)) {
      factor.fill_(std::numeric_limits<double>::quiet_NaN());
      code = -1;
      continue;
    }
    const auto diagonal = precision.diagonal().clone();
    bool used_up = false;
    for (int64_t attempt = 0; attempt < std::max<int64_t>(1, attempts); ++attempt) {
      if (attempt > 0) {  // 1e-12 of the mean diagonal, then 10 times more each
        added = attempt == 1 ? 1e-12 * std::abs(diagonal.mean().item<double>()) : 10 * added;
        if (used_up) assemble(sums, priors.const_data_ptr<double>()[g], noises.const_data_ptr<double>()[g], precision);
        precision.diagonal().copy_(diagonal.add(added));
      }
      if (registers) {
        code = static_cast<int>(psdrl::cholesky(precision, factor));
        used_up = true;
      } else {
        auto status = info.select(0, g);
        at::linalg_cholesky_ex_out(factor, status, precision);
      }
      if (code == 0) break;
    }
    if (code != 0) factor.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  return {factors, jitter, info};
}

// Rows (n, k), whose transpose is column-major, become the solutions of L x = row, or (back) of L^T x = row.
void solve(const at::Tensor& factor, at::Tensor& rows, bool back, bool registers) {
  if (registers) return psdrl::solve_rows(factor, rows, back);
  rows.copy_(at::linalg_solve_triangular(back ? factor.t() : factor, rows.t(), /*upper=*/back).t());
}

at::Tensor posterior_mean(const at::Tensor& factors, const at::Tensor& cross, at::IntArrayRef group,
                          const at::Tensor& noise, bool registers) {
  psdrl::check_mean(factors, cross, group, noise);
  const auto noises = noise.contiguous();
  auto mean = at::zeros({cross.size(1), cross.size(0)}, cross.options());
  int64_t begin = 0;
  for (size_t g = 0; g < group.size(); begin += group[g++]) {
    const auto sums = cross.narrow(1, begin, group[g]);
    // Outputs whose targets are all zero, such as cells of DeepSea that nobody has seen, have the mean 0.
    const auto seen = sums.ne(0).any(0).nonzero().squeeze(1);
    auto rows = sums.t().index_select(0, seen).div_(noises.const_data_ptr<double>()[g]);
    const auto factor = factors.select(0, g);
    solve(factor, rows, false, registers);
    solve(factor, rows, true, registers);
    mean.narrow(0, begin, group[g]).index_copy_(0, seen, rows);
  }
  return mean;
}

at::Tensor posterior_sample(const at::Tensor& factors, const at::Tensor& mean, at::IntArrayRef group,
                            const std::optional<at::Tensor>& eps, int64_t samples,
                            std::optional<at::Generator> generator, bool registers) {
  psdrl::check_sample(factors, mean, group, eps);
  const int64_t outputs = mean.size(0), k = mean.size(1), count = eps ? eps->size(0) : samples;
  auto weights = at::empty({count, outputs, k}, mean.options());
  eps ? weights.copy_(*eps) : weights.normal_(0, 1, generator);
  int64_t begin = 0;
  for (size_t g = 0; g < group.size(); begin += group[g++]) {
    const auto part = weights.narrow(1, begin, group[g]);
    auto rows = part.reshape({count * group[g], k});  // a view, if there is one sample
    solve(factors.select(0, g), rows, true, registers);
    if (!rows.is_alias_of(part)) part.copy_(rows.view(part.sizes()));
  }
  return weights.add_(mean);
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) {
  m.impl("posterior_factor", &posterior_factor);
  m.impl("posterior_mean", &posterior_mean);
  m.impl("posterior_sample", &posterior_sample);
}
