"""Environment steps per second: EnvPool against gymnasium and ale-py's vector environment, 1 to 16 environments."""

import numpy as np
import pytest

from psdrl.config import AtariConfig
from psdrl.envs.atari import make_atari


@pytest.mark.parametrize("num_envs", [1, 4, 16])
@pytest.mark.parametrize("backend", ["gymnasium", "ale", "envpool"])
def test_step(benchmark, backend, num_envs):
    env = make_atari("Pong", num_envs, list(range(num_envs)), AtariConfig(), backend)
    env.reset()
    rng = np.random.default_rng(0)
    benchmark.group = f"Pong, 100 steps of {num_envs} environment(s)"

    def steps():
        for _ in range(100):
            env.step(rng.integers(6, size=num_envs))

    benchmark.pedantic(steps, rounds=3, warmup_rounds=1)
    env.close()
