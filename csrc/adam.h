// Adam as torch.optim.Adam has it, without weight decay, on gradients in registers; float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>

#include "lanes.h"

namespace psdrl {

// The corrections of one step t: w -= size m / (sqrt(v) + eps), where size = rate sqrt(1 - beta2^t) / (1 - beta1^t) and
// eps is the given one times sqrt(1 - beta2^t): one division instead of two.
struct Adam {
  float size, eps, first, second, decay;  // ..., 1 - beta1, 1 - beta2, beta2
  Adam(double rate, double beta1, double beta2, double eps, double step)
      : size(static_cast<float>(rate * std::sqrt(1 - std::pow(beta2, step)) / (1 - std::pow(beta1, step)))),
        eps(static_cast<float>(eps * std::sqrt(1 - std::pow(beta2, step)))),
        first(static_cast<float>(1 - beta1)),
        second(static_cast<float>(1 - beta2)),
        decay(static_cast<float>(beta2)) {}
};

// Adam's settings, from which every step's corrections follow.
struct Rates {
  double rate, beta1, beta2, eps;
  Adam at(double step) const { return Adam(rate, beta1, beta2, eps, step); }
};

// A parameter with its two moments.
struct Parameter {
  float *value, *average, *square;
  double step;  // steps taken so far
};

// The parameters of an optimiser: `i`-th one, checked; `name` is the operation's, for messages.
struct Parameters {
  at::TensorList values, averages, squares, steps;

  void check(const char* name) const {
    TORCH_CHECK(!values.empty() && averages.size() == values.size() && squares.size() == values.size() &&
                    steps.size() == values.size(),
                name, ": two moments and a step for each of ", values.size(), " parameters");
    for (size_t i = 0; i < values.size(); ++i) {
      for (const auto* list : {&values, &averages, &squares}) {
        TORCH_CHECK((*list)[i].is_non_overlapping_and_dense() && (*list)[i].scalar_type() == at::kFloat &&
                        (*list)[i].sizes() == values[i].sizes() && (*list)[i].strides() == values[i].strides(),
                    name, ": parameter ", i, " and its moments must be dense, float32 and of one shape and layout");
      }
      TORCH_CHECK(steps[i].numel() == 1 && steps[i].scalar_type() == at::kFloat, name, ": the steps of parameter ", i,
                  " must be one float32");
    }
  }

  Parameter at(size_t i) const {
    return {values[i].mutable_data_ptr<float>(), averages[i].mutable_data_ptr<float>(),
            squares[i].mutable_data_ptr<float>(), *steps[i].const_data_ptr<float>()};
  }

  void count(int64_t taken) const {
    for (const auto& step : steps) *step.mutable_data_ptr<float>() += static_cast<float>(taken);
  }
};

// A step of the numbers from `at` on, as many as a vector holds or `count`, if that is less.
template <class Set>
PSDRL_INLINE void adam(const Adam& a, const Parameter& p, int64_t at, Floats<Set> gradient, int64_t count) {
  const bool whole = count >= Set::kLanes;
  const auto get = [&](const float* x) __attribute__((always_inline)) {
    return whole ? load<Set>(x + at) : load<Set>(x + at, count);
  };
  const auto put = [&](float* x, Floats<Set> v) __attribute__((always_inline)) {
    whole ? store<Set>(x + at, v) : store<Set>(x + at, v, count);
  };
  Floats<Set> average = get(p.average), square = get(p.square);
  average += a.first * (gradient - average);
  square = a.decay * square + a.second * gradient * gradient;
  put(p.average, average);
  put(p.square, square);
  put(p.value, get(p.value) - a.size * average / (sqrt_of<Set>(square) + a.eps));
}

}  // namespace psdrl
