"""`psdrl view RUN`: an episode as the models of a run's last checkpoint foresee it."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from psdrl.console import PatientConsole
from psdrl.errors import UserError
from psdrl.report.files import check_out
from psdrl.run.evaluation import PYTHON, load
from psdrl.run.recording import record

STREAM = 30_000  # of the episodes that are played: neither training nor evaluation nor probes have them
MARK = ".psdrl-view"
PACKAGES = ("matplotlib", "imageio")


@dataclass(frozen=True)
class View:
    """What the models of a run foresee, drawn beside what happened: predictions, sampled models, choices."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """The run's directory, as given to --logdir."""
    out: Path = Path("view")
    """Where pictures, films and numbers are written."""
    episode: int = 0
    """Which episode: it is played by the run's agent, each number by a random stream of its own."""
    stored: bool = False
    """Take it from the replay buffer instead: 0 is the newest."""
    start: int = 0
    """The first step that is shown, and from which the sampled models are rolled out."""
    steps: int = 40
    """How many steps are shown, at most."""
    models: int = 4
    """How many models are drawn from the posterior and rolled out from the same frame with the same actions."""
    draws: int = 20
    """How many models are drawn to show the spread of each action's reward and value."""
    seed: int = 0
    """Of these draws."""
    film: Literal["gif", "mp4"] = "gif"
    """The films' format."""
    fps: float = 5.0
    """Steps that a film shows in a second."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""


def run(options: View) -> int:
    """`psdrl view`."""
    _check(options)
    check_out(options.out, MARK)
    (path,) = options.runs
    agent: Any = load(path, options.device, replay=options.stored)
    name = f"{type(agent).__module__.rpartition('.')[0]}.view"
    if importlib.util.find_spec(name) is None:
        raise UserError(f"psdrl view cannot look into {agent.config.algo}: use a run of psdrl or its ablations.")
    module = importlib.import_module(name)
    episode = chosen(agent, module, options)
    from psdrl.view import sheets  # matplotlib: half a second that no other command should take

    made = sheets.make(agent, module, episode, path, options)
    console = PatientConsole()
    for line in made:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return 0


def chosen(agent: Any, module: Any, options: View) -> Any:
    """The part of the episode that is shown."""
    if options.stored:
        episode = module.stored(agent, options.episode)
    elif (agent.config.env or "").startswith(PYTHON):
        raise UserError(f"{agent.config.env} was an object in Python and cannot be played by name: add --stored.")
    else:
        played = record(agent, STREAM + options.episode, options.start + options.steps)
        episode = module.shown(agent, played.observations, played.actions, played.rewards, raw=True)
    length = len(episode.actions)
    if options.start >= length:
        raise UserError(f"--start is {options.start}, but the episode has {length} steps: use a smaller one.")
    return episode.part(options.start, options.steps)


def _check(options: View) -> None:
    if len(options.runs) != 1:
        raise UserError("Name one run's directory, such as psdrl view runs/deepsea-10-psdrl-0.")
    least = {"episode": 0, "start": 0, "steps": 1, "models": 1, "draws": 1, "seed": 0}
    for name, smallest in least.items():
        if getattr(options, name) < smallest:
            raise UserError(f"--{name} is {getattr(options, name)} but must be at least {smallest}.")
    if not options.fps > 0:
        raise UserError(f"--fps is {options.fps} but must be greater than 0.")
    packages = (*PACKAGES, "imageio_ffmpeg") if options.film == "mp4" else PACKAGES
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f'psdrl view needs the package {missing[0].replace("_", "-")}: pip install "psdrl[report]".')
