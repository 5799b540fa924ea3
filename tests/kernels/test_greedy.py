"""The greedy action on the CPU: the oracle's rule for ties, infinities and NaN."""

import pytest
import torch

from psdrl.kernels.greedy import aten, reference

INF, NAN = torch.inf, torch.nan
CASES = {
    "ties": [[1.0, 1.0, 0.5], [2.0, 2.0, 2.0], [0.0, -0.0, -1.0]],
    "close": [[1.0, 1 - 9e-6, 1 - 1.1e-5], [0.0, -9e-9, -1.1e-8], [-1e4, -1e4 - 0.09, -1e4 - 0.11]],
    "infinite": [[INF, INF, 1.0], [-INF, -INF, -INF], [-INF, 2.0, -INF], [INF, 3e38, INF]],
    "nan": [[NAN, 1.0, 2.0], [1.0, NAN, NAN], [INF, NAN, 0.0]],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_action_is_the_oracles(case, dtype):
    returns = torch.tensor(CASES[case], dtype=dtype)
    zero = torch.zeros_like(returns)
    for seed in range(20):
        lots = torch.rand(returns.shape, generator=torch.Generator().manual_seed(seed))
        expected = reference.greedy_action(returns, zero, zero, 0.9, 0.5, lots)
        assert aten.greedy_action(returns, zero, zero, 0.9, 0.5, lots).tolist() == expected.tolist(), seed
