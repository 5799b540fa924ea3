"""Whole runs: reproducible, resumable, and recorded as promised."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
import torch

import psdrl
from psdrl import cli
from psdrl.agents import registry
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.envs import make_env
from psdrl.run.callbacks import resume
from psdrl.run.checkpoint import Store, latest, restore, save
from psdrl.run.log import run_callbacks
from psdrl.run.loop import train
from tests.conftest import Run

SMALL = ["--env", "deepsea-4", "--preset", "debug", "--device", "cpu"]
ROOT = Path(__file__).parents[2]


def metrics(logdir: Path) -> list[dict[str, float]]:
    """metrics.jsonl without the times."""
    lines = [json.loads(line) for line in (logdir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def run(logdir: Path, *arguments: str) -> list[dict[str, float]]:
    assert cli.train([*SMALL, *arguments, "--logdir", str(logdir)]) == 0
    return metrics(logdir)


@pytest.mark.parametrize("algo", ["psdrl", "egreedy-exploit", "fresh-value"])
def test_same_seed_same_metrics(tmp_path: Path, algo: str) -> None:
    flags = ["--steps", "520", "--eval-every", "200", "--num-envs", "2", "--algo", algo, "--policy.epsilon", "0.1"]
    first, second = (run(tmp_path / name, *flags) for name in ("a", "b"))
    other = run(tmp_path / "c", *flags, "--seed", "1")
    assert len(first) > 100
    assert first == second
    assert first != other
    assert [line for line in first if "loss/value" in line] != [line for line in other if "loss/value" in line]


def test_metrics_and_config_files(tmp_path: Path) -> None:
    """Every promised key, one JSON object per line, steps in order; the resolved settings with version and commit."""
    lines = run(tmp_path / "run", "--env", "deepsea-4-image", "--steps", "600", "--eval-every", "300")
    keys = {key for line in lines for key in line}
    wanted = {"eval/return", "train/return", "train/length", "train/sequence_length"}
    wanted |= {f"loss/{name}" for name in ("autoencoder", "forward", "termination", "value")}
    wanted |= {"posterior/jitter", "posterior/sd_latent", "posterior/sd_reward"}
    assert wanted <= keys
    raw = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    times = {key for line in raw for key in line if key.startswith("time/")}
    assert {f"time/{phase}" for phase in ("autoencoder", "forward", "posterior", "value", "acting")} <= times
    assert all(next(iter(line)) == "step" for line in raw)
    assert all(np.isfinite(list(line.values())).all() for line in raw)
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps)
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["version"] == psdrl.__version__
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    config = registry.config_from_dict(record["config"])
    expected = psdrl.configure(env="deepsea-4-image", preset="debug", device="cpu", steps=600, eval_every=300)
    assert config == replace(expected, logdir=tmp_path / "run")
    assert list((tmp_path / "run").glob("events.out.tfevents.*")), "TensorBoard files"
    assert [p.name for p in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-600"], "one save"


def compare(one: Any, other: Any, path: str = "") -> None:
    """Equal in every tensor and number."""
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            compare(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            compare(a, b, f"{path}/{i}")
    else:
        assert one == other, path


@pytest.mark.parametrize(
    ("env_name", "algo", "groups"),
    [
        ("deepsea-4", "psdrl", 1),
        ("deepsea-4", "egreedy-explore", 1),
        ("deepsea-4-image", "psdrl", 1),
        ("deepsea-4-image", "egreedy-explore", 1),
        ("deepsea-4", "psdrl", 2),
    ],
)
def test_resume_restores_everything(env_name: str, algo: str, groups: int, tmp_path: Path) -> None:
    """A restored agent has the same state as the saved one, and goes on in the same way."""
    config = psdrl.configure(
        env=env_name, preset="debug", device="cpu", algo=algo, steps=620, eval_every=0, policy={"epsilon": 0.2},
        num_envs=groups, env_groups=groups,
    )  # fmt: skip
    env = make_env(config)
    agent = PsdrlAgent(config, env.spec)
    train(agent, env, stop=lambda: agent.step >= 300)
    assert agent.updates > 0
    assert agent.optimisers["forward"].state_dict()["state"]
    path = save(tmp_path, agent)
    other = PsdrlAgent(config, env.spec)
    restore(path, other)
    state = agent.state_dict()
    assert {"models", "optimisers", "posterior", "model", "counters", "random"} <= state.keys()
    compare(state, other.state_dict())
    compare(agent.replay.state_dict(), other.replay.state_dict())
    for one in (agent, other):
        fresh = make_env(config)
        train(one, fresh)
        fresh.close()
        assert 620 <= one.step < 620 + groups
    env.close()
    compare(agent.state_dict(), other.state_dict())
    compare(agent.replay.state_dict(), other.replay.state_dict())
    assert not torch.equal(state["model"]["weight"], PsdrlAgent(config, env.spec).model.weight), "a trivial comparison"


def test_resumed_metrics_have_no_duplicates(tmp_path: Path) -> None:
    """A run that died after its checkpoint at step 500, where an update was due too, logs nothing twice."""
    config = psdrl.configure(
        env="deepsea-4", preset="debug", device="cpu", steps=800, eval_every=250, checkpoint_every=500, logdir=tmp_path
    )

    class Died(Exception):
        pass

    def die() -> bool:
        if agent.step >= 530:
            raise Died
        return False

    env = make_env(config)
    agent = PsdrlAgent(config, env.spec)
    with pytest.raises(Died):
        train(agent, env, run_callbacks(config), die, Store(tmp_path))
    saved = latest(tmp_path)  # an exception saves first: a kill would not have
    assert saved
    assert saved.name == "checkpoint-530"
    shutil.rmtree(saved)
    path = latest(tmp_path)
    assert path
    assert path.name == "checkpoint-500"
    resumed = PsdrlAgent(config, env.spec)
    callbacks = run_callbacks(config)
    resume(callbacks, restore(path, resumed)["callbacks"])
    train(resumed, env, callbacks, store=Store(tmp_path))
    env.close()
    lines = metrics(tmp_path)
    for key in ("loss/value", "eval/return", "train/return"):
        steps = [line["step"] for line in lines if key in line]
        assert len(steps) == len(set(steps)), f"{key} is logged twice at {[s for s in steps if steps.count(s) > 1]}"
        assert steps == sorted(steps), key
    assert [line["step"] for line in lines if "loss/value" in line] == [250, 500, 750]
    assert [line["step"] for line in lines if "eval/return" in line] == [250, 500, 750]


def test_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    lines = run(tmp_path, "--steps", "300")
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 299, "train/ret')
    assert run(tmp_path, "--steps", "301")[: len(lines)] == lines


@pytest.mark.parametrize("policy", ["sample", "mean"])
def test_evaluate_a_run_and_film_it(policy: str, tmp_path: Path, cli_run: Run) -> None:
    assert cli.train([*SMALL, "--steps", "300", "--logdir", str(tmp_path / "run")]) == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    outcome = cli_run(
        "evaluate", "run", "--episodes", 3, "--policy", policy, "--video", "films/out.mp4", "--device", "cpu"
    )
    assert outcome.code == 0
    assert len(re.findall(r"^episode \d: -?[\d.e-]+$", outcome.out, re.MULTILINE)) == 3
    assert f"policy {policy}: mean" in outcome.out
    frames = list(imageio.get_reader(str(tmp_path / "films" / "out.mp4")).iter_data())
    assert len(frames) == 3 * 4, "a frame per step"
    assert all(frame.shape[2] == 3 and frame.std() > 0 for frame in frames)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_policy_mean_acts_on_the_posterior_mean(tmp_path: Path) -> None:
    from psdrl.run.evaluation import load

    assert cli.train([*SMALL, "--steps", "300", "--logdir", str(tmp_path / "run")]) == 0
    agent = load(tmp_path / "run", "cpu")
    torch.testing.assert_close(agent.draw(mean=True).weight, agent.posterior.mean.float())
    assert torch.count_nonzero(agent.posterior.mean) > 0
    assert not torch.equal(agent.model.weight, agent.draw(mean=True).weight)


def test_readme_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first Python block of the README, as it stands: five statements that train and evaluate."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks, "the README shows no Python example"
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(compile(blocks[0], "README.md", "exec"), scope)
    agents = [value for value in scope.values() if isinstance(value, psdrl.Agent)]
    assert agents, "the example makes no agent"
    assert agents[0].updates > 0, "the example trains nothing"
