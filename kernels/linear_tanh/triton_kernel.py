"""GEMM with the state term, the action column, the bias and tanh in its epilogue; float32 accumulation.

Two other ways to the same result end in one more pass, `finish_kernel`: the inner dimension in parts, which it adds in
a fixed order (no atomics, same bits always), and a product that cuBLAS has formed.
"""

# Arguments of kernels are pointers and numbers of Triton's own types.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from psdrl.kernels import tune
from psdrl.kernels.triton_math import tanh, tile_of, tile_product

FINISH_R, FINISH_U = 4, 256  # of finish_kernel: 16 bytes per thread of 8 warps, from four rows that share a bias


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


@triton.jit
def part_kernel(
    x_ptr,
    w_ptr,
    part_ptr,
    R,
    U,
    K,
    stride_x,
    stride_w,
    UNIT: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_U: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """part (SPLIT, R, U) of x W^T, of which program_id(1) says which; UNIT as in `kernel`."""
    row_tile, col_tile = tile_of(R, U, BLOCK_R, BLOCK_U, GROUP)
    rows = row_tile * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = col_tile * BLOCK_U + tl.arange(0, BLOCK_U)
    length = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT) * BLOCK_K
    first = tl.program_id(1) * length
    y = tile_product(
        x_ptr, w_ptr, rows, cols, R, U, K, stride_x, stride_w, UNIT, PRECISION, BLOCK_R, BLOCK_U, BLOCK_K,
        first, first + length,
    )  # fmt: skip
    part_ptrs = part_ptr + (tl.program_id(1) * R + rows).to(tl.int64)[:, None] * U + cols[None, :]
    tl.store(part_ptrs, y, (rows < R)[:, None] & (cols < U)[None, :])


@triton.jit
def finish_kernel(
    part_ptr,
    b_ptr,
    s_ptr,
    c_ptr,
    y_ptr,
    R,
    U,
    A,
    stride_s,
    stride_c,
    UNIT: tl.constexpr,
    SPLIT: tl.constexpr,
    TANH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_U: tl.constexpr,
):
    """y (R, U) = tanh(part[0] + part[1] + ... + b + S[row // A] + C[row % A]) for part (SPLIT, R, U), which may be y.

    UNIT divides U and both strides."""
    U = U // UNIT * UNIT
    stride_s = stride_s // UNIT * UNIT
    stride_c = stride_c // UNIT * UNIT
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = tl.program_id(1) * BLOCK_U + tl.arange(0, BLOCK_U)
    inside = (rows < R)[:, None] & (cols < U)[None, :]
    place = rows.to(tl.int64)[:, None] * U + cols[None, :]
    y = tl.load(part_ptr + place, inside, 0.0).to(tl.float32)
    for part in tl.static_range(1, SPLIT):
        y += tl.load(part_ptr + place + part * R.to(tl.int64) * U, inside, 0.0).to(tl.float32)
    if b_ptr is not None:
        y += tl.load(b_ptr + cols, cols < U, 0.0).to(tl.float32)[None, :]
    if s_ptr is not None:
        y += tl.load(s_ptr + (rows // A).to(tl.int64)[:, None] * stride_s + cols[None, :], inside, 0.0).to(tl.float32)
    if c_ptr is not None:
        y += tl.load(c_ptr + (rows % A).to(tl.int64)[:, None] * stride_c + cols[None, :], inside, 0.0).to(tl.float32)
    if TANH:
        y = tanh(y)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), inside)


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
    product = "ieee" if precision == "ieee" else "tf32"

    def finish(part: Tensor, split: int) -> None:
        finish_kernel[(triton.cdiv(rows, FINISH_R), triton.cdiv(units, FINISH_U))](
            part,
            bias,
            state,
            columns,
            y,
            rows,
            units,
            num_actions,
            stride_s,
            stride_c,
            UNIT=out_unit,
            SPLIT=split,
            TANH=tanh,
            BLOCK_R=FINISH_R,
            BLOCK_U=FINISH_U,
            num_warps=8,
        )

    def library() -> None:
        if not tanh:
            torch.mm(x, weight.T, out=y) if bias is None else torch.addmm(bias, x, weight.T, out=y)
            return
        torch.mm(x, weight.T, out=y)
        finish(y, 1)

    def split(tile: tune.Tile) -> None:
        part = x.new_empty(tile.split, rows, units, dtype=torch.float32)
        part_kernel[(triton.cdiv(rows, tile.rows) * triton.cdiv(units, tile.cols), tile.split)](
            x,
            weight,
            part,
            rows,
            units,
            inner,
            x.stride(0),
            weight.stride(0),
            UNIT=unit,
            SPLIT=tile.split,
            PRECISION=product,
            **tile.options(),
        )
        finish(part, tile.split)

    def run(tile: tune.Tile) -> None:
        if tile.split > 1:
            return split(tile)
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
            PRECISION=product,
            **tile.options(),
        )

    tune.run("linear_tanh" if tanh else "linear", x, precision, (rows, units, inner), run, library, parts=True)
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y (r, n) = x (r, k) W^T + b; see `reference`."""
    return _launch(x, weight, bias, None, None, tanh=False)


def linear_tanh(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, state: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """y (r, U); see `reference`."""
    return _launch(x, weight, bias, state, columns, tanh=True)
