"""The kernel to compile ahead of time; see `psdrl.kernels.aot`."""

import math
from collections.abc import Iterator

from psdrl.kernels.aot import TRAINING, Launch, U, launch
from psdrl.kernels.tune import common_unit
from psdrl.kernels.weight_step.triton_kernel import TILES, kernel


def fixed(dtype: str) -> Iterator[Launch]:
    """A hidden layer, in ieee and tf32 or in bf16."""
    for precision in ("bf16",) if dtype == "*bf16" else ("ieee", "tf32"):
        tile = TILES[precision]
        blocks = {name: value for name, value in tile.options().items() if name.isupper()}
        yield launch(
            f"weight_step_ {precision}", kernel, tuple(tile), tile.warps, delta_ptr=dtype, x_ptr=dtype, w_ptr="*fp32",
            m_ptr="*fp32", v_ptr="*fp32", step_ptr="*fp32", N=TRAINING, U=U, K=U, stride_delta=U, stride_x=U,
            stride_w=U, rate=1e-4, eps=1e-8, BETA1=0.9, BETA2=0.999, LOG1=math.log(0.9), LOG2=math.log(0.999),
            UNIT=common_unit(U), PRECISION="ieee" if precision == "ieee" else "tf32", **blocks,
        )  # fmt: skip
