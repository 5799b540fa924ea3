"""Command lines: `psdrl train ...`, `psdrl evaluate ...`, and the same as `python -m psdrl.train`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import tyro
from rich.console import Console
from rich.markup import escape

from psdrl import doctor
from psdrl.agents import registry
from psdrl.cost import forecast as cost
from psdrl.errors import UserError
from psdrl.run import evaluation as evaluate
from psdrl.run import train as training


@dataclass(frozen=True)
class _Selection:
    """The flags that choose agent and preset; they are read first, because these set the other flags' defaults."""

    game: str | None = None
    env: str | None = None
    preset: str = "auto"
    algo: str = "psdrl"
    device: str = "auto"


def parse_train(arguments: list[str]) -> tuple[Any, str]:
    """Configuration from flags, in the agent's own class, and why its preset was chosen."""
    known = [a for a in arguments if a not in ("-h", "--help")]
    selection, _ = tyro.cli(_Selection, args=known, return_unknown_args=True, add_help=False, prog="psdrl.train")
    start, why = registry.preset(vars(selection))
    return tyro.cli(type(start), args=arguments, default=start, prog="psdrl.train"), why


def train(arguments: list[str]) -> int:
    """`psdrl train`."""
    return training.run(*parse_train(arguments), arguments)


def play(arguments: list[str]) -> int:
    """`psdrl evaluate`."""
    evaluate.run(tyro.cli(evaluate.Evaluation, args=arguments, prog="psdrl.evaluate"))
    return 0


def predict(arguments: list[str]) -> int:
    """`psdrl cost`."""
    cost.run(tyro.cli(cost.Question, args=arguments, prog="psdrl.cost"))
    return 0


def examine(arguments: list[str]) -> int:
    """`psdrl doctor`."""
    return doctor.run(tyro.cli(doctor.Doctor, args=arguments, prog="psdrl.doctor"))


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (train, "train an agent"),
    "evaluate": (play, "play a trained agent"),
    "cost": (predict, "predict hours and memory of a run"),
    "doctor": (examine, "check kernels, modes and speed on this machine"),
}


def _exit(command: Callable[[list[str]], int], arguments: list[str]) -> NoReturn:
    """Run a command; a user's error is one sentence on stderr and exit code 2."""
    try:
        sys.exit(command(arguments))
    except UserError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True, markup=True
        )
        sys.exit(2)


def main() -> NoReturn:
    """The `psdrl` console script."""
    name, *arguments = sys.argv[1:] or [""]
    if name in COMMANDS:
        _exit(COMMANDS[name][0], arguments)
    lines = [f"  psdrl {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    print("usage: psdrl COMMAND [flags], with --help for its flags\n" + "\n".join(lines))
    sys.exit(0 if name in ("-h", "--help") else 2)


def main_train() -> Any:
    """`python -m psdrl.train`."""
    _exit(train, sys.argv[1:])


def main_evaluate() -> Any:
    """`python -m psdrl.evaluate`."""
    _exit(play, sys.argv[1:])


def main_cost() -> Any:
    """`python -m psdrl.cost`."""
    _exit(predict, sys.argv[1:])


def main_doctor() -> Any:
    """`python -m psdrl.doctor`."""
    _exit(examine, sys.argv[1:])
