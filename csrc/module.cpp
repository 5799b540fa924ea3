// The Python module psdrl._C: importing it registers the operations torch.ops.psdrl.*.

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <Python.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "isa.h"

namespace {

// k features, o outputs, g groups of outputs with equal variances, S samples, n rows. Matrices of the posterior are
// float64. Of symmetric matrices only the lower triangle is read; what is above it is unspecified.
TORCH_LIBRARY(psdrl, m) {
  // Linear layer for a handful of rows: y (r, n) = x (r, k) weight (n, k)^T + bias (n).
  m.def("linear_rows(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  // A network of tanh layers and a linear output for a handful of rows: x (r, k) -> (r, n) of the last layer.
  m.def("tanh_net_rows(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor");
  // n Adam steps of `networks` networks of tanh layers with one linear output, on the mean of weights (V(states) -
  // targets)^2: states (n, B, D), targets and weights (n, B); of each network in turn the weight and bias of each layer,
  // with Adam's moments and step counts. The losses (n, networks) before each step.
  m.def(
      "tanh_net_steps_(Tensor states, Tensor targets, Tensor? weights, Tensor(a!)[] parameters, Tensor(b!)[] averages, "
      "Tensor(c!)[] squares, Tensor(d!)[] steps, int networks, float rate, float beta1, float beta2, float eps) -> "
      "Tensor");
  // Adam steps of a world model (GRU, feature network, output layer; see csrc/window_steps.cpp), one for each window of
  // truncated backpropagation: latents (L + 1, B, Z), actions, rewards and weights (L, B), h_0 = 0. The GRU's four
  // parameters, unless it is not recurrent, then each layer's. The losses (windows,) before each step.
  m.def(
      "window_steps_(Tensor latents, Tensor actions, Tensor rewards, Tensor? weights, Tensor(a!)[] parameters, "
      "Tensor(b!)[] averages, Tensor(c!)[] squares, Tensor(d!)[] steps, int hidden, bool recurrent, bool bends, "
      "bool with_inputs, int window, Tensor reward_weight, bool mean, float rate, float beta1, float beta2, float eps) "
      "-> Tensor");
  // n Adam steps of a convolutional autoencoder whose first kernel tiles a frame: frames (n, B, c, s, s) uint8 as
  // (x / 255 - mean) contrast; weight and bias of each layer of the encoder, then of the decoder. The losses (n,) before
  // each step: squared errors, summed up (or averaged, `mean_loss`) over pixels and averaged over B.
  m.def(
      "autoencoder_steps_(Tensor frames, Tensor mean, Tensor contrast, Tensor(a!)[] parameters, Tensor(b!)[] averages, "
      "Tensor(c!)[] squares, Tensor(d!)[] steps, int[] strides, bool mean_loss, float rate, float beta1, float beta2, "
      "float eps) -> Tensor");
  // The factored GRU: inputs and recurrent (n, 3H), columns (A, 3H), hidden (n, H) -> (n, A, H).
  m.def("gru_actions_rows(Tensor inputs, Tensor recurrent, Tensor columns, Tensor hidden) -> Tensor");
  // y (r, U) <- tanh(y + bias + state[row / A] + columns[row % A]).
  m.def("bias_tanh_(Tensor(a!) y, Tensor? bias=None, Tensor? state=None, Tensor? columns=None) -> ()");
  // Tanh layers on the rows x (n A, k) of n states with A actions each: tanh(x weight^T + state[row / A] +
  // columns[row % A]), then tanh layers; the last one (n A, U), or if it `sums_up` the numbers (n A,) of an output layer
  // of one unit.
  m.def(
      "tanh_actions(Tensor x, Tensor weight, Tensor state, Tensor columns, Tensor[] weights, Tensor[] biases, "
      "bool sums_up) -> Tensor");
  // Latent states (n, Z) of frames (n, 1, s, s) uint8: (x / 255 - mean) contrast through the first convolution, whose
  // kernel tiles a frame, then through the others, ReLU after each; mean (s, s), weights (o, c, k, k), biases (o,).
  m.def(
      "encode_tiles(Tensor frames, Tensor mean, Tensor contrast, Tensor[] weights, Tensor[] biases, int[] strides) -> "
      "Tensor");
  // gram (k, k) += weight features^T features, lower triangle; cross (k, o) += weight features^T targets.
  m.def(
      "gram_accumulate_(Tensor(a!) gram, Tensor(b!) cross, Tensor features, Tensor targets, float weight=1.0) -> ()");
  // The same on a CPU without BLAS.
  m.def("gram_registers_(Tensor(a!) gram, Tensor(b!) cross, Tensor features, Tensor targets, float weight=1.0) -> ()");
  // On a CPU without BLAS: rows (n, k) become the solutions of L x = row, or (back) of L^T x = row.
  m.def("solve_rows_(Tensor factor, Tensor(a!) rows, bool back) -> ()");
  // Lower Cholesky factors (g, k, k) of I / prior + gram / noise + jitter I; jitter (g,); info (g,) int32: 0, or -1
  // for input that is not finite, or the order of the leading minor that stayed indefinite after all attempts.
  // registers: on a CPU by products in registers instead of LAPACK; so in the two below.
  // On CUDA more than one attempt reads info between attempts (a synchronisation); one attempt can be captured.
  m.def(
      "posterior_factor(Tensor gram, Tensor prior_variances, Tensor noise_variances, int attempts=16, "
      "bool registers=False) -> "
      "(Tensor factors, Tensor jitter, Tensor info)");
  // mean (o, k): rows mu_j of Eq. 4; group: outputs per factor, in order; noise_variances (g,).
  m.def("posterior_mean(Tensor factors, Tensor cross, int[] group, Tensor noise_variances, "
      "bool registers=False) -> Tensor");
  // (S, o, k): mu_j + L^-T eps; eps (S, o, k) given, or drawn from the generator.
  m.def(
      "posterior_sample(Tensor factors, Tensor mean, int[] group, Tensor? eps=None, int samples=1, "
      "Generator? generator=None, bool registers=False) -> Tensor");
}

bool differentiable(const c10::IValue& value) {
  if (value.isTensorList()) {
    const auto list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(), [](const at::Tensor& tensor) { return tensor.requires_grad(); });
  }
  return value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad();
}

// The posterior is closed form and no gradient flows through it: better an error here than a wrong gradient later.
void refuse_gradients(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (at::GradMode::is_enabled()) {
    for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
      TORCH_CHECK(!differentiable(value), op.schema().name(),
                  " has no gradient: call it under torch.no_grad() or with detached tensors");
    }
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(psdrl, Autograd, m) {
  for (const char* name : {"linear_rows", "tanh_net_rows", "tanh_net_steps_", "window_steps_", "autoencoder_steps_",
                           "tanh_actions", "gru_actions_rows", "bias_tanh_", "encode_tiles", "gram_accumulate_", "gram_registers_",
                           "solve_rows_", "posterior_factor", "posterior_mean", "posterior_sample"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_gradients>());
  }
}

}  // namespace

static PyObject* instruction_set(PyObject*, PyObject*) { return PyUnicode_FromString(psdrl::isa_name()); }

// Threads that at::parallel_for has here: one if the extension was compiled without OpenMP, whatever torch has.
static PyObject* threads(PyObject*, PyObject*) {
  const int64_t most = at::get_num_threads();
  std::vector<int> seen(most);
  at::parallel_for(0, most, 1, [&](int64_t begin, int64_t) { seen[begin] = 1; });  // each has a part of its own
  return PyLong_FromLong(std::count(seen.begin(), seen.end(), 1));
}

extern "C" PyMODINIT_FUNC PyInit__C(void) {
  static PyMethodDef methods[] = {
      {"instruction_set", instruction_set, METH_NOARGS, "Of the CPU kernels: avx512, avx2 or portable."},
      {"threads", threads, METH_NOARGS, "Threads that share the work of a kernel."},
      {nullptr, nullptr, 0, nullptr},
  };
  static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
  return PyModule_Create(&module);
}
