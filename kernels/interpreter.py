"""Two corrections to the interpreter of Triton 3.7, which runs the kernels on the CPU in tests.

Its bfloat16 numbers are 16-bit integers: a product multiplies these integers, and a conversion from float32 cuts bits
off. A GPU multiplies the numbers and rounds to the nearest (cvt.rn in the PTX).
"""

from functools import cache
from typing import Any


@cache
def correct() -> None:
    """Make bfloat16 in the interpreter what it is on a GPU; once per process."""
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    convert, product = builder.cast_impl, builder.create_dot

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if (source.dtype.scalar, target.scalar) == (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(np.array(source.data, np.float32)).bfloat16()
            return handle(rounded.view(torch.int16).numpy().view(np.uint16), target.scalar)
        return convert(self, source, target)

    def widened(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return handle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return product(self, widened(a), widened(b), *rest)

    builder.cast_impl, builder.create_dot = cast_impl, create_dot
