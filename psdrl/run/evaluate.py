"""`psdrl evaluate`: play the last checkpoints of runs, print their returns, write them as JSON, film one."""

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import tyro
from rich.console import Console

from psdrl.agents.interface import Agent
from psdrl.console import PatientConsole
from psdrl.envs import make_env
from psdrl.errors import UserError
from psdrl.run.evaluation import MAX_STEPS, Episode, Frame, load, play
from psdrl.version import __version__

STREAM = 10_000  # training and its evaluations have streams of their own
VIDEO = "--video needs {}: pip install imageio imageio-ffmpeg."


@dataclass(frozen=True)
class Evaluation:
    """Play the last checkpoints of runs and report their returns."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run directories, as given to --logdir."""
    episodes: int = 10
    """Episodes to play, of each run."""
    policy: str | None = None
    """One of the agent's ways to play; of PSDRL sample, the model sampled last (default), or mean, the posterior's."""
    seed: int = 0
    """Chooses the episodes and the policy's noise; the run's own seed goes in too."""
    max_steps: int = MAX_STEPS
    """Cut an episode after this many steps, where the environment does not end it sooner; 0: never."""
    json: str | None = None
    """Write a summary of each run into this file; - prints it, and everything else goes to stderr."""
    video: Path | None = None
    """Write the episodes of a single run as a video, e.g. out.mp4 or out.gif."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""


def run(options: Evaluation) -> None:
    """`psdrl evaluate`."""
    _check(options)
    console = PatientConsole(stderr=options.json == "-")
    summaries = [_play_run(path, options, console) for path in options.runs]
    if options.json is None:
        return
    text = json.dumps(summaries, indent=2)
    if options.json == "-":
        PatientConsole().out(text, highlight=False)
        return
    try:
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--json {options.json} cannot be written ({error.strerror}): use another path.") from None


def _check(options: Evaluation) -> None:
    if not options.runs:
        raise UserError("Name a run's directory, such as psdrl evaluate runs/deepsea-10-psdrl-0.")
    for name, least in (("episodes", 1), ("seed", 0), ("max_steps", 0)):
        if getattr(options, name) < least:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} is {getattr(options, name)} but must be at least {least}.")
    if options.video is not None:
        if options.video.suffix not in (".mp4", ".gif"):
            raise UserError(f"--video {options.video} must end in .mp4 or .gif.")
        if len(options.runs) > 1:
            raise UserError("--video films a single run: name one, or leave out --video.")
        modules = ("imageio", "imageio_ffmpeg") if options.video.suffix == ".mp4" else ("imageio",)
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            raise UserError(VIDEO.format(f"the package {missing[0].replace('_', '-')}"))


def _play_run(path: Path, options: Evaluation, console: Console) -> dict[str, Any]:
    """Play one run; returns its summary."""
    agent = load(path, options.device)
    policy = options.policy or next(iter(agent.POLICIES))
    if policy not in agent.POLICIES:
        ways = ", ".join(f"{name} ({words})" for name, words in agent.POLICIES.items())
        raise UserError(f"--policy {policy} is none of {agent.config.algo}'s: {ways}.")
    played: list[Episode] = []
    with _film(agent, options.video) as on_frame:
        for episode in play(
            agent, options.episodes, STREAM + options.seed, on_frame, policy, max_steps=options.max_steps
        ):
            played.append(episode)
            _say(console, f"episode {len(played)}: {episode.score:g}")
    if options.video is not None:
        _say(console, f"video: {options.video}")
    summary = _summary(path, agent, policy, options, played)
    _say(
        console,
        f"{summary['env']} after {agent.step} steps, policy {policy}: "
        f"mean {summary['mean']:.3f}, sd {summary['sd']:.3f} over {len(played)} episodes"
        + (f" ({summary['cut']} cut at {options.max_steps} steps: --max-steps)" if summary["cut"] else "")
        + (f", {path}" if len(options.runs) > 1 else ""),
    )
    return summary


def _summary(path: Path, agent: Agent, policy: str, options: Evaluation, played: list[Episode]) -> dict[str, Any]:
    """What a result is: where from, of what, how played, how good."""
    returns = [episode.score for episode in played]
    trained = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return {
        "run": str(path),
        "env": agent.config.env_name,
        "algo": agent.config.algo,
        "preset": agent.config.preset,
        "train_seed": agent.config.seed,
        "steps": agent.step,
        "policy": policy,
        "seed": options.seed,
        "episodes": len(returns),
        "returns": returns,
        "lengths": [episode.length for episode in played],
        "cut": sum(episode.cut for episode in played),
        "max_steps": options.max_steps,
        "mean": float(np.mean(returns)),
        "sd": float(np.std(returns)),
        "commit": trained.get("commit"),
        "version": __version__,
    }


@contextlib.contextmanager
def _film(agent: Agent, path: Path | None) -> Iterator[Frame | None]:
    """Where pictures go, if any are asked for; an environment that cannot be drawn is refused before it plays."""
    if path is None:
        yield None
        return
    _check_picture(agent)
    import imageio.v2 as imageio

    path.parent.mkdir(parents=True, exist_ok=True)
    extra = {"macro_block_size": 2} if path.suffix == ".mp4" else {}
    try:
        writer: Any = imageio.get_writer(str(path), fps=15, **extra)  # type: ignore[arg-type]
    except (ImportError, RuntimeError, OSError) as error:  # no ffmpeg, or a place that cannot be written
        raise UserError(f"--video {path} cannot be written: {str(error).splitlines()[0]}") from None
    with writer:
        yield writer.append_data


def _check_picture(agent: Agent) -> None:
    name = agent.config.env_name
    refusal = f"{name} draws no pictures (render_mode rgb_array): leave out --video."
    try:
        env = make_env(agent.config, num_envs=1, render=True)
    except (TypeError, gymnasium.error.Error):  # its constructor does not know render_mode
        raise UserError(refusal) from None
    try:
        env.reset()
        env.render()
    except (RuntimeError, NotImplementedError, TypeError, gymnasium.error.Error) as error:
        if isinstance(error, gymnasium.error.DependencyNotInstalled):
            raise UserError(f"{name} cannot be drawn: {str(error).splitlines()[0]}") from None
        raise UserError(refusal) from None
    finally:
        env.close()


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
