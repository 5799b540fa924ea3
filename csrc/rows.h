// What the CPU kernels for a handful of rows share.
#pragma once

#include <cstdint>

namespace psdrl {

// y (count) <- tanh(y), as in bias_tanh_.
void tanh_in_place(float* y, int64_t count);

}  // namespace psdrl
