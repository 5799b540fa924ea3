"""Layers to compile ahead of time; see `psdrl.kernels.aot`."""

from collections.abc import Iterator
from typing import Any

from psdrl.kernels.aot import A, H, Launch, U, Z, launch
from psdrl.kernels.linear_tanh.triton_kernel import kernel
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
