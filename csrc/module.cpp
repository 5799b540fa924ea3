// The Python module psdrl._C: importing it registers the operations torch.ops.psdrl.*.

#include <Python.h>
#include <torch/library.h>

TORCH_LIBRARY(psdrl, m) {
  m.def("linear_rows(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
}

extern "C" PyMODINIT_FUNC PyInit__C(void) {
  static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
  return PyModule_Create(&module);
}
