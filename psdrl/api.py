"""PSDRL from Python: `train` and `load` give an `Agent`, which trains, plays, and can be saved. See docs/library.md."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
from numpy.typing import ArrayLike
from rich.console import Console

from psdrl.agents.registry import configure, make_agent
from psdrl.config import Config
from psdrl.envs import EnvSpec, VectorEnv, make_env, wrap
from psdrl.envs.atari import GAMES
from psdrl.envs.vector import GroupedEnv
from psdrl.errors import UserError
from psdrl.run import evaluation, loop
from psdrl.run.callbacks import Callback, Progress, resume
from psdrl.run.checkpoint import Store, check_same, newest, restore, save, write_config
from psdrl.run.log import run_callbacks
from psdrl.run.policy import Policy
from psdrl.run.spec import write_spec
from psdrl.run.store.lock import Lock
from psdrl.run.train import refuse_what_is_no_run
from psdrl.runtime.device import is_gpu, resolve_device

Environment = VectorEnv | gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv | Callable[[], gymnasium.Env[Any, Any]]
Stop = Callable[[], bool]
OBJECTS = (VectorEnv, gymnasium.Env, gymnasium.vector.VectorEnv)  # they belong to the user, who closes them
PYTHON = evaluation.PYTHON


class Agent:
    """The agent that the configuration names; `core` is the agent itself (`psdrl.agents`)."""

    def __init__(self, config: Config, spec: EnvSpec, core: Any = None) -> None:
        self.core: Any = core or make_agent(config, spec)
        self.trainable = True  # not where a run was loaded without its replay buffer
        self._store: Store | None = None
        self._from: Path | None = None  # the checkpoint that it comes from
        self._listened: dict[str, Any] = {}  # how far the callbacks of a run with a directory are
        self._running: dict[str, Any] | None = None  # the running episodes of that checkpoint, until it is trained on
        self._act: Policy | None = None
        self._make: Callable[[int], VectorEnv] | None = None  # an environment for evaluation, if not by its name

    @property
    def config(self) -> Config:
        """The settings."""
        return self.core.config

    @property
    def spec(self) -> EnvSpec:
        """What it knows of its environment."""
        return self.core.spec

    @property
    def step(self) -> int:
        """Environment steps taken."""
        return self.core.step

    @property
    def updates(self) -> int:
        """Updates made."""
        return self.core.updates

    def train(
        self,
        env: Environment,
        callbacks: Callback | Iterable[Callback] = (),
        stop: Stop = lambda: False,
        progress: bool = False,
        steps: int | None = None,
    ) -> None:
        """Interact with the environment until `steps` (config.steps if not given) or `stop()`; progress: show a bar.

        With config.logdir the run is written there as `psdrl train` does, and a run found there continues. A gymnasium
        object is evaluated on another one like it, made by the function given or from its registered name."""
        if not self.trainable:
            raise UserError("This agent was loaded without its replay buffer: psdrl.load(run, replay=True) trains on.")
        if steps is not None:
            self.core.config = replace(self.config, steps=steps)
        logdir = Path(self.config.logdir) if self.config.logdir else None
        with ExitStack() as stack:
            if logdir:
                stack.enter_context(Lock(logdir))
                self._open(logdir)
            self._train(env, callbacks, stop, progress)

    def _train(self, env: Environment, callbacks: Callback | Iterable[Callback], stop: Stop, progress: bool) -> None:
        """`train`, as the only process that writes into logdir."""
        own = run_callbacks(self.config) if self._store else []
        given = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
        listening = [*own, *given, *([Progress(Console())] if progress else [])]
        resume(listening, self._listened)
        vector = env if isinstance(env, VectorEnv) else wrap(env, self.config)
        if _interface(vector.spec) != _interface(self.spec):
            raise UserError(f"This agent was made for {self.spec}, but the environment is {vector.spec}.")
        if not isinstance(env, VectorEnv):
            self._make = maker(env, self.config)
            self._evaluate_or_say_not()
        try:
            state, self._running = self._running, None
            loop.train(self.core, vector, listening, stop, self._store, self._make, state)
        finally:
            if not isinstance(env, OBJECTS):  # made here
                vector.close()
        self._listened = {type(c).__name__: c.state() for c in listening}

    def _open(self, logdir: Path) -> None:
        """The run's directory: continue what it holds, unless this agent has trained already."""
        if self.step == 0:
            refuse_what_is_no_run(self.config, logdir)
            self._from = newest(logdir).newest
            if self._from is not None:
                extra = restore(self._from, self.core)
                self._listened, self._running = extra.get("callbacks", {}), extra.get("loop")
        if self._store is None:
            self._store = Store(logdir, self.config.checkpoint_keep)
            if self._from is not None:
                self._store.resume(self._from, self.core.replay)
        write_config(logdir, self.config)
        write_spec(logdir, self.spec)

    def _evaluate_or_say_not(self) -> None:
        if self._make is None and self.config.eval_every:
            warnings.warn(
                f"{self.spec.name} is not evaluated during training, because an object cannot be made a second time: "
                "pass a function that makes one, such as lambda: MyEnv().",
                stacklevel=3,
            )
            self.core.config = replace(self.config, eval_every=0)

    def evaluate(self, episodes: int = 10, env: Environment | None = None, **options: Any) -> list[float]:
        """Returns of this many episodes, see `psdrl.run.evaluation.evaluate`; `env`: on this environment, by default on
        one like that of training."""
        make = self._make if env is None else playing(env, self.config)
        return evaluation.evaluate(self.core, episodes, make=make, **options)

    def policy(
        self, num_envs: int | None = None, policy: str | None = None, epsilon: float | None = None, seed: int = 0
    ) -> Policy:
        """A function from observations to actions with hidden state and random stream of its own; see `Policy`."""
        return Policy(self.core, num_envs, policy, epsilon, seed)

    def act(self, observation: ArrayLike, start: bool = False) -> int:
        """The action for one observation. The hidden state goes on from call to call; `start`: an episode begins."""
        self._act = self._act or self.policy()
        if start:
            self._act.reset()
        return self._act(observation)

    def save(self, path: str | Path) -> Path:
        """Write a run directory that `load` and `psdrl evaluate` accept; returns it."""
        path = Path(path)
        if (path / "config.json").exists():
            check_same(path, self.config)
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} holds something else: save into an empty or a new directory.")
        with Lock(path):
            write_config(path, replace(self.config, logdir=path))
            write_spec(path, self.spec)
            save(path, self.core)
        return path


def load(run: str | Path, device: str = "auto", replay: bool = False) -> Agent:
    """The agent of a run, as its last checkpoint has it; `replay`: with its replay buffer, to train on."""
    core, checkpoint, extra = evaluation.restored(Path(run), device, replay)
    agent = Agent(core.config, core.spec, core)
    agent.trainable, agent._from, agent._listened = replay, checkpoint, extra.get("callbacks", {})
    agent._running = extra.get("loop")
    return agent


def train(
    env: str | Environment,
    callbacks: Callback | Iterable[Callback] = (),
    stop: Stop = lambda: False,
    progress: bool = False,
    **settings: Any,
) -> Agent:
    """Train an agent: `train("deepsea-10", steps=2000)`, `train("Pong")`, `train(lambda: MyEnv(), num_envs=4)`.

    env: the name of an environment or Atari game, a gymnasium environment, a vector of them, or a function that makes
    one. settings: those of `configure`; with `logdir` the run is written there. See `Agent.train`."""
    if isinstance(env, str):
        config = configure(**{"game" if env in GAMES else "env": env}, **settings)
        vector = make_env(config)
        try:
            agent = Agent(config, vector.spec)
            agent.train(vector, callbacks, stop, progress)
        finally:
            vector.close()
        return agent
    if isinstance(env, VectorEnv):
        raise UserError("train makes environments by itself: give a name, or use Agent(config, env.spec).train(env).")
    config, spec = configured(env, settings)
    agent = Agent(config, spec)
    agent.train(env, callbacks, stop, progress)
    return agent


def configured(env: Environment, settings: dict[str, Any]) -> tuple[Any, EnvSpec]:
    """Settings for a gymnasium object, with a preset after its observations; and what an agent must know of it."""
    settings = {"env": PYTHON + name_of(env), **settings}
    if isinstance(env, gymnasium.vector.VectorEnv):
        settings["num_envs"] = env.num_envs
    known = {name: settings[name] for name in ("env", "seed", "num_envs", "env_groups") if name in settings}
    vector = wrap(env, Config(**known))
    if not isinstance(env, OBJECTS):
        vector.close()  # the run makes its own
    if settings.get("preset", "auto") == "auto":
        large = is_gpu(resolve_device(settings.get("device", "auto")))
        settings["preset"] = ("paper" if large else "cpu") if vector.spec.kind == "image" else "control"
    return configure(**settings), vector.spec


def name_of(env: Any) -> str:
    """What to call an environment object: its registered name, or that of its class or function."""
    registered = getattr(getattr(env, "spec", None), "id", None)
    inner = env.unwrapped if isinstance(env, gymnasium.Env) else env
    return registered or getattr(inner, "__name__", type(inner).__name__).strip("<>")


def maker(env: Any, config: Config) -> Callable[[int], VectorEnv] | None:
    """How to make one environment like this one, for a random stream; None if nobody knows how."""
    make = env if callable(env) else None
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        make = _remake(env)
    if make is None:
        return None
    return lambda stream: wrap(make, config, num_envs=1, stream=stream)


def _remake(env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv) -> Callable[[], Any] | None:
    """From its registered name and the wrappers around it, if gymnasium can."""
    spec = env.spec
    if spec is None or isinstance(env, gymnasium.vector.VectorEnv):
        return None
    try:
        gymnasium.make(spec).close()
    except (gymnasium.error.Error, ValueError, TypeError):  # a wrapper of one's own that does not tell its arguments
        return None
    return lambda: gymnasium.make(spec)


def playing(env: Environment, config: Config) -> Callable[[int], VectorEnv]:
    """For evaluation on a given environment; an object stays open."""

    def make(stream: int) -> VectorEnv:
        vector = env if isinstance(env, VectorEnv) else wrap(env, config, num_envs=1, stream=stream)
        return Lent([vector]) if isinstance(env, OBJECTS) else vector

    return make


class Lent(GroupedEnv):
    """Environments that somebody else closes."""

    def close(self) -> None:
        """Nothing."""


def _interface(spec: EnvSpec) -> tuple[Any, ...]:
    return spec.kind, spec.shape, spec.dtype, spec.num_actions
