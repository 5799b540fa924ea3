"""Command lines: `psdrl train ...`, `psdrl evaluate ...`, and the same as `python -m psdrl.train`."""

import difflib
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from rich.markup import escape

from psdrl import catalogue, doctor
from psdrl.agents import registry
from psdrl.arguments import TRAIN, Selection, parse_train, starting
from psdrl.console import PatientConsole
from psdrl.cost import forecast as cost
from psdrl.errors import UserError
from psdrl.flags.help import print_all, print_common
from psdrl.flags.parse import command, parse, parse_known
from psdrl.report import command as report
from psdrl.run import evaluate, probe
from psdrl.run import train as training
from psdrl.sweep import command as sweeping
from psdrl.sweep import reproduce as reproducing
from psdrl.version import __version__
from psdrl.view import command as view


def train(arguments: list[str]) -> int:
    """`psdrl train`."""
    if helped(arguments):
        return 0
    return training.run(*parse_train(arguments), arguments)


def helped(arguments: list[str]) -> bool:
    """Whether help was asked for and shown: flags with the values that they start from; without an environment, those
    of the agent's settings."""
    asked = {word for word in arguments if word in ("-h", "--help", "--help-all")}
    if not asked:
        return False
    arguments = [word for word in arguments if word not in asked]
    selection, _ = parse_known(Selection, arguments, TRAIN)
    kind = registry.entry(selection.algo).settings
    chosen = selection.game or selection.env or selection.logdir or selection.preset != "auto"
    named = chosen or parse(kind, arguments, TRAIN)[1]
    shown = starting(arguments)[0] if named else kind(algo=selection.algo)
    if "--help-all" in asked:
        print_all(shown, TRAIN)
    else:
        print_common(shown, TRAIN, PatientConsole())
    return True


def play(arguments: list[str]) -> int:
    """`psdrl evaluate`."""
    evaluate.run(command(evaluate.Evaluation, arguments, "psdrl evaluate"))
    return 0


def presets(arguments: list[str]) -> int:
    """`psdrl presets`."""
    catalogue.show_presets(command(catalogue.Presets, arguments, "psdrl presets"), PatientConsole())
    return 0


def envs(arguments: list[str]) -> int:
    """`psdrl envs`."""
    catalogue.show_envs(command(catalogue.Envs, arguments, "psdrl envs"), PatientConsole())
    return 0


def predict(arguments: list[str]) -> int:
    """`psdrl cost`."""
    cost.run(command(cost.Question, arguments, "psdrl cost"))
    return 0


def ask(arguments: list[str]) -> int:
    """`psdrl probe`."""
    return probe.run(command(probe.Probe, arguments, "psdrl probe"))


def look(arguments: list[str]) -> int:
    """`psdrl view`."""
    return view.run(command(view.View, arguments, "psdrl view"))


def examine(arguments: list[str]) -> int:
    """`psdrl doctor`."""
    return doctor.run(command(doctor.Doctor, arguments, "psdrl doctor"))


def show(arguments: list[str]) -> int:
    """`psdrl report`."""
    return report.run(command(report.Report, arguments, "psdrl report"))


def sweep(arguments: list[str]) -> int:
    """`psdrl sweep`."""
    return sweeping.run(arguments)


def reproduce(arguments: list[str]) -> int:
    """`psdrl reproduce`."""
    return reproducing.run(arguments)


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (train, "train an agent: psdrl train Pong, psdrl train deepsea-10"),
    "evaluate": (play, "play trained agents: psdrl evaluate RUN --video out.mp4"),
    "sweep": (sweep, "games x agents x seeds x settings, on one machine or a cluster: psdrl sweep --games six"),
    "reproduce": (reproduce, "an experiment of the paper, from forecast to report: psdrl reproduce table-1"),
    "report": (show, "tables and figures of runs beside the paper's: psdrl report runs"),
    "view": (look, "film what the models of a run foresee: psdrl view RUN"),
    "presets": (presets, "what each preset changes of the paper's settings"),
    "envs": (envs, "environments that can be trained on"),
    "probe": (ask, "ask the models of a run what they know: psdrl probe RUN"),
    "cost": (predict, "predict hours and memory of a run"),
    "doctor": (examine, "check kernels, modes and speed on this machine"),
}


def exit_with(run: Callable[[list[str]], int], arguments: list[str]) -> NoReturn:
    """Run a command; a user's error is one sentence on stderr and exit code 2, a reader who has gone is no error."""
    try:
        try:
            code = run(arguments)
        finally:
            sys.stdout.flush()
    except UserError as error:
        PatientConsole(stderr=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True, markup=True
        )
        code = 2
    except KeyboardInterrupt:
        PatientConsole(stderr=True).print("Stopped.")
        code = 130
    except BrokenPipeError:
        PatientConsole().on_broken_pipe()
        code = 0
    sys.exit(code)


def main() -> NoReturn:
    """The `psdrl` console script."""
    name, *arguments = sys.argv[1:] or [""]
    if name in COMMANDS:
        exit_with(COMMANDS[name][0], arguments)
    if name in ("--version", "-V"):
        PatientConsole().print(f"psdrl {__version__}", highlight=False)
        sys.exit(0)
    if name not in ("", "-h", "--help"):
        exit_with(_unknown, [name])
    lines = [f"  psdrl {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    usage = "usage: psdrl COMMAND, with --help for its flags; psdrl --version\n" + "\n".join(lines)
    PatientConsole().print(usage, highlight=False, soft_wrap=True)
    sys.exit(0 if name else 2)


def _unknown(words: list[str]) -> int:
    """A first word that is no command: perhaps an environment, or a flag of training."""
    name, usual = words[0], ", ".join(f"psdrl {command}" for command in COMMANDS)
    if name.startswith("-"):
        raise UserError(f"Name a command before {name}, one of {usual}.")
    try:
        catalogue.environment(name)
    except UserError:
        close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.7)
        hint = f"; did you mean psdrl {close[0]}?" if close else f": use one of {usual}."
        raise UserError(f"Unknown command {name!r}{hint}") from None
    raise UserError(f"{name} is no command; did you mean psdrl train {name}?")


def main_train() -> Any:
    """`python -m psdrl.train`."""
    exit_with(train, sys.argv[1:])


def main_evaluate() -> Any:
    """`python -m psdrl.evaluate`."""
    exit_with(play, sys.argv[1:])


def main_cost() -> Any:
    """`python -m psdrl.cost`."""
    exit_with(predict, sys.argv[1:])


def main_doctor() -> Any:
    """`python -m psdrl.doctor`."""
    exit_with(examine, sys.argv[1:])
