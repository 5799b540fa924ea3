"""The kernel to compile ahead of time; see `psdrl.kernels.aot`."""

from collections.abc import Iterator
from typing import Any

from psdrl.kernels.aot import PLANNING, A, Launch, Z, launch
from psdrl.kernels.greedy.triton_kernel import BLOCK_N, kernel

OUTPUTS = {"returns": "returns_ptr", "best_return": "best_ptr", "greedy_action": "action_ptr"}


def fixed(dtype: str) -> Iterator[Launch]:
    """Each output alone."""
    for name, output in OUTPUTS.items():
        lots = name == "greedy_action"
        results: dict[str, Any] = dict.fromkeys(OUTPUTS.values()) | {output: "*i64" if lots else dtype}
        yield launch(
            name, kernel, (BLOCK_N, 8), **results, r_ptr=dtype, omega_ptr=dtype, v_ptr=dtype,
            lots_ptr="*fp32" if lots else None, N=PLANNING // A, A=A,
            stride_r=A * (Z + 1), step_r=Z + 1, stride_omega=A, step_omega=1, stride_v=A, step_v=1,
            stride_lots=A if lots else 0, step_lots=1 if lots else 0, discount=0.99, threshold=0.5,
            BLOCK_N=BLOCK_N, BLOCK_A=8,
        )  # fmt: skip
