"""Evaluation: every episode has a score and a hidden state of its own."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from psdrl.agents.psdrl.acting import Actor
from psdrl.run import evaluation
from tests.helpers import ScriptedEnv, ScriptedEpisode, small_agent

LENGTHS = (3, 1, 4)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation plays episodes of these lengths; the reward of step t of episode e is 10 e + t."""
    ends = ("terminated", "truncated", "both")
    episodes = [ScriptedEpisode(length, end) for length, end in zip(LENGTHS, ends, strict=True)]
    monkeypatch.setattr(evaluation, "make_env", lambda *args, **options: ScriptedEnv([episodes]))


@pytest.mark.usefixtures("script")
def test_each_episode_has_its_own_score() -> None:
    """The third is 20 + 21 + 22 + 23, with nothing of the first two."""
    assert evaluation.evaluate(small_agent(), 3) == [0 + 1 + 2, 10, 20 + 21 + 22 + 23]


@pytest.mark.usefixtures("script")
def test_each_episode_starts_with_hidden_state_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, float]] = []  # episode, t, and the largest |h| that the action is chosen with
    act = Actor.act

    def watched(actor: Actor, observations: NDArray, *rest: Any) -> NDArray[np.int64]:
        _, episode, t = observations[0].astype(int).tolist()
        seen.append((episode, t, actor.hidden.abs().max().item()))
        return act(actor, observations, *rest)

    monkeypatch.setattr(Actor, "act", watched)
    evaluation.evaluate(small_agent(), 3)
    assert [(episode, t) for episode, t, _ in seen] == [
        (e, t) for e, length in enumerate(LENGTHS) for t in range(length)
    ]
    assert [hidden for _, t, hidden in seen if t == 0] == [0, 0, 0], "h of the last episode goes on into the next"
    assert all(hidden > 0 for _, t, hidden in seen if t > 0), "h never moves: the test above would prove nothing"
