"""Gradient steps of csrc/ beside the oracle's: the same parameters and moments, in float32 and in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Twin:
    """Parameters with an Adam whose moments are those of earlier steps; equal for equal seeds."""

    def __init__(self, parameters: Sequence[Tensor], dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.parameters = [p.detach().clone(memory_format=torch.preserve_format).to(dtype) for p in parameters]
        for p in self.parameters:
            p.requires_grad_()
        self.optimiser = torch.optim.Adam(self.parameters, 1e-2, betas=(0.8, 0.95), fused=True)
        for p in self.parameters:
            average = torch.empty_like(p, dtype=torch.float32, requires_grad=False)
            square = torch.empty_like(average)
            self.optimiser.state[p] = {
                "step": torch.tensor(5.0),
                "exp_avg": average.normal_(generator=generator).mul_(0.1).to(dtype),
                "exp_avg_sq": square.uniform_(generator=generator).mul_(0.1).to(dtype),
            }

    def numbers(self) -> list[Tensor]:
        """All that steps change."""
        states = (x for p in self.parameters for x in self.optimiser.state[p].values())
        return [*(p.detach() for p in self.parameters), *states]


def check(parameters: Sequence[Tensor], fast: Callable[[Twin], Tensor], oracle: Callable[[Twin], Tensor]) -> None:
    """Steps by `fast` are the oracle's: as near to its float64 numbers as its own float32 ones, within a factor of 2 or
    a millionth of the largest number."""
    ours, eager, exact = Twin(parameters), Twin(parameters), Twin(parameters, torch.float64)
    versions = [p._version for p in ours.parameters]
    losses = {name: steps(twin) for name, steps, twin in
              (("ours", fast, ours), ("eager", oracle, eager), ("exact", oracle, exact))}  # fmt: skip
    assert losses["ours"].shape == losses["exact"].shape
    torch.testing.assert_close(losses["ours"].double(), losses["exact"], rtol=1e-5, atol=1e-6)
    for mine, usual, true in zip(ours.numbers(), eager.numbers(), exact.numbers(), strict=True):
        error, other = (mine.double() - true).abs().max(), (usual.double() - true).abs().max()
        assert error <= 2 * other + 1e-6 * true.abs().max(), f"{tuple(mine.shape)}: {error:.1e}, eager {other:.1e}"
    assert all(p._version > v for p, v in zip(ours.parameters, versions, strict=True)), "changes are not counted"


def same_for_any_threads(parameters: Sequence[Tensor], fast: Callable[[Twin], Any]) -> None:
    """The numbers do not depend on how many threads there are."""
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            twin = Twin(parameters)
            fast(twin)
            results.append(twin.numbers())
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))
