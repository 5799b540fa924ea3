"""Weight gradient with Adam in its epilogue: the gradient is never written.

24 bytes per parameter (weight and both averages, read and written) instead of 32, and the product, whose inner
dimension is the 125 to 500 rows of a batch, hides behind them.
"""

# Arguments of kernels are pointers and numbers of Triton's own types.
# mypy: disable-error-code="no-untyped-def"

import math

import triton
import triton.language as tl
from torch import Tensor

from psdrl.kernels import tune
from psdrl.kernels.triton_math import tile_of

# Memory bounds it: small tiles, so that several programs per multiprocessor load while others multiply.
TILES = {
    "ieee": tune.Tile(64, 64, 16, 8, 2),
    "tf32": tune.Tile(64, 64, 32, 8, 2),
    "bf16": tune.Tile(64, 64, 32, 8, 2),
}


@triton.jit
def kernel(
    delta_ptr,
    x_ptr,
    w_ptr,
    m_ptr,
    v_ptr,
    step_ptr,
    N,
    U,
    K,
    stride_delta,
    stride_x,
    stride_w,
    rate,
    eps,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG1: tl.constexpr,
    LOG2: tl.constexpr,
    UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_U: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One (BLOCK_R, BLOCK_U) tile of w (U, K), m and v, which share their stride; BLOCK_K rows of a batch at once.

    LOG1 and LOG2 are the logarithms of the betas. UNIT divides U, K and the strides (see tile_product).
    """
    U = U // UNIT * UNIT
    K = K // UNIT * UNIT
    stride_delta = stride_delta // UNIT * UNIT
    stride_x = stride_x // UNIT * UNIT
    stride_w = stride_w // UNIT * UNIT
    row_tile, col_tile = tile_of(U, K, BLOCK_R, BLOCK_U, GROUP)
    rows = row_tile * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = col_tile * BLOCK_U + tl.arange(0, BLOCK_U)
    inner = tl.arange(0, BLOCK_K)
    delta_ptrs = delta_ptr + inner.to(tl.int64)[:, None] * stride_delta + rows[None, :]
    x_ptrs = x_ptr + inner.to(tl.int64)[:, None] * stride_x + cols[None, :]
    in_rows = (rows < U)[None, :]
    in_cols = (cols < K)[None, :]
    g = tl.zeros((BLOCK_R, BLOCK_U), tl.float32)
    for n in range(0, N, BLOCK_K):
        valid = (inner < N - n)[:, None]
        delta = tl.load(delta_ptrs, valid & in_rows, 0.0)
        x = tl.load(x_ptrs, valid & in_cols, 0.0)
        g = tl.dot(tl.trans(delta), x, g, input_precision=PRECISION)
        delta_ptrs += BLOCK_K * stride_delta
        x_ptrs += BLOCK_K * stride_x
    # In float64: 1 - 0.999^t in float32 would be off by 6e-5 at the first step.
    t = tl.load(step_ptr).to(tl.float64)
    first = (1.0 - tl.exp(t * tl.full((), LOG1, tl.float64))).to(tl.float32)
    second = tl.sqrt((1.0 - tl.exp(t * tl.full((), LOG2, tl.float64))).to(tl.float32))
    inside = (rows < U)[:, None] & (cols < K)[None, :]
    place = rows.to(tl.int64)[:, None] * stride_w + cols[None, :]
    m = BETA1 * tl.load(m_ptr + place, inside, 0.0) + (1 - BETA1) * g
    v = BETA2 * tl.load(v_ptr + place, inside, 0.0) + (1 - BETA2) * g * g
    w = tl.load(w_ptr + place, inside, 0.0) - rate / first * m / (tl.sqrt_rn(v) / second + eps)
    tl.store(m_ptr + place, m, inside)
    tl.store(v_ptr + place, v, inside)
    tl.store(w_ptr + place, w, inside)


def weight_step_(
    weight: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    delta: Tensor,
    x: Tensor,
    rate: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """See `reference`; weight, exp_avg and exp_avg_sq in float32 with the same strides, delta and x in one dtype."""
    tune.same_dtype(delta, x)
    tune.same_dtype(weight, exp_avg, exp_avg_sq)
    (units, inner), rows = weight.shape, len(x)
    if delta.shape != (rows, units) or x.shape[1] != inner:
        raise ValueError(f"delta {tuple(delta.shape)} and x {tuple(x.shape)} do not make {tuple(weight.shape)}")
    strides = {tensor.stride() for tensor in (weight, exp_avg, exp_avg_sq)}
    if len(strides) > 1 or weight.stride(1) != 1:
        raise ValueError(f"weight and Adam's averages must have equal strides and adjacent columns, not {strides}")
    delta, x = tune.unit_columns(delta), tune.unit_columns(x)
    precision = tune.precision(x.dtype)
    tile = TILES[precision]
    with tune.on(weight):
        kernel[(triton.cdiv(units, tile.rows) * triton.cdiv(inner, tile.cols),)](
            delta,
            x,
            weight,
            exp_avg,
            exp_avg_sq,
            step,
            rows,
            units,
            inner,
            delta.stride(0),
            x.stride(0),
            weight.stride(0),
            float(rate),
            float(eps),
            BETA1=betas[0],
            BETA2=betas[1],
            LOG1=math.log(betas[0]),
            LOG2=math.log(betas[1]),
            UNIT=tune.common_unit(units, inner, delta.stride(0), x.stride(0), weight.stride(0)),
            PRECISION="ieee" if precision == "ieee" else "tf32",
            **tile.options(),
        )
