// Argument checks shared by the CPU and the CUDA implementations of the posterior's operations.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace psdrl {

inline void check_matrix(const at::Tensor& x, int64_t dim, const char* name) {
  TORCH_CHECK(x.dim() == dim && x.scalar_type() == at::kDouble, name, " must be float64 with ", dim,
              " dimensions, got ", x.scalar_type(), " ", x.sizes());
}

inline bool floating(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kDouble;
}

inline void check_gram(const at::Tensor& gram, const at::Tensor& cross, const at::Tensor& features,
                       const at::Tensor& targets) {
  check_matrix(gram, 2, "gram_accumulate_: gram");
  check_matrix(cross, 2, "gram_accumulate_: cross");
  TORCH_CHECK(gram.is_contiguous() && cross.is_contiguous(), "gram_accumulate_: gram and cross must be contiguous");
  TORCH_CHECK(features.dim() == 2 && targets.dim() == 2 && floating(features) && floating(targets),
              "gram_accumulate_: features and targets must be matrices of float32, bfloat16 or float64, got ",
              features.scalar_type(), " ", features.sizes(), " and ", targets.scalar_type(), " ", targets.sizes());
  TORCH_CHECK(features.size(0) == targets.size(0) && gram.size(0) == features.size(1) &&
                  gram.size(1) == features.size(1) && cross.size(0) == features.size(1) &&
                  cross.size(1) == targets.size(1),
              "gram_accumulate_: shapes must be (k, k), (k, o), (n, k), (n, o), got ", gram.sizes(), " ",
              cross.sizes(), " ", features.sizes(), " ", targets.sizes());
}

inline void check_variances(const at::Tensor& gram, const at::Tensor& prior, const at::Tensor& noise) {
  check_matrix(gram, 2, "posterior_factor: gram");
  check_matrix(prior, 1, "posterior_factor: prior_variances");
  check_matrix(noise, 1, "posterior_factor: noise_variances");
  TORCH_CHECK(gram.size(0) == gram.size(1), "posterior_factor: gram must be square, got ", gram.sizes());
  TORCH_CHECK(prior.size(0) == noise.size(0), "posterior_factor: one prior and one noise variance per group, got ",
              prior.size(0), " and ", noise.size(0));
}

inline void check_groups(const at::Tensor& factors, at::IntArrayRef group, int64_t outputs, const char* name) {
  check_matrix(factors, 3, name);
  int64_t total = 0;
  for (const int64_t size : group) {
    TORCH_CHECK(size >= 0, name, ": a group has a negative number of outputs");
    total += size;
  }
  TORCH_CHECK(factors.size(1) == factors.size(2) && static_cast<int64_t>(group.size()) == factors.size(0) &&
                  total == outputs,
              name, ": factors (g, k, k) need g groups that sum to ", outputs, " outputs, got ", factors.sizes(),
              " and groups ", group);
}

inline void check_mean(const at::Tensor& factors, const at::Tensor& cross, at::IntArrayRef group,
                       const at::Tensor& noise) {
  check_matrix(cross, 2, "posterior_mean: cross");
  check_groups(factors, group, cross.size(1), "posterior_mean");
  check_matrix(noise, 1, "posterior_mean: noise_variances");
  TORCH_CHECK(noise.size(0) == factors.size(0) && cross.size(0) == factors.size(1),
              "posterior_mean: cross (k, o) and noise_variances (g,) expected, got ", cross.sizes(), " and ",
              noise.sizes());
}

inline void check_sample(const at::Tensor& factors, const at::Tensor& mean, at::IntArrayRef group,
                         const std::optional<at::Tensor>& eps) {
  check_matrix(mean, 2, "posterior_sample: mean");
  check_groups(factors, group, mean.size(0), "posterior_sample");
  TORCH_CHECK(mean.size(1) == factors.size(1), "posterior_sample: mean (o, k) expected, got ", mean.sizes());
  if (!eps) return;
  check_matrix(*eps, 3, "posterior_sample: eps");
  TORCH_CHECK(eps->size(1) == mean.size(0) && eps->size(2) == mean.size(1),
              "posterior_sample: eps (S, o, k) expected, got ", eps->sizes());
}

}  // namespace psdrl
