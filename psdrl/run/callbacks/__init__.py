"""Callbacks: what listens to a run. See docs/callbacks.md."""

from psdrl.run.callbacks.files import Metrics, TensorBoard
from psdrl.run.callbacks.interface import Callback, Episode, Listeners, Run, Scalars, resume
from psdrl.run.callbacks.progress import Progress
from psdrl.run.callbacks.services import Mlflow, Wandb

__all__ = [
    "Callback",
    "Episode",
    "Listeners",
    "Metrics",
    "Mlflow",
    "Progress",
    "Run",
    "Scalars",
    "TensorBoard",
    "Wandb",
    "resume",
]
