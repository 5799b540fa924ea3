"""What every run has: environment, steps, seed, device, logging; agents add settings of their own.

Each default says where it comes from: [paper] its hyperparameter table or text, [released] a fact of the authors' code
that the paper leaves out, [ours] a choice of this implementation."""

import dataclasses
import json
import re
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from psdrl.errors import UserError, nearest

T = TypeVar("T")

Precision = Literal["fp32", "tf32", "mixed", "bf16"]


@dataclass(frozen=True)
class AtariConfig:
    """Atari protocol: that of the paper by default, the same in every backend."""

    noop_max: int = 30
    """Random number of no-ops, 1 to this, at the start of an episode. [released]"""
    max_steps: int = 27_000
    """Steps after which an episode is cut. [released]"""
    size: int = 64
    """Height and width of a frame. [paper; its model-free baselines see 84, as Nature DQN does]"""
    repeat: int = 4
    """Frames that an action is repeated for; an observation is the maximum of the last two. [paper]"""
    stack: int = 1
    """Frames in an observation, as channels, oldest first. Agents with a replay stack of their own need 1. [paper]"""
    sticky: float = 0.0
    """Probability that a decision is ignored and the last action repeated, drawn once per decision and by our own
    generator, so that a run can be resumed exactly. ALE draws once per frame: at equal numbers this is harsher.
    [paper: 0]"""
    full_actions: bool = False
    """All 18 actions of the joystick instead of those that the game uses. [paper: minimal]"""
    life_loss: bool = False
    """In training a lost life ends the episode; scores and evaluation are of whole games. [paper: no life
    information]"""


@dataclass(frozen=True)
class MinAtarConfig:
    """MinAtar protocol."""

    sticky: float = 0.0
    """Probability of repeating the last action. [ours: deterministic, as the paper assumes; MinAtar publishes 0.1]"""
    stack: int = 1
    """Frames in an observation, this one and the last ones: games have timers that no single frame shows, such as when
    a player may move again. [ours: docs/experiments.md; MinAtar publishes 1]"""
    ramping: bool = False
    """Difficulty ramping. [ours: off; MinAtar publishes on]"""
    max_steps: int = 5000
    """Steps after which an episode is cut. [ours: MinAtar has no limit but Freeway's 2500]"""


@dataclass(frozen=True)
class Config:
    """The settings of a run, whatever its agent."""

    game: str | None = None
    """Atari game, e.g. Pong (Atari protocol of the paper)."""
    env: str | None = None
    """Any gymnasium environment with discrete actions, or deepsea-N, deepsea-N-image, minatar/GAME."""
    preset: str = "auto"
    """Settings to start from; auto chooses by environment and device."""
    algo: str = "psdrl"
    """The agent: PSDRL, one of the paper's ablations of it, or one of its baselines (psdrl/agents/registry.py)."""
    steps: int = 1_000_000
    """Environment steps, over all environments. [paper]"""
    seed: int = 0
    """Seed of networks, batches, posterior, policy and environments."""
    num_envs: int = 1
    """Parallel environments, each with its own episode and hidden state. [paper: 1]"""
    env_groups: int = 1
    """Environments are stepped in this many groups; while one group steps, the agent acts for another. It must divide
    num_envs; EnvPool and ale step in threads of their own, other backends gain nothing. [ours]"""
    env_backend: Literal["auto", "envpool", "ale", "gymnasium"] = "auto"
    """What runs Atari: EnvPool, ale-py's vector environment, or gymnasium; auto takes the first that is installed."""
    env_process: bool = False
    """Run each environment of --env in a process of its own: they step side by side, and one that dies or hangs is
    replaced; a step costs some 0.1 ms more. [ours]"""
    env_timeout: float = 60.0
    """With --env-process: seconds after which an environment that does not answer is taken for hung. [ours]"""
    env_restarts: int = 10
    """How often in a row an environment of --env that fails (raises, returns NaN, dies, hangs) is made anew and its
    episode discarded; an episode that ends begins the count again. [ours]"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto takes a GPU if there is one."""
    threads: int = 0
    """CPU threads of the agent, at most; 0: PyTorch's number, which is that of the cores or OMP_NUM_THREADS. Small
    networks are faster with one. [ours: bench/RESULTS.md]"""
    compile: bool = False
    """torch.compile the fast path's inner functions: a minute or two of warm-up, then faster."""
    cuda_graphs: bool = True
    """Replay the inner steps as CUDA graphs on a GPU: one launch per step. Has no effect on a CPU. [ours]"""
    precision: Precision = "tf32"
    """Of the networks' products and convolutions: float32; float32 storage with tf32 products on a GPU (a CPU computes
    float32); mixed, which is tf32 with the networks that look at images in bfloat16 (a CPU computes float32); or
    bfloat16. Parameters are always float32, the posterior float64. [ours: bench/RESULTS.md, error of planning
    targets]"""
    profile: str | None = None
    """START:STOP brackets these updates, counted from 0, for nsys and ncu; on a CPU a trace for Perfetto is written
    into logdir. See docs/profiling.md."""
    chunk_rows: int = 4096
    """Most rows that a network sees at once, on a GPU eight times as many: bounds memory, changes no result but
    rounding. [ours: measured on a CPU; 32,768 rows keep a GPU busy for 10 ms, so launching does not show]"""
    logdir: Path | None = None
    """Where everything is written; the same directory resumes. Default: runs/ENV-ALGO-SEED."""
    log: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Log to wandb or mlflow too, or both (wandb,mlflow); metrics.jsonl and TensorBoard are always written."""
    resume: Literal["auto", "never", "must"] = "auto"
    """Continue a run found in logdir: if there is one, never (refuse), or insist on one."""
    eval_every: int = 10_000
    """Steps between two evaluations; 0: none. [paper]"""
    eval_episodes: int = 1
    """Episodes per evaluation, on an environment of its own. [released]"""
    checkpoint_every: int = 50_000
    """Steps between two checkpoints; 0: none by steps. [ours]"""
    checkpoint_minutes: float = 5.0
    """Minutes between two checkpoints, besides those by steps; longer if saving would take over 2% of the time; 0: none
    by the clock. A run that ends, is interrupted or meets an error is saved in any case. [ours]"""
    checkpoint_keep: int = 2
    """Checkpoints that are kept: if the last one is damaged, the one before serves. [ours]"""
    atari: AtariConfig = field(default_factory=AtariConfig)
    minatar: MinAtarConfig = field(default_factory=MinAtarConfig)

    def rows_at_once(self, gpu: bool) -> int:
        """`chunk_rows` on a CPU or on a GPU."""
        return self.chunk_rows * (8 if gpu else 1)

    @property
    def env_name(self) -> str:
        """The environment as the user names it."""
        return self.game or self.env or ""

    @property
    def default_logdir(self) -> Path:
        """runs/ENV-ALGO-SEED, in characters that every file system and shell takes."""
        return Path("runs") / re.sub(r"[^\w.+-]+", "-", f"{self.env_name}-{self.algo}-{self.seed}")

    @property
    def profiled(self) -> range:
        """The updates of --profile, counted from 0."""
        if self.profile is None:
            return range(0)
        start, _, stop = self.profile.partition(":")
        if not (start.isdigit() and stop.isdigit() and int(start) < int(stop)):
            raise UserError(f"--profile {self.profile} must be START:STOP with START < STOP, e.g. 2:4 for two updates.")
        return range(int(start), int(stop))

    def check(self) -> None:
        """Refuse what cannot work, with one sentence that says what to do. Agents check their own settings too."""
        _ = self.profiled
        if bool(self.game) == bool(self.env):
            raise UserError(
                "Name one environment, such as psdrl train Pong: --game GAME for Atari or --env ID for anything else."
            )
        if self.atari.noop_max < 1:
            raise UserError("--atari.noop-max must be at least 1: EnvPool crashes on 0 (use 1 for the shortest start).")
        at_least(self, MINIMA)
        positive(self, ("env_timeout",))
        if self.num_envs % self.env_groups:
            raise UserError(
                f"--env-groups is {self.env_groups} but must divide --num-envs {self.num_envs}: groups are of one size."
            )
        shares(self, ("minatar.sticky", "atari.sticky"))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON-ready values."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=str))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Config":
        """The inverse of `to_dict`; unknown names are refused."""
        return _from_dict(cls, values)


MINIMA = {
    "steps": 1,
    "seed": 0,
    "num_envs": 1,
    "env_groups": 1,
    "threads": 0,
    "chunk_rows": 1,
    "env_restarts": 0,
    "eval_every": 0,
    "eval_episodes": 1,
    "checkpoint_every": 0,
    "checkpoint_minutes": 0,
    "checkpoint_keep": 1,
    "atari.max_steps": 1,
    "atari.size": 1,
    "atari.repeat": 1,
    "atari.stack": 1,
    "minatar.max_steps": 1,
    "minatar.stack": 1,
}


def lookup(config: Any, dotted: str) -> Any:
    """The setting called `a.b`."""
    for name in dotted.split("."):
        config = getattr(config, name)
    return config


def flag(dotted: str) -> str:
    """The flag of a setting."""
    return "--" + dotted.replace("_", "-")


def merge(settings: T, values: dict[str, Any], prefix: str = "") -> T:
    """The settings with these values in their places, {"value": {"units": 64}} for a nested one; unknown names and
    wrong types are refused."""
    hints = get_type_hints(type(settings))
    names = [f.name for f in dataclasses.fields(settings)]  # type: ignore[arg-type]
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in names:
            raise UserError(f"Unknown setting {prefix + name!r}{nearest(name, names) or f': use {_listed(names)}.'}")
        nested = dataclasses.is_dataclass(hints[name])
        if nested and isinstance(value, dict):
            changed[name] = merge(getattr(settings, name), value, f"{prefix}{name}.")
        else:
            changed[name] = _of_type(value, hints[name], prefix + name)
    return dataclasses.replace(settings, **changed)  # type: ignore[type-var]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _of_type(value: Any, kind: Any, name: str) -> Any:
    """The value as this type, 1e6 as a whole number, a list or a single value as a tuple; refuses anything else."""
    origin, parts = get_origin(kind), get_args(kind)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        return _of_type(value, next(part for part in parts if part is not type(None)), name)
    if origin is Literal and isinstance(value, str) and value in parts:
        return value
    if origin is tuple:
        several = value if isinstance(value, tuple | list) else (value,)
        return tuple(_of_type(part, parts[0], name) for part in several)
    if kind is int and number and value == value // 1:
        return int(value)
    if kind is float and number:
        return float(value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if (kind in (bool, str) or dataclasses.is_dataclass(kind)) and isinstance(value, kind):
        return value
    raise UserError(f"{name} is {value!r} but must be {_in_words(kind)}.")


def _in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return _listed([repr(choice) for choice in get_args(kind)])
    if dataclasses.is_dataclass(kind):
        return f"a dict of its settings: {_listed([f.name for f in dataclasses.fields(kind)])}"
    return {int: "a whole number", float: "a number", bool: "True or False", Path: "a path"}.get(kind, "a string")


def at_least(config: Config, minima: dict[str, int]) -> None:
    """Refuse settings below these; NaN too."""
    for name, minimum in minima.items():
        if not lookup(config, name) >= minimum:
            raise UserError(f"{flag(name)} is {lookup(config, name)} but must be at least {minimum}.")


def positive(config: Config, names: tuple[str, ...]) -> None:
    """Refuse settings that are not above 0."""
    for name in names:
        if not lookup(config, name) > 0:
            raise UserError(f"{flag(name)} is {lookup(config, name)} but must be greater than 0.")


def shares(config: Config, names: tuple[str, ...]) -> None:
    """Refuse settings that are no probabilities."""
    for name in names:
        if not 0 <= lookup(config, name) <= 1:
            raise UserError(f"{flag(name)} is {lookup(config, name)} but must lie between 0 and 1.")


def _from_dict(cls: Any, values: dict[str, Any]) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise UserError(f"Unknown setting {unknown[0]!r} in the stored configuration (written by another version?).")
    kwargs = {}
    for name, value in values.items():
        kind = fields[name].type
        if dataclasses.is_dataclass(kind):
            value = _from_dict(kind, value)
        elif isinstance(value, list):
            value = tuple(value)
        elif kind == Path | None and value is not None:
            value = Path(value)
        kwargs[name] = value
    return cls(**kwargs)
