"""Weights & Biases and MLflow: `--log wandb`, `--log mlflow`, or both. Each is an optional package."""

import importlib
import os
import time
from pathlib import Path
from typing import Any

from psdrl.errors import UserError
from psdrl.run.callbacks.interface import Run, Scalars

BATCH, PATIENCE = 200, 10.0  # MLflow gets this many numbers at once, or what has come in so many seconds


def package(name: str) -> Any:
    """An optional package, or one sentence that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"--log {name} needs the package {name}: pip install {name}.") from None


def title(run: Run) -> str:
    """What the service calls the run."""
    config = run.config
    return run.logdir.name if run.logdir else f"{config.env_name}-{config.algo}-{config.seed}".replace("/", "-")


class Wandb(Scalars):
    """Weights & Biases. Its own variables say where and how: WANDB_PROJECT (psdrl if unset), WANDB_MODE=offline, ...

    `options` go to `wandb.init`. The steps of a run are the metric `step`, so that several episodes may end at one."""

    def __init__(self, **options: Any) -> None:
        self._wandb = package("wandb")
        self.options = options
        self._id: str | None = None
        self._run: Any = None

    def on_start(self, run: Run) -> None:
        options = {
            "project": os.environ.get("WANDB_PROJECT", "psdrl"),
            "name": title(run),
            "config": run.config.to_dict(),
            "dir": str(run.logdir) if run.logdir else None,
            "settings": self._wandb.Settings(console="off"),  # the terminal belongs to the progress bar
        }
        if self._id is not None:
            options |= {"id": self._id, "resume": "allow"}
        self._run = self._wandb.init(**(options | self.options))
        self._id = self._run.id
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self._run.log({"step": step, **values})

    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._run.finish(exit_code=0 if error is None else 1)

    def state(self) -> dict[str, Any]:
        """The run's id there."""
        return {"id": self._id}

    def resume(self, state: dict[str, Any]) -> None:
        self._id = str(state["id"])


class Mlflow(Scalars):
    """MLflow. Its own variables say where: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME (psdrl if unset)."""

    def __init__(self) -> None:
        self._mlflow = package("mlflow")
        self._id: str | None = None
        self._waiting: list[Any] = []
        self._sent = time.monotonic()

    def on_start(self, run: Run) -> None:
        self._client = self._mlflow.MlflowClient()
        if self._id is not None:
            self._client.update_run(self._id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "psdrl")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        self._id = self._client.create_run(experiment, run_name=title(run)).info.run_id
        params = [self._mlflow.entities.Param(name, str(value)) for name, value in _flat(run.config.to_dict())]
        for i in range(0, len(params), 100):  # as many as MLflow takes at once
            self._client.log_batch(self._id, params=params[i : i + 100])

    def scalars(self, step: int, values: dict[str, float]) -> None:
        now = int(1000 * time.time())
        self._waiting += [self._mlflow.entities.Metric(name, value, now, step) for name, value in values.items()]
        if len(self._waiting) >= BATCH or time.monotonic() - self._sent > PATIENCE:
            self._send()

    def _send(self) -> None:
        self._client.log_batch(self._id, metrics=self._waiting)
        self._waiting, self._sent = [], time.monotonic()

    def on_checkpoint(self, run: Run, path: Path) -> None:
        self._send()

    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._send()
        status = "FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self._client.set_terminated(self._id, status=status)

    def state(self) -> dict[str, Any]:
        """The run's id there."""
        return {"id": self._id}

    def resume(self, state: dict[str, Any]) -> None:
        self._id = str(state["id"])


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Settings of groups as group.name."""
    return [
        pair
        for name, value in values.items()
        for pair in (_flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)])
    ]
