"""Numbers that are not finite: the update is undone and the run goes on; after five in a row it stops and says why."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import psdrl
from psdrl import cli
from psdrl.agents.registry import make_agent
from psdrl.envs import make_env
from psdrl.errors import UserError
from psdrl.run.callbacks import Callback, Run
from psdrl.run.loop import REJECTED, train
from tests.helpers import ListLog

SETTINGS: dict[str, Any] = {"env": "deepsea-4", "preset": "debug", "device": "cpu", "eval_every": 0}


def poisoned(agent: Any, first: int, last: int) -> None:
    """Gradients of one parameter are NaN while the agent's updates `first` to before `last` are made."""
    tried = [0]
    update = agent.update

    def counted(*arguments: Any) -> Any:
        tried[0] += 1
        return update(*arguments)

    agent.update = counted
    if agent.config.algo == "psdrl":
        weight = agent.models.forward_model.output.weight
    else:
        networks = agent.networks
        weight = next((networks.actor if agent.config.algo == "dreamer" else networks.online).parameters())
    weight.register_hook(lambda g: g * float("nan") if first <= tried[0] - 1 < last else g)


class Numbers(Callback):
    """Networks after every update, and around what was rejected."""

    def __init__(self) -> None:
        self.after: list[dict[str, torch.Tensor]] = []
        self.rejected: list[tuple[str, str]] = []

    def networks(self, run: Run) -> dict[str, torch.Tensor]:
        agent: Any = run.agent
        module = agent.models if run.config.algo == "psdrl" else agent.networks
        return {name: x.clone() for name, x in module.state_dict().items()}

    def on_update(self, run: Run, metrics: dict[str, float]) -> None:
        self.after.append(self.networks(run))

    def on_rejected(self, run: Run, phase: str, cause: str) -> None:
        self.rejected.append((phase, cause))
        for name, x in self.networks(run).items():
            assert x.equal(self.after[-1][name]), f"{name} was not put back"


@pytest.mark.parametrize("algo", ["psdrl", "bootstrap", "successor", "dreamer"])
def test_an_update_with_nan_is_undone_and_training_goes_on(algo: str) -> None:
    often: Any = {"policy": {"update_every": (25,)}} if algo == "psdrl" else {}
    config = psdrl.configure(**SETTINGS, algo=algo, steps=600, **often)
    env = make_env(config)
    agent, log, numbers = make_agent(config, env.spec), ListLog(), Numbers()
    poisoned(agent, 2, 2 + REJECTED - 1)
    with pytest.warns(UserWarning, match="is undone"):
        train(agent, env, [log, numbers])
    phase = {"psdrl": "forward", "bootstrap": "learning", "successor": "learning", "dreamer": "behaviour"}[algo]
    assert [name for name, _ in numbers.rejected] == [phase] * 4
    assert "not finite" in numbers.rejected[0][1]
    assert agent.step >= 600
    assert len(numbers.after) > 4
    assert len(log.steps_with(f"rejected/{numbers.rejected[0][0]}")) == 4
    assert any(not x.equal(numbers.after[1][name]) for name, x in numbers.after[-1].items()), "nothing is learned"


def test_after_five_in_a_row_the_run_stops_and_can_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A learning rate that no network survives, given by the user."""
    run = tmp_path / "run"
    flags = "--env deepsea-4 --preset debug --device cpu --eval-every 0 --steps 2000 --checkpoint-every 10"
    flags += f" --forward.learning-rate 1e38 --logdir {run}"
    with pytest.raises(UserError, match="5 updates in a row were undone") as stop:
        cli.train(flags.split())
    rejected = [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if len(line) == 2]
    assert sum(any(name.startswith("rejected/") for name in line) for line in rejected) >= REJECTED
    command = str(stop.value).split("Repeat the last one with: psdrl train ")[1].split()
    capsys.readouterr()
    with pytest.raises(UserError, match="updates in a row were undone") as again:
        cli.train(command)
    cause = str(stop.value).split("because")[1].split(";")[0]
    assert cause in str(again.value), "another one"
    assert "resumed at step" in capsys.readouterr().out
