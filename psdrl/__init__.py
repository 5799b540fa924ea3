"""PSDRL: Posterior Sampling for Deep Reinforcement Learning (Sasso, Conserva, Rauber; ICML 2023)."""

from psdrl.agents.registry import configure
from psdrl.api import Agent, load, train
from psdrl.config import Config
from psdrl.envs import make_env
from psdrl.errors import UserError
from psdrl.run.callbacks import Callback
from psdrl.version import __version__

__all__ = ["Agent", "Callback", "Config", "UserError", "__version__", "configure", "load", "make_env", "train"]
