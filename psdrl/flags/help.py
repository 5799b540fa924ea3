"""Help: a screen of the flags that everyone needs, or all of them, with values and where these come from."""

import ast
import contextlib
import inspect
import re
import textwrap
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from psdrl.config import flag

# What --help shows, in few words; --help-all shows everything.
COMMON = {
    "what to train": {
        "game": "Atari game, as ENVIRONMENT",
        "env": "any other environment, as ENVIRONMENT",
        "algo": "psdrl, its ablations or a baseline",
        "preset": "settings to start from; auto: by environment",
    },
    "how long": {
        "steps": "environment steps",
        "seed": "of everything that is random",
        "num_envs": "parallel environments",
        "eval_every": "steps between evaluations; 0: none",
        "eval_episodes": "episodes per evaluation",
        "checkpoint_every": "steps between checkpoints",
        "checkpoint_minutes": "minutes between them",
    },
    "where": {
        "logdir": "default: runs/ENV-ALGO-SEED; the same resumes",
        "resume": "auto, never or must",
        "device": "auto, cpu, cuda or cuda:N",
        "precision": "fp32, tf32, mixed or bf16",
        "compile": "torch.compile: a minute or two, then faster",
        "profile": "START:STOP, updates to profile",
    },
}
_TAG = re.compile(r"\[[^\]]+\]")


@cache
def texts(kind: Any) -> dict[str, str]:
    """What stands below each setting of a class, and of those it is made from, in its source."""
    found: dict[str, str] = {}
    parts: list[Any] = [part for part in reversed(kind.__mro__) if is_dataclass(part)]
    for part in parts:
        body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        assert isinstance(body, ast.ClassDef)
        for setting, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(setting, ast.AnnAssign)
                and isinstance(setting.target, ast.Name)
                and isinstance(text, ast.Expr)
            ):
                assert isinstance(text.value, ast.Constant)
                found[setting.target.id] = " ".join(str(text.value.value).split())
    return found


def with_source(text: str, value: Any, default: Any, preset: str) -> str:
    """The text of a setting whose value is shown: a tag such as [paper] belongs to the default of the class, so that a
    preset's own value says so instead."""
    tags = list(_TAG.finditer(text))
    if value == default or not tags:
        return text
    if len(tags) == 1 and tags[0].end() >= len(text.rstrip(".")):
        return f"{text[: tags[0].start()]}(preset {preset}; the default is {_plain(default)} {tags[0][0]})"
    return f"{text} (preset {preset}; the default is {_plain(default)})"  # these tags belong to choices


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def documented(kind: Any, shown: Any, preset: str) -> Any:
    """A class like this one, with these values as its defaults and texts that are true of them."""
    hints, defaults, said = get_type_hints(kind, include_extras=True), kind(), texts(kind)
    made: list[tuple[str, Any, Any]] = []
    for setting in fields(kind):
        name, value = setting.name, getattr(shown, setting.name)
        if is_dataclass(hints[name]):
            part = documented(hints[name], value, preset)
            made.append((name, part, field(default_factory=part)))
            continue
        text = with_source(said.get(name, ""), value, getattr(defaults, name), preset)
        made.append((name, Annotated[hints[name], tyro.conf.arg(help=text)], field(default=value)))
    return make_dataclass(kind.__name__, made, frozen=True, namespace={"__doc__": kind.__doc__})


def print_all(shown: Any, prog: str) -> None:
    """Every setting with its value, and where that comes from."""
    with contextlib.suppress(SystemExit):
        tyro.cli(documented(type(shown), shown, shown.preset), args=["--help"], prog=prog)


def print_common(shown: Any, prog: str, console: Console) -> None:
    """The flags that everyone needs, on one screen."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for title, settings in COMMON.items():
        table.add_row(f"[bold]{title}[/]")
        for name, words in settings.items():
            table.add_row(f"  {flag(name)}", _value(getattr(shown, name)), escape(words + _source(shown, name)))
    console.print(
        f"[bold]{prog} ENVIRONMENT \\[flags][/]\n"
        "ENVIRONMENT: an Atari game (Pong), deepsea-10, minatar/breakout, or any environment\n"
        "of gymnasium with discrete actions (CartPole-v1); psdrl envs lists them.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(table, highlight=False)
    console.print(
        f"[bold]--help-all[/] shows every setting of {shown.algo}; psdrl presets, what presets change.",
        highlight=False,
        soft_wrap=True,
    )


def _source(shown: Any, name: str) -> str:
    """Where the value comes from: the tag of the settings' class belongs to its default."""
    kind: Any = type(shown)
    tag = _TAG.search(texts(kind)[name])
    if tag is None:
        return ""
    source = re.split("[:;\\]]", tag[0][1:])[0]
    return f" [{source}]" if _is_default(shown, name) else f" [preset {shown.preset}]"


def _is_default(shown: Any, name: str) -> bool:
    return bool(getattr(shown, name) == getattr(type(shown)(), name))


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}".replace(",", "_") if isinstance(value, int) else escape(str(value))
