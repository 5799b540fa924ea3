"""Environments: one vector interface over EnvPool, ale-py, gymnasium and the built-in problems."""

from psdrl.envs.make import make_env
from psdrl.envs.registry import listing
from psdrl.envs.vector import EnvSpec, Step, VectorEnv
from psdrl.envs.wrap import wrap

__all__ = ["EnvSpec", "Step", "VectorEnv", "listing", "make_env", "wrap"]
