"""PSDRL: Posterior Sampling for Deep Reinforcement Learning (Sasso, Conserva, Rauber; ICML 2023)."""

from importlib.metadata import PackageNotFoundError, version

from psdrl.agents.registry import configure
from psdrl.api import Agent
from psdrl.config import Config
from psdrl.envs import make_env
from psdrl.errors import UserError

try:
    __version__ = version("psdrl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["Agent", "Config", "UserError", "__version__", "configure", "make_env"]
