"""Which callbacks a run has by its settings: progress, metrics.jsonl, TensorBoard, and what `--log` names."""

from collections.abc import Callable

from rich.console import Console

from psdrl.config import Config
from psdrl.errors import UserError, nearest
from psdrl.run.callbacks import Callback, Metrics, Mlflow, Progress, TensorBoard, Wandb

SERVICES: dict[str, Callable[[], Callback]] = {"wandb": Wandb, "mlflow": Mlflow}


def run_callbacks(config: Config, console: Console | None = None) -> list[Callback]:
    """The callbacks of a run with a directory; a progress bar if there is a console."""
    bar = [Progress(console)] if console else []
    return [Metrics(), TensorBoard(), *(SERVICES[name]() for name in services(config)), *bar]


def services(config: Config) -> list[str]:
    """The names of --log, given one by one or with commas."""
    given = [config.log] if isinstance(config.log, str) else config.log
    names = [name.strip() for part in given for name in part.split(",") if name.strip()]
    for name in names:
        if name not in SERVICES:
            hint = (
                nearest(name, SERVICES)
                or f": use {' or '.join(SERVICES)}; metrics.jsonl and TensorBoard are always on."
            )
            raise UserError(f"--log {name} is unknown{hint}")
    return list(dict.fromkeys(names))
