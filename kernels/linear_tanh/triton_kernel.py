"""GEMM with the state term, the action column, the bias and tanh in its epilogue; float32 accumulation."""

# Arguments of kernels are pointers and numbers of Triton's own types.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from psdrl.kernels import tune
from psdrl.kernels.triton_math import tanh, tile_of, tile_product


@triton.jit
def kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    s_ptr,
    c_ptr,
    y_ptr,
    R,
    U,
    K,
    A,
    stride_x,
    stride_w,
    stride_s,
    stride_c,
    stride_y,
    UNIT: tl.constexpr,
    OUT_UNIT: tl.constexpr,
    TANH: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_U: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One (BLOCK_R, BLOCK_U) tile of y; b_ptr, s_ptr and c_ptr may be None.

    UNIT divides K and the strides of x and W, OUT_UNIT U and the strides of S, C and y (see tile_product).
    """
    U = U // OUT_UNIT * OUT_UNIT
    stride_s = stride_s // OUT_UNIT * OUT_UNIT
    stride_c = stride_c // OUT_UNIT * OUT_UNIT
    stride_y = stride_y // OUT_UNIT * OUT_UNIT
    row_tile, col_tile = tile_of(R, U, BLOCK_R, BLOCK_U, GROUP)
    rows = row_tile * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = col_tile * BLOCK_U + tl.arange(0, BLOCK_U)
    y = tile_product(x_ptr, w_ptr, rows, cols, R, U, K, stride_x, stride_w, UNIT, PRECISION, BLOCK_R, BLOCK_U, BLOCK_K)
    inside = (rows < R)[:, None] & (cols < U)[None, :]
    if b_ptr is not None:
        y += tl.load(b_ptr + cols, cols < U, 0.0).to(tl.float32)[None, :]
    if s_ptr is not None:
        s_ptrs = s_ptr + (rows // A).to(tl.int64)[:, None] * stride_s + cols[None, :]
        y += tl.load(s_ptrs, inside, 0.0).to(tl.float32)
    if c_ptr is not None:
        y += tl.load(c_ptr + (rows % A).to(tl.int64)[:, None] * stride_c + cols[None, :], inside, 0.0).to(tl.float32)
    if TANH:
        y = tanh(y)
    y_ptrs = y_ptr + rows.to(tl.int64)[:, None] * stride_y + cols[None, :]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), inside)


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, columns: Tensor | None, tanh: bool
) -> Tensor:
    tune.same_dtype(x, weight, bias, state, columns)
    (rows, inner), units = x.shape, len(weight)
    if weight.shape[1] != inner:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} do not match")
    num_actions = len(columns) if columns is not None else rows // max(1, len(state)) if state is not None else 1
    if (state is not None and len(state) * num_actions != rows) or (columns is not None and rows % num_actions):
        raise ValueError(f"{rows} rows are not |A| = {num_actions} rows per state")
    y = x.new_empty(rows, units)
    if y.numel() == 0:
        return y
    x, weight = tune.unit_columns(x), tune.unit_columns(weight)
    bias, state, columns = (None if t is None else tune.unit_columns(t) for t in (bias, state, columns))
    stride_s = state.stride(0) if state is not None else 0
    stride_c = columns.stride(0) if columns is not None else 0
    unit = tune.common_unit(inner, x.stride(0), weight.stride(0))
    out_unit = tune.common_unit(units, stride_s, stride_c)
    precision = tune.precision(x.dtype)

    def run(tile: tune.Tile) -> None:
        kernel[(triton.cdiv(rows, tile.rows) * triton.cdiv(units, tile.cols),)](
            x,
            weight,
            bias,
            state,
            columns,
            y,
            rows,
            units,
            inner,
            num_actions,
            x.stride(0),
            weight.stride(0),
            stride_s,
            stride_c,
            units,
            UNIT=unit,
            OUT_UNIT=out_unit,
            TANH=tanh,
            PRECISION="ieee" if precision == "ieee" else "tf32",
            **tile.options(),
        )

    tune.run("linear_tanh", x, precision, (rows, units, inner), run)
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y (r, n) = x (r, k) W^T + b; see `reference`."""
    return _launch(x, weight, bias, None, None, tanh=False)


def linear_tanh(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, state: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """y (r, U); see `reference`."""
    return _launch(x, weight, bias, state, columns, tanh=True)
