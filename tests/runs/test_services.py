"""`--log wandb` and `--log mlflow` with the real packages, offline: what they wrote is read back."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from psdrl import cli
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.run.callbacks import Callback, Mlflow, Run, Wandb
from psdrl.run.loop import train
from tests.helpers import ScriptedEnv, ScriptedEpisode, small_config

SMALL = ["--env", "deepsea-4", "--preset", "debug", "--device", "cpu", "--steps", "300", "--eval-every", "100"]
BLOCK, FULL, LAST = 32768, 1, 4


def logged(logdir: Path) -> list[dict[str, float]]:
    """metrics.jsonl."""
    return [json.loads(line) for line in (logdir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def wandb_offline(monkeypatch: pytest.MonkeyPatch) -> Any:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return wandb


def wandb_records(logdir: Path) -> list[Any]:
    """Everything in the file that `wandb sync` would send: LevelDB's log format after 7 bytes of W&B's own."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    (path,) = logdir.glob("wandb/offline-run-*/run-*.wandb")
    data, at, parts, records = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # too short a rest for a header
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            records.append(Record.FromString(parts))
            parts = b""
    return records


def test_wandb_has_every_line_of_the_metrics(tmp_path: Path, wandb_offline: Any) -> None:
    assert cli.train([*SMALL, "--log", "wandb", "--logdir", str(tmp_path / "run")]) == 0
    wandb_offline.teardown()  # as at the end of a process: its service writes the rest
    records = wandb_records(tmp_path / "run")
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    rows = [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]
    assert rows == logged(tmp_path / "run")
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
    assert (run.project, run.display_name) == ("psdrl", "run")
    settings = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert settings["env"] == "deepsea-4"
    assert [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"] == [0]


@pytest.fixture
def mlflow_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    return mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")


def test_mlflow_has_every_number_of_the_metrics(tmp_path: Path, mlflow_here: Any) -> None:
    assert cli.train([*SMALL, "--log", "mlflow", "--logdir", str(tmp_path / "run")]) == 0
    experiment = mlflow_here.get_experiment_by_name("psdrl")
    (run,) = mlflow_here.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["env"] == "deepsea-4"
    assert run.data.params["policy.epsilon"] == str(small_config().policy.epsilon)
    lines = logged(tmp_path / "run")
    for name in ("train/return", "eval/return", "loss/forward", "time/acting"):
        wanted = [(line["step"], line[name]) for line in lines if name in line]
        found = sorted((metric.step, metric.value) for metric in mlflow_here.get_metric_history(run.info.run_id, name))
        assert found == sorted(wanted), name
        assert wanted, name


class Broken(Callback):
    def on_episode(self, run: Run, episode: object) -> None:
        raise ZeroDivisionError


def test_mlflow_continues_its_run_and_tells_of_a_failure(mlflow_here: Any) -> None:
    env = ScriptedEnv([[ScriptedEpisode(3, "terminated")]])
    config = small_config(steps=9, eval_every=0)
    first = Mlflow()
    train(PsdrlAgent(config, env.spec), env, first)
    second = Mlflow()
    second.resume(json.loads(json.dumps(first.state())))
    with pytest.raises(ZeroDivisionError):
        train(PsdrlAgent(config, env.spec), env, [second, Broken()])
    (run,) = mlflow_here.search_runs([mlflow_here.get_experiment_by_name("psdrl").experiment_id])
    assert run.info.run_id == first.state()["id"]
    assert run.info.status == "FAILED"
    returns = mlflow_here.get_metric_history(run.info.run_id, "train/return")
    assert [metric.step for metric in returns] == [3, 6, 9, 3], "three episodes of the first, one of the second"


@pytest.mark.usefixtures("wandb_offline")
def test_wandb_continues_its_run(tmp_path: Path) -> None:
    env = ScriptedEnv([[ScriptedEpisode(3, "terminated")]])
    config = small_config(steps=9, eval_every=0)
    first = Wandb(dir=str(tmp_path))
    train(PsdrlAgent(config, env.spec), env, first)
    second = Wandb(dir=str(tmp_path / "again"))
    (tmp_path / "again").mkdir()
    second.resume(first.state())
    train(PsdrlAgent(config, env.spec), env, second)
    ids = {path.name for path in tmp_path.rglob("run-*.wandb")}
    assert ids == {f"run-{first.state()['id']}.wandb"}
    assert len(list(tmp_path.rglob("run-*.wandb"))) == 2
