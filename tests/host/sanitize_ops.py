"""Drives the operations of an instrumented psdrl._C (PSDRL_EXTENSION) over odd shapes, dtypes and layouts."""

import importlib.util
import os

import torch


def main() -> None:
    spec = importlib.util.spec_from_file_location("psdrl._C", os.environ["PSDRL_EXTENSION"])
    assert spec is not None
    importlib.util.module_from_spec(spec)  # loading it registers the operations
    ops = torch.ops.psdrl
    for n, k, o in ((1, 1, 1), (0, 3, 2), (7, 33, 5), (70, 193, 0), (2050, 65, 9), (300, 600, 1100)):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            phi, targets = torch.randn(k, n).T.to(dtype), torch.randn(n, 2 * o)[:, ::2].to(dtype)
            gram, cross = torch.zeros(k, k, dtype=torch.float64), torch.zeros(k, o, dtype=torch.float64)
            ops.gram_registers_(gram, cross, phi, targets, 0.5)
            ops.gram_accumulate_(gram, cross, phi, targets, 0.5)
            variances = torch.tensor([1.0, 2.0], dtype=torch.float64)
            group = [o - o // 2, o // 2]
            factors, _, info = ops.posterior_factor(gram, variances, variances)
            mean = ops.posterior_mean(factors, cross, group, variances)
            ops.posterior_sample(factors, mean, group, None, 3, torch.Generator().manual_seed(0))
            assert info.tolist() == [0, 0]
            factors, _, info = ops.posterior_factor(gram, variances, variances, 16, True)
            mean = ops.posterior_mean(factors, cross, group, variances, True)
            ops.posterior_sample(factors, mean, group, None, 3, torch.Generator().manual_seed(0), True)
            ops.solve_rows_(factors[0, 1:, 1:], torch.eye(k - 1, dtype=torch.float64), False)
            assert info.tolist() == [0, 0]
    for rows in (1, 6, 7, 40):
        ops.linear_rows(torch.randn(rows, 37), torch.randn(5, 37), torch.randn(5))
        ops.tanh_net_rows(
            torch.randn(rows, 37), [torch.randn(5, 37), torch.randn(1, 5)], [torch.randn(5), torch.randn(1)]
        )
        parameters = [torch.randn(5, 37), torch.randn(5), torch.randn(1, 5), torch.randn(1)]
        moments = [[torch.rand_like(p) for p in parameters] for _ in range(2)]
        steps = [torch.ones(()) for _ in parameters]
        batch = torch.randn(2, rows, 37), torch.randn(2, rows)
        rates = (1e-3, 0.9, 0.999, 1e-8)
        ops.tanh_net_steps_(*batch, None, parameters, *moments, steps, 1, *rates)
        ops.tanh_net_steps_(*batch, torch.rand(2, rows), parameters, *moments, steps, 1, *rates)
        shapes = [(9, 7), (9, 3), (9,), (9,), (13, 10), (13,), (6, 23), (6,)]  # H = 3, Z = 5, A = 2, 13 units
        parameters, *moments = ([torch.rand(shape) for shape in shapes] for _ in range(3))
        steps = [torch.ones(()) for _ in parameters]
        data = torch.randn(6, rows, 5), torch.randint(2, (5, rows)), torch.randn(5, rows)
        ops.window_steps_(
            *data, None, parameters, *moments, steps, 3, True, True, True, 2, torch.tensor(1.5), True, *rates
        )
        shapes = [(3, 1, 2, 2), (3,), (2, 3, 3, 3), (2,), (2, 3, 3, 3), (3,), (3, 1, 2, 2), (1,)]
        parameters, *moments = ([torch.rand(shape) for shape in shapes] for _ in range(3))
        steps = [torch.ones(()) for _ in parameters]
        frames = torch.randint(256, (2, rows, 1, 14, 14), dtype=torch.uint8)
        ops.autoencoder_steps_(
            frames, torch.rand(1, 14, 14), torch.ones(()), parameters, *moments, steps, [2, 2], False, *rates
        )
        ops.gru_actions_rows(torch.randn(rows, 33), torch.randn(rows, 33), torch.randn(3, 33), torch.randn(rows, 11))
        ops.bias_tanh_(torch.randn(3 * rows, 37), torch.randn(37), torch.randn(rows, 37), torch.randn(3, 37))
    ops.posterior_factor(torch.full((5, 5), torch.nan, dtype=torch.float64), variances, variances)
    print("sanitize: operations ran without a report")


if __name__ == "__main__":
    main()
