// Triangular systems and Cholesky factors by products in registers; see triangular.cpp.
#pragma once

#include <ATen/core/Tensor.h>

namespace psdrl {

// Rows (n, k) become the solutions of L x = row, or (back) of L^T x = row, for a lower factor L (k, k).
void solve_rows(const at::Tensor& factor, at::Tensor& rows, bool back);

// The column-major Cholesky factor of a contiguous matrix (k, k), whose lower triangle is used up; 0, or the order of
// the first leading minor that is not positive.
int64_t cholesky(at::Tensor& matrix, at::Tensor& factor);

}  // namespace psdrl
