"""The kernel to compile ahead of time; see `psdrl.kernels.aot`."""

from collections.abc import Iterator

from psdrl.kernels.aot import PLANNING, A, H, Launch, U, launch
from psdrl.kernels.gru_actions.triton_kernel import BLOCK_H, BLOCK_N, WARPS, kernel
from psdrl.kernels.tune import common_unit


def fixed(dtype: str) -> Iterator[Launch]:
    """Planning's states, whose projections lie beside those of the first layer."""
    yield launch(
        "gru_actions", kernel, (BLOCK_N, BLOCK_H), WARPS, i_ptr=dtype, h_ptr=dtype, c_ptr=dtype, hidden_ptr=dtype,
        y_ptr=dtype, N=PLANNING // A, A=A, H=H, stride_i=3 * H + U, stride_h=3 * H, stride_c=3 * H, stride_hidden=H,
        UNIT=common_unit(H, 3 * H + U), BLOCK_N=BLOCK_N, BLOCK_H=BLOCK_H,
    )  # fmt: skip
