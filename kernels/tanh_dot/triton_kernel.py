"""GEMM with tanh and the 1-wide output in its epilogue: the activation (r, U) is never written.

Each program writes one partial sum per row, a second kernel adds them in a fixed order: no atomics, same bits always.
"""

# Arguments of kernels are pointers and numbers of Triton's own types.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from psdrl.kernels import tune
from psdrl.kernels.triton_math import tanh, tile_of, tile_product

BLOCK_SUM = 32  # rows per program of the second kernel: 128 bytes of each tile's row
BLOCK_ROW = 1024  # numbers of a row at once, after cuBLAS


@triton.jit
def kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    v_ptr,
    partial_ptr,
    R,
    U,
    K,
    stride_x,
    stride_w,
    UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_U: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """partial (tiles of U, R) = the tile's part of tanh(x W^T + b) v."""
    row_tile, col_tile = tile_of(R, U, BLOCK_R, BLOCK_U, GROUP)
    rows = row_tile * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = col_tile * BLOCK_U + tl.arange(0, BLOCK_U)
    y = tile_product(x_ptr, w_ptr, rows, cols, R, U, K, stride_x, stride_w, UNIT, PRECISION, BLOCK_R, BLOCK_U, BLOCK_K)
    y = tanh(y + tl.load(b_ptr + cols, cols < U, 0.0).to(tl.float32)[None, :])
    v = tl.load(v_ptr + cols, cols < U, 0.0).to(tl.float32)[None, :]
    y = tl.where((cols < U)[None, :], y * v, 0.0)  # an infinite x makes NaN of the masked weights: infinity * 0
    tl.store(partial_ptr + col_tile.to(tl.int64) * R + rows, tl.sum(y, 1), rows < R)


@triton.jit
def sum_kernel(partial_ptr, c_ptr, y_ptr, R, TILES, BLOCK_SUM: tl.constexpr, BLOCK_TILES: tl.constexpr):
    """y (R,) = c + the sum of partial (TILES, R) over its tiles: all of them are in flight at once."""
    rows = tl.program_id(0) * BLOCK_SUM + tl.arange(0, BLOCK_SUM)
    tiles = tl.arange(0, BLOCK_TILES)
    partial_ptrs = partial_ptr + tiles.to(tl.int64)[:, None] * R + rows[None, :]
    total = tl.sum(tl.load(partial_ptrs, (tiles < TILES)[:, None] & (rows < R)[None, :], 0.0), 0)
    total += tl.load(c_ptr).to(tl.float32)
    tl.store(y_ptr + rows, total.to(y_ptr.dtype.element_ty), rows < R)


@triton.jit
def row_kernel(x_ptr, b_ptr, v_ptr, c_ptr, y_ptr, R, U, UNIT: tl.constexpr, BLOCK_U: tl.constexpr):
    """y (R,) = tanh(x + b) v + c for a product x (R, U) that cuBLAS has formed; one row per program."""
    U = U // UNIT * UNIT
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_U)
    total = tl.zeros((BLOCK_U,), tl.float32)
    x_ptr += row.to(tl.int64) * U
    for first in range(0, U, BLOCK_U):
        inside = cols < U - first
        y = tl.load(x_ptr + first + cols, inside, 0.0).to(tl.float32)
        y = tanh(y + tl.load(b_ptr + first + cols, inside, 0.0).to(tl.float32))
        total += y * tl.load(v_ptr + first + cols, inside, 0.0).to(tl.float32)
    y = tl.sum(total, 0) + tl.load(c_ptr).to(tl.float32)
    tl.store(y_ptr + row, y.to(y_ptr.dtype.element_ty))


def tanh_dot(x: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Tensor:
    """y (r,); see `reference`."""
    tune.same_dtype(x, weight, bias, out_weight, out_bias)
    (rows, inner), units = x.shape, len(weight)
    if weight.shape[1] != inner or out_weight.shape != (1, units):
        raise ValueError(
            f"x {tuple(x.shape)}, weight {tuple(weight.shape)} and out_weight {tuple(out_weight.shape)} do not match"
        )
    y = x.new_empty(rows)
    if rows == 0:
        return y
    x, weight, bias, out_weight = map(tune.unit_columns, (x, weight, bias, out_weight))
    unit = tune.common_unit(inner, x.stride(0), weight.stride(0))
    precision = tune.precision(x.dtype)

    def run(tile: tune.Tile) -> None:
        col_tiles = triton.cdiv(units, tile.cols)
        partial = x.new_empty(col_tiles, rows, dtype=torch.float32)
        kernel[(triton.cdiv(rows, tile.rows) * col_tiles,)](
            x,
            weight,
            bias,
            out_weight,
            partial,
            rows,
            units,
            inner,
            x.stride(0),
            weight.stride(0),
            UNIT=unit,
            PRECISION="ieee" if precision == "ieee" else "tf32",
            **tile.options(),
        )
        sum_kernel[(triton.cdiv(rows, BLOCK_SUM),)](
            partial,
            out_bias,
            y,
            rows,
            col_tiles,
            BLOCK_SUM=BLOCK_SUM,
            BLOCK_TILES=triton.next_power_of_2(col_tiles),
            num_warps=4,
        )

    def library() -> None:
        product = torch.mm(x, weight.T)
        row_kernel[(rows,)](
            product,
            bias,
            out_weight,
            out_bias,
            y,
            rows,
            units,
            UNIT=tune.common_unit(units),
            BLOCK_U=min(BLOCK_ROW, triton.next_power_of_2(units)),
            num_warps=4,
        )

    tune.run("tanh_dot", x, precision, (rows, units, inner), run, library)
    return y
