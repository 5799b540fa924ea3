"""What a sweep consists of: every game, agent, seed and setting is one case, checked before anything starts."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from psdrl import catalogue
from psdrl.agents import registry
from psdrl.arguments import TRAIN, parse_train
from psdrl.config import Config, flag, lookup
from psdrl.envs import make_env
from psdrl.envs.atari import GAMES, check_game
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.run.checkpoint import check_same
from psdrl.run.store import manifest
from psdrl.run.store.files import Damaged
from psdrl.run.store.saver import checkpoints, order
from psdrl.sweep import grid
from psdrl.sweep.grid import Axis, Point
from psdrl.sweep.worker import RUN

SIX = ("Asterix", "Enduro", "Freeway", "Hero", "Qbert", "Seaquest")  # the paper tuned on these
SETS = {"atari55": GAMES, "six": SIX}
OURS = ("game", "env", "algo", "seed", "logdir", "resume", "profile")  # flags of train that a sweep sets itself
LONGEST = 150  # characters of a folder's name
RECORD = "sweep.json"


@dataclass(frozen=True)
class Case:
    """One training run of a sweep."""

    env: str
    algo: str
    seed: int
    point: Point
    flags: tuple[str, ...]  # of psdrl train: preset, the point's, the sweep's
    config: Config = field(compare=False)
    spec: EnvSpec = field(compare=False)

    def __str__(self) -> str:
        return ", ".join([self.env, self.algo, *(f"{key} {value}" for key, value in self.point), f"seed {self.seed}"])

    @property
    def setting(self) -> str:
        """The agent with its place in the grid."""
        return ", ".join([self.algo, *(f"{key} {value}" for key, value in self.point)])

    @property
    def name(self) -> str:
        """ENV/AGENT/seed-N, below the sweep's directory."""
        agent = "-".join([self.algo, *(f"{key}={value}" for key, value in self.point)])
        return f"{_file_name(self.env)}/{_file_name(agent)}/seed-{self.seed}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of psdrl train, without --logdir."""
        kind = "--game" if self.config.game else "--env"
        return kind, self.env, "--algo", self.algo, "--seed", str(self.seed), *self.flags

    def run(self, out: Path) -> Path:
        """Its run directory."""
        return out / self.name / RUN

    def finished(self, out: Path) -> bool:
        """Whether its run has all its steps: asked of the run itself, whose last checkpoint says so."""
        for path in checkpoints(self.run(out))[:1]:
            try:
                return order(path)[0] >= self.config.steps and bool(manifest.load(path))
            except Damaged:
                return False
        return False


def _file_name(text: str) -> str:
    name = re.sub(r"[^\w.+=-]+", "-", text)
    if len(name) <= LONGEST:
        return name
    return f"{name[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def names_of_games(text: str) -> list[str]:
    """`six`, `atari55`, or names with commas between them."""
    found: list[str] = []
    for word in names(text):
        found += SETS[word] if word in SETS else [check_game(word)]
    return found


def names_of_envs(text: str) -> list[str]:
    """Names with commas between them, as `psdrl train` takes them."""
    return names(text)


def seeds(text: str) -> list[int]:
    """`3`: 0, 1 and 2; `5:8`: 5, 6 and 7; `1,4`: these."""
    try:
        if ":" in text:
            first, last = map(int, text.split(":"))
            found = list(range(first, last))
        else:
            found = [int(word) for word in names(text)] if "," in text else list(range(int(text)))
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise UserError(f"--seeds {text} must be a number of seeds (3), a range (5:8) or a list (1,4).")
    return found


def names(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@dataclass(frozen=True)
class Block:
    """Cases that are made alike: all combinations of these."""

    envs: tuple[str, ...]
    algos: tuple[str, ...] = ("psdrl",)
    seeds: tuple[int, ...] = (0,)
    axes: tuple[Axis, ...] = ()
    flags: tuple[str, ...] = ()

    def cases(self, specs: "Specs") -> list[Case]:
        """All of them, one seed of everything first: a sweep that is cut short has compared something."""
        made = [self._case(env, algo, point, specs) for env in self.envs for algo, point in self._agents()]
        return [_with_seed(case, seed) for seed in self.seeds for case in made]

    def _agents(self) -> list[tuple[str, Point]]:
        return [(algo, point) for algo in self.algos for point in grid.points(list(self.axes))]

    def _case(self, env: str, algo: str, point: Point, specs: "Specs") -> Case:
        chosen = catalogue.environment(env)
        words = _chosen(self.flags, algo, chosen)
        start, _ = registry.preset(chosen | {"algo": algo} | {name: words[name] for name in CHOICES if name in words})
        config = _with(start, {name: value for name, value in words.items() if name != "preset"})
        flags = ["--preset", config.preset, *without(self.flags, "--preset"), *grid.flags(point, config)]
        for axis in point:
            config = _with(config, _varied(self.flags, algo, axis, config, chosen))
        config.check()
        return Case(env, algo, 0, point, tuple(flags), config, specs.of(config))


CHOICES = ("preset", "device")
_parsed: dict[tuple[Any, ...], dict[str, Any]] = {}


def _chosen(flags: tuple[str, ...], algo: str, env: dict[str, str]) -> dict[str, Any]:
    """The settings that flags name, by dotted name. They are parsed for the first environment, which takes a fifth of
    a second, and are the same for all others: it is the presets that differ."""
    if (flags, algo) not in _parsed:
        where = [part for name, value in env.items() for part in (flag(name), value)]
        config, _ = parse_train([*where, "--algo", algo, *flags])
        _parsed[flags, algo] = {name: lookup(config, name) for name in _named(type(config), flags)}
    return _parsed[flags, algo]


def _varied(
    flags: tuple[str, ...], algo: str, axis: tuple[str, str], config: Config, env: dict[str, str]
) -> dict[str, Any]:
    """The setting that a value of the grid changes. Of a pair, the other number is that of the settings around it."""
    base, _, part = axis[0].rpartition("-")
    if part in grid.PARTS:
        pair = tuple(grid.pair(lookup(config, base.replace("-", "_")), grid.PARTS.index(part), axis[1]))
        return {base.replace("-", "_"): pair}
    words = tuple(grid.flags((axis,), config))
    preset = ("--preset", config.preset)
    return {name: _chosen((*preset, *words), algo, env)[name] for name in _named(type(config), words)}


def _named(kind: Any, words: Iterable[str]) -> list[str]:
    """The settings that flags name."""
    by_flag = {flag(name): name for name in _dotted(kind)}
    by_flag |= {flag(_negated(name)): name for name in by_flag.values()}
    heads = (word.partition("=")[0].replace("_", "-") for word in words)
    return [by_flag[head] for head in heads if head in by_flag]


def _negated(name: str) -> str:
    group, dot, leaf = name.rpartition(".")
    return f"{group}{dot}no_{leaf}"


def _dotted(kind: Any, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, hint in get_type_hints(kind).items():
        found += _dotted(hint, f"{prefix}{name}.") if is_dataclass(hint) else [prefix + name]
    return found


def _with(config: Any, values: dict[str, Any]) -> Any:
    """The settings with others in their places, by dotted name."""
    for name, value in values.items():
        head, _, rest = name.partition(".")
        value = _with(getattr(config, head), {rest: value}) if rest else value
        config = replace(config, **{head: value})
    return config


def without(words: tuple[str, ...], name: str) -> list[str]:
    """Flags but this one and its value."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == name:
            next(rest, None)
        elif not word.startswith(f"{name}="):
            kept.append(word)
    return kept


def _with_seed(case: Case, seed: int) -> Case:
    return replace(case, seed=seed, config=replace(case.config, seed=seed))


class Specs:
    """What environments are like; each is made once, which is how a wrong name is found."""

    def __init__(self) -> None:
        self._known: dict[str, EnvSpec] = {}

    def of(self, config: Config) -> EnvSpec:
        """The spec of the environment that these settings name."""
        key = json.dumps([config.to_dict()[name] for name in ("game", "env", "atari", "minatar")])
        if key not in self._known:
            env = make_env(config, num_envs=1)
            env.close()
            self._known[key] = env.spec
        return self._known[key]


def plan(blocks: Iterable[Block]) -> list[Case]:
    """The cases of all blocks; refuses what cannot be run."""
    specs, cases = Specs(), dict[str, Case]()
    for block in blocks:
        _refuse_ours(block.flags)
        for case in block.cases(specs):
            if case.name in cases and cases[case.name] != case:
                raise UserError(f"Two settings of this sweep have one name, {case.name}: vary one of them by --grid.")
            cases[case.name] = case
    if not cases:
        raise UserError("Nothing to run: name games (--games six) or environments (--envs deepsea-10,CartPole-v1).")
    return list(cases.values())


def _refuse_ours(words: Iterable[str]) -> None:
    for word in words:
        name = word.partition("=")[0]
        if name in [flag(ours) for ours in OURS]:
            instead = {"--game": "--games", "--env": "--envs", "--algo": "--algos", "--seed": "--seeds"}
            hint = f": use {instead[name]}." if name in instead else ": a sweep sets it itself."
            raise UserError(f"{name} is a flag of {TRAIN}, not of a sweep{hint}")


def check_directory(out: Path, cases: list[Case]) -> None:
    """Refuse a directory that holds something else, or these cases under other settings."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: name a directory.")
    if out.exists() and not (out / RECORD).exists() and any(p.name[0] != "." for p in out.iterdir()):
        raise UserError(f"--out {out} is not empty and holds no sweep: use another.")
    for case in cases:
        run = case.run(out)
        if (run / "config.json").exists():
            try:
                check_same(run, case.config)
            except UserError as error:
                raise UserError(str(error).replace("--logdir", "--out")) from None
