"""What a checkpoint holds of the running episodes, when it is written, and what an error leaves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.envs.vector import State, Step
from psdrl.replay.frames import FrameReplay
from psdrl.run import loop as loops
from psdrl.run.callbacks import Callback, Run
from psdrl.run.checkpoint import Store, find, restore
from psdrl.run.loop import train
from psdrl.run.store.saver import checkpoints, order
from tests.helpers import ListLog, ScriptedEnv, ScriptedEpisode, small_config

SCRIPT = [[ScriptedEpisode(7, "terminated")], [ScriptedEpisode(11, "truncated")]]
SETTINGS: dict[str, Any] = {
    "num_envs": 2,
    "eval_every": 0,
    "checkpoint_every": 0,
    "reward_transform": "none",
    "policy": {"update_every": (25,)},
}


class Forgetful(ScriptedEnv):
    """Cannot be restored."""

    def restore(self, state: State) -> None:  # type: ignore[override]
        return None


class Failing(ScriptedEnv):
    """Raises at a call."""

    def recv(self) -> Step:
        if self.calls == 20:
            raise RuntimeError("the screen went dark")
        return super().recv()


def agent_for(env: ScriptedEnv, **settings: Any) -> PsdrlAgent:
    return PsdrlAgent(small_config(**(SETTINGS | settings)), env.spec)


def resumed(logdir: Path, env: ScriptedEnv, warnings: list[str], **settings: Any) -> tuple[PsdrlAgent, ListLog]:
    """Go on from the newest checkpoint."""
    agent, log = agent_for(env, **settings), ListLog()
    newest = find(logdir).newest
    assert newest
    extra = restore(newest, agent)
    store = Store(logdir, 2, warnings.append)
    store.resume(newest, agent.replay)
    train(agent, env, log, store=store, state=extra["loop"])
    return agent, log


def test_a_stopped_run_goes_on_within_its_episodes(tmp_path: Path) -> None:
    env = ScriptedEnv(SCRIPT)
    calm = agent_for(env, steps=120)
    train(calm, env)
    first = ScriptedEnv(SCRIPT)
    agent = agent_for(first, steps=120)
    train(agent, first, stop=lambda: agent.step >= 53, store=Store(tmp_path))
    assert agent.step < 60
    still = agent_for(first, steps=agent.step)  # restored, and over at once
    newest = find(tmp_path).newest
    assert newest
    train(still, ScriptedEnv(SCRIPT), state=restore(newest, still)["loop"])
    assert agent.actor.hidden.abs().amax(1).min() > 0
    assert still.actor.hidden.equal(agent.actor.hidden)
    warnings: list[str] = []
    other, _ = resumed(tmp_path, ScriptedEnv(SCRIPT), warnings, steps=120)
    assert not warnings
    assert (other.step, other.episodes, other.updates) == (calm.step, calm.episodes, calm.updates)
    for one, two in zip(calm.models.parameters(), other.models.parameters(), strict=True):
        assert one.equal(two)


def test_environments_that_cannot_be_restored_begin_anew_and_it_is_said(tmp_path: Path) -> None:
    env = Forgetful(SCRIPT)
    agent = agent_for(env, steps=120)
    train(agent, env, stop=lambda: agent.step >= 53, store=Store(tmp_path))
    warnings: list[str] = []
    again = Forgetful(SCRIPT)
    other, log = resumed(tmp_path, again, warnings, steps=120)
    assert len(warnings) == 1
    assert "2 running episodes are dropped" in warnings[0]
    assert log.values_of("env/faults") == [2.0]
    assert other.step >= 120
    assert (0, 0, 0) in again.taken, "not begun anew"


def test_an_error_of_an_environment_saves_first(tmp_path: Path) -> None:
    env = Failing(SCRIPT)
    agent = agent_for(env, steps=500)
    with pytest.raises(RuntimeError, match="the screen went dark"):
        train(agent, env, store=Store(tmp_path))
    assert [order(path)[0] for path in checkpoints(tmp_path)] == [agent.step]
    assert agent.step > 30
    warnings: list[str] = []
    other, _ = resumed(tmp_path, ScriptedEnv(SCRIPT), warnings, steps=120)
    assert "running episodes are dropped" in warnings[0], "who knows whether they have stepped"
    assert other.step >= 120


def test_an_error_within_a_step_does_not_save_a_half_stored_one(tmp_path: Path) -> None:
    class Breaks(Callback):
        def on_step(self, run: Run, first: int, actions: np.ndarray, step: Step) -> None:
            if run.step > 40:
                raise RuntimeError("a callback fails")

    env = ScriptedEnv(SCRIPT)
    with pytest.raises(RuntimeError, match="a callback fails"):
        train(agent_for(env, steps=500), env, Breaks(), store=Store(tmp_path))
    assert not checkpoints(tmp_path)


def test_an_error_within_an_update_saves_what_was_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resumed run makes that update, and equals the one that had no error."""
    calm_env = ScriptedEnv(SCRIPT)
    calm = agent_for(calm_env, steps=120)
    train(calm, calm_env)
    env = ScriptedEnv(SCRIPT)
    agent = agent_for(env, steps=120)
    plan = PsdrlAgent.plan

    def without_memory(self: PsdrlAgent, *arguments: Any) -> Any:
        if self.updates == 2:
            raise MemoryError
        return plan(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PsdrlAgent, "plan", without_memory)
        with pytest.raises(MemoryError):
            train(agent, env, store=Store(tmp_path))
    assert agent.updates == 2
    other, _ = resumed(tmp_path, ScriptedEnv(SCRIPT), [], steps=120)
    assert other.updates == calm.updates > 3
    for one, two in zip(calm.models.parameters(), other.models.parameters(), strict=True):
        assert one.equal(two)


@pytest.mark.parametrize(
    ("minutes", "stall", "saves"),
    [(5.0, 0.0, [5, 10, 15, 20, 25, 29]), (0.0, 0.0, [29]), (5.0, 12.0, [5, 15, 25, 29])],
)
def test_checkpoints_by_the_clock(
    minutes: float, stall: float, saves: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes a minute here: every 5 minutes in 30, or every 10 if saving takes 12 s; and one at the end."""

    class Clock:
        now = 0.0
        perf_counter = staticmethod(lambda: 0.0)

        @classmethod
        def monotonic(cls) -> float:
            return cls.now

    class Minutes(ScriptedEnv):
        def recv(self) -> Step:
            Clock.now += 60
            return super().recv()

    monkeypatch.setattr(loops, "time", Clock)
    made: list[int] = []
    env = Minutes(SCRIPT[:1])
    agent = agent_for(env, steps=10**6, num_envs=1, checkpoint_minutes=minutes)
    store = Store(tmp_path)
    save = store.save

    def counted(*arguments: Any) -> None:
        made.append(env.calls)
        save(*arguments)
        store.wait()
        store.stall = stall

    monkeypatch.setattr(store, "save", counted)
    train(agent, env, store=store, stop=lambda: env.calls >= 29)
    assert made == saves


def test_a_failed_episode_is_not_sampled_from_nor_after_a_restore() -> None:
    replay = FrameReplay(40, 1, (1,), "float32")
    number = 0
    for episode in range(3):
        replay.start(0, np.array([number], np.float32))
        for _ in range(5):
            number += 1
            replay.add(0, episode, 0.0, np.array([number], np.float32), False)
        if episode == 1:
            replay.discard(0)
    other = FrameReplay(40, 1, (1,), "float32")
    other.load_state_dict(replay.state_dict())
    for buffer in (replay, other):
        assert buffer.transitions == 10
        actions = buffer.sample(400, np.random.default_rng(0)).actions
        assert sorted(set(actions.tolist())) == [0, 2]
