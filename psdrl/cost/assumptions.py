"""What the cost model assumes of GPUs that nobody here has measured: every number in one place, with its source.

`psdrl doctor --calibrate` replaces them by measurements on one's own device. "review" is a reading of the code against
the sources, PTX and SASS of torch 2.13 and Triton 3.7, in which nothing was timed.
"""

from typing import NamedTuple


class Assumption(NamedTuple):
    """A number, and where it comes from."""

    value: float
    what: str
    source: str


PEAK = {  # dense; NVIDIA's data sheets of A100 SXM and H100 SXM; float64 on tensor cores
    "a100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp64": 19.5e12},
    "a100-80gb": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp64": 19.5e12},
    "h100": {"fp32": 67e12, "tf32": 495e12, "bf16": 989e12, "fp64": 67e12},
}
BYTES_PER_SECOND = {"a100": 1.555e12, "a100-80gb": 2.039e12, "h100": 3.35e12}  # the same; a100 is the one with 40 GB
GPUS = tuple(PEAK)

ASSUMED = {
    "products fp32": Assumption(
        0.8, "of the peak, in products of thousands of rows", "ordinary cores are easy to feed"
    ),
    "products tf32": Assumption(
        0.6,
        "the same",
        "review: the 8-warp tile is bound by shared memory at 73 % of the peak, a 4-warp tile and cuBLAS gain 10 to "
        "25 % over the 0.5 assumed before; no more than 0.6 is to be assumed",
    ),
    "products bf16": Assumption(0.35, "the same", "rows of 2292 numbers start at 8 bytes, the fastest kernels want 16"),
    "products fp64": Assumption(
        0.65, "the same", "review: 80 to 95 ms expected of the Gram kernel at 100,000 rows, which are 66 to 78 %"
    ),
    "gradient": Assumption(
        0.85,
        "of that, in gradient steps on 125 to 500 rows",
        "125 of 128 rows of a tile are used; with the inner dimension in parts 216 programs fill 108 multiprocessors; "
        "0.7 before, with 72 programs",
    ),
    "convolutions tf32": Assumption(
        0.36, "of the tf32 peak", "review: 20 to 40 % from cuDNN's measurements and 4 channels at both ends; 0.3 before"
    ),
    "convolutions bf16": Assumption(0.3, "of the bf16 peak", "review: 1.5 to 1.8 times tf32, channels last"),
    "bandwidth": Assumption(0.8, "of the data sheet's", "long copies reach more, kernels of 20 to 100 MB less"),
    "launch": Assumption(4e-6, "seconds to launch an operation from Python", "commonly 3 to 6 microseconds"),
    "gap": Assumption(
        5e-7,
        "seconds between two kernels of a CUDA graph",
        "assumed: recalled of a blog post of NVIDIA on a V100, not looked up again",
    ),
    "latency": Assumption(
        2e-5, "seconds to send observations and wait for actions", "two copies and a synchronisation"
    ),
    "scan": Assumption(
        4, "kernels per step of a GRU's scan", "cuDNN's own: a product, the gates, two more; not counted"
    ),
}
# What was assumed of the code before the measures of `runtime.work.Measures`.
BEFORE = {
    "products tf32": 0.5,
    "products fp64": 0.5,
    "gradient": 0.7,
    "convolutions tf32": 0.3,
    "convolutions bf16": 0.21,
}


def known_gpu(name: str) -> str | None:
    """Which of the data sheets is that of a device with this name, as CUDA gives it."""
    words = name.lower()
    found = [gpu for gpu in GPUS if all(word in words for word in gpu.split("-"))]
    return max(found, key=len, default=None)


def assumed(name: str) -> float:
    """The number."""
    return ASSUMED[name].value
