"""Kernels to compile ahead of time; see `psdrl.kernels.aot`."""

from collections.abc import Iterator

from psdrl.kernels.aot import PLANNING, Launch, U, launch
from psdrl.kernels.tanh_dot.triton_kernel import BLOCK_ROW, BLOCK_SUM, kernel, row_kernel, sum_kernel
from psdrl.kernels.tune import common_unit


def tiled(dtype: str, rows: int) -> Iterator[Launch]:
    """The value network's last hidden layer."""
    yield launch(
        "tanh_dot", kernel, x_ptr=dtype, w_ptr=dtype, b_ptr=dtype, v_ptr=dtype, partial_ptr="*fp32", R=rows, U=U, K=U,
        stride_x=U, stride_w=U, UNIT=common_unit(U),
    )  # fmt: skip


def fixed(dtype: str) -> Iterator[Launch]:
    """The sum of 36 tiles' parts; the same after cuBLAS."""
    yield launch(
        "sum of partials", sum_kernel, (BLOCK_SUM,), partial_ptr="*fp32", c_ptr=dtype, y_ptr=dtype, R=PLANNING,
        TILES=36, BLOCK_SUM=BLOCK_SUM, BLOCK_TILES=64,
    )  # fmt: skip
    yield launch(
        "tanh_dot after cuBLAS", row_kernel, (BLOCK_ROW,), x_ptr=dtype, b_ptr=dtype, v_ptr=dtype, c_ptr=dtype,
        y_ptr=dtype, R=PLANNING, U=U, UNIT=common_unit(U), BLOCK_U=BLOCK_ROW,
    )  # fmt: skip
