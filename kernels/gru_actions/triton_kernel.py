"""All actions in one pass: a state's projections are read once, h' is written once per action."""

# Arguments of kernels are pointers and numbers of Triton's own types.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from psdrl.kernels import tune
from psdrl.kernels.triton_math import sigmoid, tanh

# 128 float32 of a row are one 512-byte segment per warp. With one state 6 programs share 756 units; with thousands
# two states per program keep 7 loads of 16 bytes per thread in flight.
BLOCK_N, BLOCK_H, WARPS = 2, 128, 2


@triton.jit
def kernel(
    i_ptr,
    h_ptr,
    c_ptr,
    hidden_ptr,
    y_ptr,
    N,
    A,
    H,
    stride_i,
    stride_h,
    stride_c,
    stride_hidden,
    UNIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """h' of BLOCK_N states and BLOCK_H units for all actions. UNIT divides H and the strides (see tile_product)."""
    H = H // UNIT * UNIT
    stride_i = stride_i // UNIT * UNIT
    stride_h = stride_h // UNIT * UNIT
    stride_c = stride_c // UNIT * UNIT
    stride_hidden = stride_hidden // UNIT * UNIT
    rows = (tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[:, None]
    units = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H))[None, :]
    inside = (rows < N) & (units < H)
    i_ptrs = i_ptr + rows * stride_i + units
    h_ptrs = h_ptr + rows * stride_h + units
    reset_in = tl.load(i_ptrs, inside, 0.0).to(tl.float32) + tl.load(h_ptrs, inside, 0.0).to(tl.float32)
    update_in = tl.load(i_ptrs + H, inside, 0.0).to(tl.float32) + tl.load(h_ptrs + H, inside, 0.0).to(tl.float32)
    new_in = tl.load(i_ptrs + 2 * H, inside, 0.0).to(tl.float32)
    new_recurrent = tl.load(h_ptrs + 2 * H, inside, 0.0).to(tl.float32)
    hidden = tl.load(hidden_ptr + rows * stride_hidden + units, inside, 0.0).to(tl.float32)
    y_ptrs = y_ptr + rows * A * H + units
    c_ptrs = c_ptr + units
    for _ in range(A):
        reset = sigmoid(reset_in + tl.load(c_ptrs, units < H, 0.0).to(tl.float32))
        update = sigmoid(update_in + tl.load(c_ptrs + H, units < H, 0.0).to(tl.float32))
        new = tanh(new_in + tl.load(c_ptrs + 2 * H, units < H, 0.0).to(tl.float32) + reset * new_recurrent)
        tl.store(y_ptrs, ((1.0 - update) * new + update * hidden).to(y_ptr.dtype.element_ty), inside)
        y_ptrs += H
        c_ptrs += stride_c


def gru_actions(inputs: Tensor, recurrent: Tensor, columns: Tensor, hidden: Tensor) -> Tensor:
    """h' (n, A, H); see `reference`."""
    tune.same_dtype(inputs, recurrent, columns, hidden)
    (count, size), num_actions = hidden.shape, len(columns)
    if inputs.shape != (count, 3 * size) or recurrent.shape != inputs.shape or columns.shape[1] != 3 * size:
        raise ValueError(
            f"inputs {tuple(inputs.shape)}, recurrent {tuple(recurrent.shape)}, columns {tuple(columns.shape)} and "
            f"hidden {tuple(hidden.shape)} do not match"
        )
    y = inputs.new_empty(count, num_actions, size)
    if y.numel() == 0:
        return y
    inputs, recurrent, columns, hidden = map(tune.unit_columns, (inputs, recurrent, columns, hidden))
    strides = [tensor.stride(0) for tensor in (inputs, recurrent, columns, hidden)]
    grid = (triton.cdiv(count, BLOCK_N), triton.cdiv(size, BLOCK_H))
    with tune.on(inputs):
        kernel[grid](
            inputs,
            recurrent,
            columns,
            hidden,
            y,
            count,
            num_actions,
            size,
            *strides,
            UNIT=tune.common_unit(size, *strides),
            BLOCK_N=BLOCK_N,
            BLOCK_H=BLOCK_H,
            num_warps=WARPS,
        )
    return y
