"""An agent as a function from observations to actions."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psdrl.agents.interface import Agent
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError

STREAM = 20_000  # random streams of policies lie beyond those of evaluation


class Policy:
    """Plays one environment, or a batch of them, by what the agent knows at the time of each call.

    Hidden state and random stream are its own: neither training nor another policy notices."""

    def __init__(
        self,
        agent: Agent,
        num_envs: int | None = None,
        policy: str | None = None,
        epsilon: float | None = None,
        seed: int = 0,
    ) -> None:
        """num_envs: of a batch; None: one environment, without a leading dimension. policy: one of the agent's
        POLICIES, its default if not given. epsilon: probability of a random action, that of the run if not given."""
        if policy is not None and policy not in agent.POLICIES:
            ways = ", ".join(f"{name} ({words})" for name, words in agent.POLICIES.items())
            raise UserError(f"policy {policy!r} is none of {agent.config.algo}'s: {ways}.")
        if epsilon is not None and not 0 <= epsilon <= 1:
            raise UserError(f"epsilon is {epsilon} but must lie between 0 and 1.")
        self.spec, self.num_envs = agent.spec, num_envs
        self._actor = agent.player(STREAM + seed, policy, num_envs or 1, epsilon)

    def reset(self, started: ArrayLike | None = None) -> None:
        """New episodes begin, in all environments or where `started` (N,) says so."""
        self._actor.start(np.ones(self.num_envs or 1, bool) if started is None else np.array(started, bool).reshape(-1))

    def __call__(self, observation: ArrayLike) -> Any:
        """The action for an observation of the spec's shape; with num_envs, actions (N,) for observations (N, ...)."""
        actions = self._actor.act(batch(observation, self.spec, self.num_envs))
        return int(actions[0]) if self.num_envs is None else actions


def batch(observation: ArrayLike, spec: EnvSpec, num_envs: int | None) -> NDArray:
    """Observations (N, *shape) in the type that the agent sees."""
    given = np.asarray(observation)
    count = num_envs or 1
    fits = given.size == count * math.prod(spec.shape) and (num_envs is None or given.shape[:1] == (count,))
    numbers = given.dtype.kind in "buif"
    if not fits or not numbers or (spec.dtype == "uint8" and not _are_bytes(given)):
        wanted = spec.shape if num_envs is None else (count, *spec.shape)
        raise UserError(
            f"The observation is {given.dtype} {given.shape}, but this agent sees {spec.dtype} {wanted}: "
            "psdrl.make_env and psdrl.envs.wrap give observations as it sees them."
        )
    return np.array(given.reshape(count, *spec.shape), spec.dtype)


def _are_bytes(values: NDArray) -> bool:
    return values.dtype == np.uint8 or bool(((values >= 0) & (values <= 255) & (values == np.floor(values))).all())
