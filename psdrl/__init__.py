"""PSDRL: Posterior Sampling for Deep Reinforcement Learning (Sasso, Conserva, Rauber; ICML 2023)."""

import os

# Tensors of 2 MB and more on huge pages, where Linux has them: otherwise an update at the cpu preset spends 7 % of its
# time on page faults. torch reads this with its first allocation, so it stands before all imports; 0 switches it off.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from psdrl.agents.registry import configure
from psdrl.api import Agent, load, train
from psdrl.config import Config
from psdrl.envs import make_env
from psdrl.errors import UserError
from psdrl.run.callbacks import Callback
from psdrl.version import __version__

__all__ = ["Agent", "Callback", "Config", "UserError", "__version__", "configure", "load", "make_env", "train"]
