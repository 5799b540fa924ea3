"""Layers to compile ahead of time; see `psdrl.kernels.aot`."""

from collections.abc import Iterator
from typing import Any

from psdrl.kernels.aot import PLANNING, TRAINING, A, H, Launch, U, Z, launch
from psdrl.kernels.linear_tanh.triton_kernel import FINISH_R, FINISH_U, finish_kernel, kernel, part_kernel
from psdrl.kernels.tune import common_unit


def tiled(dtype: str, rows: int) -> Iterator[Launch]:
    """The first, a hidden and the output layer of the lookahead."""

    def layer(name: str, units: int, inner: int, terms: tuple[Any, Any, Any], tanh: bool) -> Launch:
        bias, state, columns = terms
        return launch(
            name, kernel, x_ptr=dtype, w_ptr=dtype, b_ptr=bias, s_ptr=state, c_ptr=columns, y_ptr=dtype, R=rows,
            U=units, K=inner, A=A, stride_x=inner, stride_w=inner, stride_s=3 * H + U if state else 0,
            stride_c=U if columns else 0, stride_y=units, UNIT=common_unit(inner), OUT_UNIT=common_unit(units),
            TANH=tanh,
        )  # fmt: skip

    yield layer("first layer", U, H, (None, dtype, dtype), True)
    yield layer("hidden layer", U, U, (dtype, None, None), True)
    yield layer("output layer", Z + 1, U, (dtype, None, None), False)


def parts(dtype: str, split: int) -> Iterator[Launch]:
    """A hidden layer of a gradient step, its inner dimension in parts."""
    yield launch(
        "parts of a layer", part_kernel, x_ptr=dtype, w_ptr=dtype, part_ptr="*fp32", R=TRAINING, U=U, K=U, stride_x=U,
        stride_w=U, UNIT=common_unit(U), SPLIT=split,
    )  # fmt: skip


def fixed(dtype: str) -> Iterator[Launch]:
    """The last pass: after parts of a hidden layer, and of the first layer after cuBLAS."""

    def finish(name: str, rows: int, part: str, terms: tuple[Any, Any, Any], split: int) -> Launch:
        bias, state, columns = terms
        return launch(
            name, finish_kernel, (FINISH_R, FINISH_U), 8, part_ptr=part, b_ptr=bias, s_ptr=state, c_ptr=columns,
            y_ptr=dtype, R=rows, U=U, A=A, stride_s=3 * H + U if state else 0, stride_c=U if columns else 0,
            UNIT=common_unit(U), SPLIT=split, TANH=True, BLOCK_R=FINISH_R, BLOCK_U=FINISH_U,
        )  # fmt: skip

    yield finish("sum of parts", TRAINING, "*fp32", (dtype, None, None), 3)
    yield finish("after cuBLAS", PLANNING, dtype, (None, dtype, dtype), 1)
