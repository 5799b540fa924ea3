"""Callbacks: what they are told and when, what the loop's own ones write, and what happens when one fails."""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import psdrl
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.envs import make_env
from psdrl.envs.vector import Step
from psdrl.errors import UserError
from psdrl.run.callbacks import Callback, Episode, Listeners, Metrics, Progress, Run, TensorBoard, resume
from psdrl.run.checkpoint import Store
from psdrl.run.log import services
from psdrl.run.loop import Group, train
from tests.helpers import ScriptedEnv, ScriptedEpisode, small_agent, small_config

SCRIPT = [
    [ScriptedEpisode(3, "terminated"), ScriptedEpisode(5, "truncated")],
    [ScriptedEpisode(4, "truncated"), ScriptedEpisode(2, "terminated")],
]
QUIET: dict[str, Any] = {"reward_transform": "none", "eval_every": 0, "checkpoint_every": 0}


class Recorder(Callback):
    """Notes every event with the step at which it came."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Any]] = []

    def on_start(self, run: Run) -> None:
        self.events.append(("start", run.step, None))

    def on_step(self, run: Run, first: int, actions: np.ndarray, step: Step) -> None:
        self.events.append(("step", run.step, (first, actions.copy(), step)))

    def on_episode(self, run: Run, episode: Episode) -> None:
        self.events.append(("episode", run.step, episode))

    def on_phase(self, run: Run, name: str) -> None:
        self.events.append(("phase", run.step, name))

    def on_update(self, run: Run, metrics: dict[str, float]) -> None:
        self.events.append(("update", run.step, metrics))

    def on_evaluation(self, run: Run, returns: list[float]) -> None:
        self.events.append(("evaluation", run.step, returns))

    def on_checkpoint(self, run: Run, path: Path) -> None:
        assert path.is_dir(), "a checkpoint is announced before it is there"
        self.events.append(("checkpoint", run.step, path))

    def on_end(self, run: Run, error: BaseException | None) -> None:
        self.events.append(("end", run.step, error))

    def of(self, name: str) -> list[tuple[int, Any]]:
        return [(step, what) for event, step, what in self.events if event == name]


def scripted(callbacks: Any, steps: int = 30, **settings: Any) -> PsdrlAgent:
    env = ScriptedEnv(SCRIPT)
    agent = PsdrlAgent(small_config(num_envs=2, steps=steps, **(QUIET | settings)), env.spec)
    train(agent, env, callbacks)
    return agent


def test_episodes_and_steps_as_they_were_played() -> None:
    """By hand: environment 0 ends after 3 and, one row later, after 5 more; environment 1 after 4 and 2."""
    recorder = Recorder()
    agent = scripted(recorder)
    first = [what for _, what in recorder.of("episode")][:4]
    assert first == [Episode(0, 0 + 1 + 2, 3), Episode(1, 100 + 101 + 102 + 103, 4), Episode(1, 110 + 111, 2),
                     Episode(0, 10 + 11 + 12 + 13 + 14, 5)]  # fmt: skip
    assert [step for step, _ in recorder.of("episode")][:2] == [6, 7], "after 3 rounds of 2, then 1 of environment 1"
    counted = np.cumsum([(~step.started).sum() for _, (_, _, step) in recorder.of("step")])
    assert counted.tolist() == [step for step, _ in recorder.of("step")]
    assert counted[-1] == agent.step
    assert len(recorder.of("episode")) == agent.episodes
    assert recorder.events[0] == ("start", 0, None)
    assert recorder.events[-1] == ("end", agent.step, None)


def test_updates_evaluations_and_checkpoints(tmp_path: Path) -> None:
    config = small_config(steps=60, eval_every=20, eval_episodes=3, checkpoint_every=25, policy={"update_every": (30,)})
    env, recorder = make_env(config), Recorder()
    train(PsdrlAgent(config, env.spec), env, [recorder], store=Store(tmp_path))
    env.close()
    assert [step for step, _ in recorder.of("evaluation")] == [20, 40, 60]
    assert all(len(returns) == 3 for _, returns in recorder.of("evaluation"))
    assert [path.name for _, path in recorder.of("checkpoint")] == ["checkpoint-25", "checkpoint-50", "checkpoint-60"]
    (at, metrics), *_ = recorder.of("update")
    assert at == 30
    assert {"loss/forward", "time/acting"} <= metrics.keys()
    phases = [name for _, name in recorder.of("phase")]
    assert [phases.index(name) for name in ("evaluating", "saving", "autoencoder", "value")] == sorted(
        phases.index(name) for name in ("evaluating", "saving", "autoencoder", "value")
    )


def test_what_is_not_overridden_is_not_called() -> None:
    class OnlyEpisodes(Callback):
        def on_episode(self, run: Run, episode: Episode) -> None:
            pass

    listeners = Listeners(OnlyEpisodes(), Run(small_agent()))
    assert listeners._heard["on_step"] == []
    assert len(listeners._heard["on_episode"]) == 1


def test_a_function_on_the_object_is_heard() -> None:
    seen: list[int] = []
    callback = Callback()
    callback.on_episode = lambda run, episode: seen.append(episode.length)  # type: ignore[method-assign]
    scripted(callback)
    assert seen[:2] == [3, 4]


def test_a_failing_callback_ends_the_run_and_everyone_is_told() -> None:
    class Broken(Callback):
        def on_episode(self, run: Run, episode: Episode) -> None:
            raise ZeroDivisionError("mine")

    before, after = Recorder(), Recorder()
    with pytest.raises(ZeroDivisionError, match="mine"):
        scripted([before, Broken(), after])
    for recorder in (before, after):
        name, step, error = recorder.events[-1]
        assert (name, step) == ("end", 6)
        assert isinstance(error, ZeroDivisionError)


def test_one_that_cannot_start_ends_those_before_it_only() -> None:
    class Broken(Callback):
        def on_start(self, run: Run) -> None:
            raise ZeroDivisionError

    before, after = Recorder(), Recorder()
    with pytest.raises(ZeroDivisionError):
        scripted([before, Broken(), after])
    assert [name for name, _, _ in before.events] == ["start", "end"]
    assert after.events == []


def test_a_callback_can_stop_the_run() -> None:
    class Enough(Callback):
        def on_episode(self, run: Run, episode: Episode) -> None:
            if run.agent.episodes == 3:
                run.stop()

    assert scripted(Enough(), steps=1000).episodes == 3


def test_what_is_no_callback_is_refused() -> None:
    with pytest.raises(UserError, match="is no callback: give an object whose class inherits"):
        scripted([print])


def scalars(callback: Any, logdir: Path, *values: tuple[int, dict[str, float]]) -> None:
    """The callback's life, from start to end, with these numbers in between."""
    run = Run(small_agent(), logdir)
    callback.on_start(run)
    for step, numbers in values:
        callback.scalars(step, numbers)
    callback.on_end(run, None)


def test_metrics_continue_where_their_state_was_taken(tmp_path: Path) -> None:
    first = Metrics()
    run = Run(small_agent(), tmp_path)
    first.on_start(run)
    first.scalars(1, {"train/return": 1.0})
    state = json.loads(json.dumps(first.state()))
    first.scalars(2, {"train/return": 2.0})
    first.on_end(run, None)
    second = Metrics()
    resume([second], {"Metrics": state})
    scalars(second, tmp_path, (3, {"train/return": 3.0}))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines == ['{"step": 1, "train/return": 1.0}', '{"step": 3, "train/return": 3.0}']
    scalars(Metrics(), tmp_path, (9, {"a": 1.0}))
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 9, "a": 1.0}\n', "a new run keeps nothing"


def test_metrics_that_were_lost_are_not_padded(tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.resume({"bytes": 100})
    scalars(metrics, tmp_path, (1, {"a": 1.0}))
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1, "a": 1.0}\n'


def test_tensorboard_hides_what_will_happen_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TensorBoard()
    run = Run(small_agent(), tmp_path)
    first.on_start(run)
    first.scalars(1, {"x": 1.0})
    state = first.state()
    first.scalars(2, {"x": -2.0})
    first.scalars(3, {"x": -3.0})
    first.on_end(run, None)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10)  # files of one second are read in any order
    second = TensorBoard()
    second.resume(state)
    second.on_start(run)
    second.scalars(2, {"x": 2.0})
    second.on_end(run, None)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("x")] == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("kind", [Metrics, TensorBoard])
def test_files_need_a_directory(kind: type[Callback]) -> None:
    with pytest.raises(UserError, match=f"{kind.__name__} writes into the run's directory: set logdir"):
        scripted(kind())


@pytest.mark.parametrize("width", [28, 40, 60, 80, 120])
def test_a_narrow_terminal_keeps_steps_and_eta(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    progress = Progress(console)
    agent = small_agent(steps=1_000_000)
    run = Run(agent)
    progress.on_start(run)
    progress._bar.stop()
    progress._returns.append(-20.5)
    progress.on_evaluation(run, [-21.0])
    progress._bar.update(progress._task, completed=123_456)
    with console.capture() as shown:
        console.print(progress._bar.get_renderable())
    (line,) = [line for line in shown.get().splitlines() if line.strip()]
    assert "123456/1000000" in line
    assert "eta -:--:--" in line
    assert ("━" in line) == (width >= 120), line
    assert ("return -20.50 eval -21.00" in line) == (width >= 60), line


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((), []),
        (("wandb",), ["wandb"]),
        (("wandb,mlflow",), ["wandb", "mlflow"]),
        (("mlflow", "wandb, mlflow"), ["mlflow", "wandb"]),
    ],
)
def test_names_of_services(given: tuple[str, ...], wanted: list[str]) -> None:
    assert services(psdrl.configure(env="deepsea-4", log=given)) == wanted


def test_an_unknown_service_is_refused() -> None:
    with pytest.raises(UserError, match="--log wandbb is unknown; did you mean wandb"):
        services(psdrl.configure(env="deepsea-4", log=("wandbb",)))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from psdrl.run.log import run_callbacks

    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=f"--log {name} needs the package {name}: pip install {name}"):
        run_callbacks(psdrl.configure(env="deepsea-4", log=(name,)))


def test_a_group_remembers_its_running_episodes() -> None:
    env = ScriptedEnv(SCRIPT)
    agent = PsdrlAgent(small_config(num_envs=2, **QUIET), env.spec)
    group = Group(agent, env, agent.actors[0], 0)
    group.start()
    for _ in range(3):
        group.choose()
        group.send()
        group.store(group.receive())
    group.choose()
    group.send()
    state = group.state_dict()
    other = Group(agent, ScriptedEnv(SCRIPT), agent.actors[0], 0)
    assert other.load_state_dict(state)
    assert other.score.tolist() == [3, 303]
    assert other.length.tolist() == [3, 3]
    assert other.ended.tolist() == [True, False]
    assert other.stepping is True
    assert other.observation.tolist() == [[0, 0, 3], [1, 0, 3]]
    np.testing.assert_array_equal(other.actions, group.actions)
    group.store(group.receive())
    assert state["score"].tolist() == [3, 303], "the state is a copy"
