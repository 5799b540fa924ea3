// Factored GRU on the CPU, in one pass, float32: the next hidden states of all actions from one state's projections.
//     r = sigmoid(i_r + c_r + h_r),  u = sigmoid(i_z + c_z + h_z),  m = tanh(i_n + c_n + r h_n),  h' = m + u (h - m)
// with i (n, 3H) the inputs' projection, h_. (n, 3H) the recurrent one, c (A, 3H) what each action adds, h (n, H).
//
// ATen needs ten operations, which for one state cost 30 us of calls; for many states each is a pass over (n, A, H).

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>

#include "lanes.h"

namespace {

using psdrl::Floats;

struct Gru {
  const float *inputs, *recurrent, *columns, *hidden;
  int64_t inputs_stride, recurrent_stride, columns_stride, hidden_stride, actions, size;
  float* out;
};

// Up to a vector of units of one state and action.
template <class Set>
PSDRL_INLINE Floats<Set> units(const Gru& g, const float* in, const float* rec, const float* col, const float* hid,
                               int64_t count) {
  const auto at = [count](const float* p) __attribute__((always_inline)) { return psdrl::load<Set>(p, count); };
  const int64_t size = g.size;
  const Floats<Set> reset = psdrl::sigmoid_of<Set>(at(col) + (at(in) + at(rec)));
  const Floats<Set> update = psdrl::sigmoid_of<Set>(at(col + size) + (at(in + size) + at(rec + size)));
  const Floats<Set> fresh = psdrl::tanh_of<Set>(at(col + 2 * size) + at(in + 2 * size) + reset * at(rec + 2 * size));
  return fresh + update * (at(hid) - fresh);
}

// Rows `begin` to `end` of the result: state by state, action by action.
struct Rows {
  const Gru& g;
  template <class Set>
  PSDRL_INLINE void operator()(int64_t begin, int64_t end) const {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t state = row / g.actions;
      const float* in = g.inputs + state * g.inputs_stride;
      const float* rec = g.recurrent + state * g.recurrent_stride;
      const float* col = g.columns + row % g.actions * g.columns_stride;
      const float* hid = g.hidden + state * g.hidden_stride;
      float* out = g.out + row * g.size;
      int64_t i = 0;
      for (; i + Set::kLanes <= g.size; i += Set::kLanes)
        psdrl::store<Set>(out + i, units<Set>(g, in + i, rec + i, col + i, hid + i, Set::kLanes));
      if (i < g.size) {
        const int64_t rest = g.size - i;
        psdrl::store<Set>(out + i, units<Set>(g, in + i, rec + i, col + i, hid + i, rest), rest);
      }
    }
  }
};

at::Tensor gru_actions_rows(const at::Tensor& inputs, const at::Tensor& recurrent, const at::Tensor& columns,
                            const at::Tensor& hidden) {
  const int64_t n = hidden.size(0), size = hidden.size(1), actions = columns.size(0);
  const auto fits = [](const at::Tensor& t, int64_t rows, int64_t width) {
    return t.dim() == 2 && t.size(0) == rows && t.size(1) == width && t.scalar_type() == at::kFloat &&
           (width <= 1 || t.stride(1) == 1);
  };
  TORCH_CHECK(fits(hidden, n, size) && fits(inputs, n, 3 * size) && fits(recurrent, n, 3 * size) &&
                  fits(columns, actions, 3 * size),
              "gru_actions_rows: float32 inputs (n, 3H), recurrent (n, 3H), columns (A, 3H), hidden (n, H) with "
              "contiguous rows, got ", inputs.sizes(), ", ", recurrent.sizes(), ", ", columns.sizes(), ", ",
              hidden.sizes());
  auto out = at::empty({n, actions, size}, hidden.options());
  if (out.numel() == 0) return out;
  const Gru g = {inputs.const_data_ptr<float>(), recurrent.const_data_ptr<float>(), columns.const_data_ptr<float>(),
                 hidden.const_data_ptr<float>(), inputs.stride(0),                  recurrent.stride(0),
                 columns.stride(0),              hidden.stride(0),                  actions,
                 size,                           out.mutable_data_ptr<float>()};
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 13) / size);
  at::parallel_for(0, n * actions, grain, [&](int64_t begin, int64_t end) { psdrl::run(Rows{g}, begin, end); });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(psdrl, CPU, m) { m.impl("gru_actions_rows", &gru_actions_rows); }
