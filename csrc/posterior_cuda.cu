// The posterior's operations on CUDA: the kernels of the headers beside cuBLAS and cuSOLVER (through ATen), on the
// current stream. Nothing here waits for the device, except posterior_factor between attempts (see module.cpp).

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <tuple>

#include "checks.h"
#include "gram.cuh"
#include "noise.cuh"
#include "precision.cuh"

namespace {

unsigned tiles(int64_t size, int64_t tile) { return static_cast<unsigned>((size + tile - 1) / tile); }

template <typename T, typename U>
void launch_gram(at::Tensor& gram, at::Tensor& cross, const T* phi, const U* targets, int64_t n, double weight) {
  const int64_t k = cross.size(0), outputs = cross.size(1);
  const auto blocks = static_cast<unsigned>(psdrl::gram_tiles(k, outputs));
  psdrl::gram_kernel<<<blocks, psdrl::kGramThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      gram.mutable_data_ptr<double>(), cross.mutable_data_ptr<double>(), phi, targets, n, k, outputs, weight);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// Calls f with a typed pointer to x's data.
template <typename F>
void with_pointer(const at::Tensor& x, F f) {
  switch (x.scalar_type()) {
    case at::kFloat: return f(x.const_data_ptr<float>());
    case at::kBFloat16: return f(reinterpret_cast<const __nv_bfloat16*>(x.const_data_ptr<at::BFloat16>()));
    default: return f(x.const_data_ptr<double>());
  }
}

void gram_accumulate_(at::Tensor& gram, at::Tensor& cross, const at::Tensor& features, const at::Tensor& targets,
                      double weight) {
  psdrl::check_gram(gram, cross, features, targets);
  if (features.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(gram.device());
  const auto phi = features.contiguous(), t = targets.contiguous();
  with_pointer(phi, [&](auto* p) {
    with_pointer(t, [&](auto* q) { launch_gram(gram, cross, p, q, phi.size(0), weight); });
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> posterior_factor(const at::Tensor& gram, const at::Tensor& prior,
                                                                const at::Tensor& noise, int64_t attempts,
                                                                bool /*registers*/) {
  psdrl::check_variances(gram, prior, noise);
  const c10::cuda::CUDAGuard guard(gram.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t k = gram.size(0), groups = prior.size(0);
  const auto sums = gram.contiguous(), priors = prior.contiguous(), noises = noise.contiguous();
  auto factors = at::empty({groups, k, k}, gram.options()).transpose(1, 2);  // column-major, as cuSOLVER wants them
  auto jitter = at::zeros({groups}, gram.options()), scale = at::zeros({groups}, gram.options());
  auto info = at::zeros({groups}, gram.options().dtype(at::kInt)), bad = at::zeros({groups}, info.options());
  if (k == 0 || groups == 0) return {factors, jitter, info};
  auto precision = at::empty({k, k}, gram.options());
  psdrl::mean_diagonal_kernel<<<static_cast<unsigned>(groups), psdrl::kDiagonalThreads, 0, stream>>>(
      scale.mutable_data_ptr<double>(), sums.const_data_ptr<double>(), priors.const_data_ptr<double>(),
      noises.const_data_ptr<double>(), k);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const dim3 grid(tiles(k, psdrl::kTransposeTile), tiles(k, psdrl::kTransposeTile));
  const dim3 block(psdrl::kTransposeTile, psdrl::kTransposeRows);
  at::Tensor codes, broken;  // on the host, from the second attempt on
  for (int64_t attempt = 0; attempt < std::max<int64_t>(1, attempts); ++attempt) {
    bool all_done = true;
    for (int64_t g = 0; g < groups; ++g) {
      if (attempt > 0) {
        if (codes.data_ptr<int>()[g] == 0 || broken.data_ptr<int>()[g] != 0) continue;
        auto added = jitter.select(0, g);  // 1e-12 of the mean diagonal, then 10 times more each
        attempt == 1 ? added.copy_(scale.select(0, g).abs().mul(1e-12)) : added.mul_(10);
      }
      all_done = false;
      psdrl::precision_kernel<<<grid, block, 0, stream>>>(
          precision.mutable_data_ptr<double>(), bad.mutable_data_ptr<int>(), sums.const_data_ptr<double>(),
          priors.const_data_ptr<double>(), noises.const_data_ptr<double>(), jitter.const_data_ptr<double>(), g, k);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      auto factor = factors.select(0, g), status = info.select(0, g);
      at::linalg_cholesky_ex_out(factor, status, precision.t());
    }
    if (all_done || attempt + 1 >= attempts) break;
    codes = info.cpu();
    broken = bad.cpu();
  }
  info.masked_fill_(bad.ne(0), -1);
  factors.masked_fill_(info.ne(0).view({groups, 1, 1}), std::numeric_limits<double>::quiet_NaN());
  return {factors, jitter, info};
}

at::Tensor posterior_mean(const at::Tensor& factors, const at::Tensor& cross, at::IntArrayRef group,
                          const at::Tensor& noise, bool /*registers*/) {
  psdrl::check_mean(factors, cross, group, noise);
  const c10::cuda::CUDAGuard guard(factors.device());
  const auto sums = cross.contiguous(), noises = noise.contiguous();
  const int64_t k = cross.size(0), outputs = cross.size(1);
  auto mean = at::empty({outputs, k}, cross.options());
  const dim3 block(psdrl::kTransposeTile, psdrl::kTransposeRows);
  int64_t begin = 0;
  for (size_t g = 0; g < group.size(); begin += group[g++]) {
    if (group[g] == 0 || k == 0) continue;
    const auto factor = factors.select(0, g);
    auto rows = mean.narrow(0, begin, group[g]);
    const dim3 grid(tiles(group[g], psdrl::kTransposeTile), tiles(k, psdrl::kTransposeTile));
    psdrl::right_side_kernel<<<grid, block, 0, c10::cuda::getCurrentCUDAStream()>>>(
        rows.mutable_data_ptr<double>(), sums.const_data_ptr<double>(), noises.const_data_ptr<double>(),
        static_cast<int64_t>(g), begin, group[g], k, outputs);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    const auto half = at::linalg_solve_triangular(factor, rows.t(), /*upper=*/false);
    rows.copy_(at::linalg_solve_triangular(factor.t(), half, /*upper=*/true).t());
  }
  return mean;
}

// Normal noise from the generator's Philox stream; capturable, since seed and offset may then be read on the device.
void fill_normal(at::Tensor& noise, const std::optional<at::Generator>& generator) {
  auto* gen = at::get_generator_or_default<at::CUDAGeneratorImpl>(generator,
                                                                  at::cuda::detail::getDefaultCUDAGenerator());
  at::PhiloxCudaState state;
  {
    const std::lock_guard<std::mutex> lock(gen->mutex_);
    state = gen->philox_cuda_state(4);  // one Philox block per pair of numbers
  }
  const int64_t pairs = (noise.numel() + 1) / 2;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(65535, tiles(pairs, 256)));
  psdrl::normal_kernel<<<blocks, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      noise.mutable_data_ptr<double>(), noise.numel(), state.captured_ ? 0 : state.seed_.val,
      state.captured_ ? state.offset_intragraph_ : state.offset_.val, state.captured_ ? state.seed_.ptr : nullptr,
      state.captured_ ? state.offset_.ptr : nullptr);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

at::Tensor posterior_sample(const at::Tensor& factors, const at::Tensor& mean, at::IntArrayRef group,
                            const std::optional<at::Tensor>& eps, int64_t samples,
                            std::optional<at::Generator> generator, bool /*registers*/) {
  psdrl::check_sample(factors, mean, group, eps);
  const c10::cuda::CUDAGuard guard(factors.device());
  const int64_t outputs = mean.size(0), k = mean.size(1), count = eps ? eps->size(0) : samples;
  auto noise = eps ? *eps : at::empty({count, outputs, k}, mean.options());
  if (!eps && noise.numel() > 0) fill_normal(noise, generator);
  auto weights = at::empty({count, outputs, k}, mean.options());
  int64_t begin = 0;
  for (size_t g = 0; g < group.size(); begin += group[g++]) {
    const auto rows = noise.narrow(1, begin, group[g]).reshape({count * group[g], k});
    const auto solved = at::linalg_solve_triangular(factors.select(0, g).t(), rows.t(), /*upper=*/true);
    weights.narrow(1, begin, group[g]).copy_(solved.t().reshape({count, group[g], k}));
  }
  return weights.add_(mean);
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CUDA, m) {
  m.impl("gram_accumulate_", &gram_accumulate_);
  m.impl("posterior_factor", &posterior_factor);
  m.impl("posterior_mean", &posterior_mean);
  m.impl("posterior_sample", &posterior_sample);
}
