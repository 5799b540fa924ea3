"""What the Triton kernels share: safe activations and the tile product. Imported only where Triton is."""

# Arguments of kernels are pointers and numbers of Triton's own types.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x) in float32: e^-x may overflow to infinity, which gives 0; NaN stays NaN."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """tanh in float32, relative error below 9e-8 (float32 rounds at 6e-8), without overflow: +-1 at +-infinity.

    Below 1 the formula with e^2|x| cancels (relative error 1e-3 at 1e-4), so there a polynomial serves: a minimax
    fit of (tanh(x)/x - 1)/x^2 in x^2 on [0, 1], relative error 5e-9.
    """
    size = tl.abs(x)
    square = x * x
    p = -0.00035845182719640434
    p = p * square + 0.0023013639729470015
    p = p * square - 0.007946105673909187
    p = p * square + 0.021486656740307808
    p = p * square - 0.05387980118393898
    p = p * square + 0.13332344591617584
    p = p * square - 0.33333295583724976
    small = x + x * (square * p)
    large = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 1.0, small, tl.where(x < 0.0, -large, large))


@triton.jit
def tile_of(R, U, BLOCK_R: tl.constexpr, BLOCK_U: tl.constexpr, GROUP: tl.constexpr):
    """Row and column tile of this program. GROUP row tiles share their weight tiles in L2 before the next columns."""
    program = tl.program_id(0)
    row_tiles = tl.cdiv(R, BLOCK_R)
    col_tiles = tl.cdiv(U, BLOCK_U)
    group = program // (GROUP * col_tiles)
    first = group * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    within = program % (GROUP * col_tiles)
    return first + within % height, within // height


@triton.jit
def tile_product(
    x_ptr,
    w_ptr,
    rows,
    cols,
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
    first=0,
    last=None,
):
    """x[rows] W[cols]^T (BLOCK_R, BLOCK_U) in float32 for x (R, K) and W (U, K); rows and cols beyond R and U give 0.
    With `last`, of the inner numbers from `first`, a multiple of BLOCK_K, to before `last` only.

    UNIT divides K and both strides. Saying so lets the compiler load 16 bytes at once although 756 and 2292 are no
    multiples of 16, the only divisor it looks for itself: without it, 4 bytes at once and, in bfloat16, no cp.async.
    """
    if last is not None:
        K = tl.minimum(K, last)
    K = K // UNIT * UNIT
    stride_x = stride_x // UNIT * UNIT
    stride_w = stride_w // UNIT * UNIT
    inner = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * stride_x + first + inner[None, :]
    w_ptrs = w_ptr + cols.to(tl.int64)[None, :] * stride_w + first + inner[:, None]
    in_rows = (rows < R)[:, None]
    in_cols = (cols < U)[None, :]
    acc = tl.zeros((BLOCK_R, BLOCK_U), tl.float32)
    for k in range(first, K, BLOCK_K):
        x = tl.load(x_ptrs, in_rows & (inner[None, :] < K - k), 0.0)
        w = tl.load(w_ptrs, in_cols & (inner[:, None] < K - k), 0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    return acc
