"""--grid KEY=VALUE,VALUE: settings that a sweep varies, as flags of `psdrl train`."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_type_hints

from psdrl.config import Config, flag, lookup
from psdrl.errors import UserError
from psdrl.flags.parse import flags_of
from psdrl.flags.suggest import suggestion

PARTS = ("latent", "reward")  # posterior.prior and posterior.noise: of latent targets, of the reward
ON, OFF = {"on", "true", "yes"}, {"off", "false", "no"}
Point = tuple[tuple[str, str], ...]  # keys and values as they were written


class Axis(NamedTuple):
    """A setting and its values; a value of several words is several numbers."""

    key: str
    values: tuple[str, ...]


def parse(words: Iterable[str]) -> list[Axis]:
    """From `posterior.prior-latent=1e1,1e3` and the like; keys may be written as flags, too."""
    axes: list[Axis] = []
    for word in words:
        key, equals, text = word.partition("=")
        key = key.removeprefix("--").replace("_", "-")
        values = tuple(value.strip() for value in text.split(",") if value.strip())
        if not equals or not key or not values:
            raise UserError(f"--grid {word} must be KEY=VALUE,VALUE, such as --grid value.discount=0.99,0.999.")
        if key in [axis.key for axis in axes]:
            raise UserError(f"--grid {key} is given twice: name all of its values at once.")
        if len(set(values)) < len(values):
            raise UserError(f"--grid {key} has a value twice: {text}.")
        axes.append(Axis(key, values))
    return axes


def points(axes: list[Axis]) -> Iterator[Point]:
    """All combinations; one empty one if there is no grid."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield tuple((axis.key, value) for axis, value in zip(axes, values, strict=True))


def flags(point: Point, config: Config) -> list[str]:
    """The flags of a point; `config`: the settings around it, which know what is a switch and what has parts."""
    kind, words, parts = type(config), [], dict[str, tuple[Any, ...]]()
    known = flags_of(kind)
    for key, value in point:
        base, _, part = key.rpartition("-")
        if part in PARTS and flag(base) in known:
            before = parts.get(base, lookup(config, base.replace("-", "_")))
            parts[base] = pair(before, PARTS.index(part), value)
        elif flag(key) not in known:
            raise UserError(f"--grid {key}: {config.algo} has no such setting{_hint(key, known)}")
        elif _type(kind, key) is bool:
            words.append(_switch(key, value))
        else:
            words += [flag(key), *value.split()]
    for base, both in parts.items():
        words += [flag(base), *map(str, both)]
    return words


def pair(values: Any, index: int, value: str) -> tuple[float, float]:
    """A pair with one of its numbers replaced; one number stands for both."""
    if not isinstance(values, tuple) or len(values) not in (1, 2):
        raise UserError("Only posterior.prior and posterior.noise have parts -latent and -reward.")
    try:
        return (float(value), values[-1]) if index == 0 else (values[0], float(value))
    except ValueError:
        raise UserError(f"--grid: {value!r} is no number, such as 0.001 or 1e-3.") from None


def _hint(key: str, known: list[str]) -> str:
    """A suggestion without dashes: keys of a grid have none."""
    return suggestion(flag(key), known).replace("--", "") or ": psdrl train --help-all lists them."


def _type(kind: Any, key: str) -> Any:
    for name in key.replace("-", "_").split("."):
        kind = get_type_hints(kind)[name]
    return kind


def _switch(key: str, value: str) -> str:
    if value.lower() not in ON | OFF:
        raise UserError(f"--grid {key}={value}: it is a switch, use on or off.")
    group, dot, name = key.rpartition(".")
    return flag(key) if value.lower() in ON else flag(f"{group}{dot}no-{name}")
