"""All that `psdrl view` writes: PNG sheets, films, and the numbers behind them as JSON."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from psdrl.envs.minatar import GAMES as MINATAR
from psdrl.errors import UserError
from psdrl.report.files import write
from psdrl.report.style import LOOK
from psdrl.version import __version__
from psdrl.view import figures
from psdrl.view.command import MARK, View
from psdrl.view.pictures import Numbers, Painter, Picture, beside, painter, titled

PARTS = ("reward r", "value v", "sum r + v")  # v: discounted, 0 where an end is foreseen


class Scene:
    """A part of an episode, with all that the models foresee of it."""

    def __init__(self, agent: Any, module: Any, episode: Any, options: View) -> None:
        self.agent, self.episode, self.options = agent, episode, options
        self.truth: Numbers = module.truth(agent, episode.observations)  # (T + 1, ...)
        self.prediction = module.prediction(agent, episode)
        several = module.samples(agent, max(options.models, options.draws), options.seed)
        self.sampled = len(several) > 1
        self.rollouts = module.rollouts(agent, episode, several[: options.models])
        self.choices = module.choices(agent, episode, several[: options.draws] if self.sampled else [])
        config = agent.config
        stacked = (config.env or "").removeprefix("minatar/") in MINATAR and agent.spec.grid
        self.painter: Painter | None = painter(agent.spec, agent.spec.grid[2] // config.minatar.stack if stacked else 0)

    @property
    def parts(self) -> dict[str, Numbers]:
        """(M, T, A) of rewards, values and sums."""
        both = self.choices
        return dict(zip(PARTS, (both.rewards, both.values, both.returns), strict=True))

    @property
    def actions(self) -> list[str]:
        """Their names."""
        return [f"action {a}" for a in range(self.agent.spec.num_actions)]

    def step(self, t: int) -> int:
        """The episode's step after which observation t + 1 of the part came."""
        return self.options.start + t + 1


def make(agent: Any, module: Any, episode: Any, run: Path, options: View) -> list[str]:
    """Draw everything; returns what to say."""
    scene = Scene(agent, module, episode, options)
    sheets = drawn(scene) if scene.painter else numbers_drawn(scene)
    written = {f"{name}.png": png(figure) for name, figure in sheets.items()}
    found = numbers(scene, run)
    written["view.json"] = (json.dumps(found, indent=1) + "\n").encode()
    write(options.out, MARK, written)
    films = list(_films(scene)) if scene.painter else []
    count, last = len(episode.actions), options.start + len(episode.actions)
    said = [
        f"{agent.config.env_name} after {agent.step:,} steps: steps {options.start} to {last} of the episode, return "
        f"there {episode.rewards.sum():g} (as stored).",
        f"Next observation off by {np.mean(found['error']):.4g} (copying {np.mean(found['copying']):.4g}), mean "
        f"absolute difference over {count} steps.",
    ]
    if not scene.sampled:
        said.append(f"{agent.config.algo} draws no models (posterior.rule none): one is shown, its trained one.")
    if scene.painter is None:
        said.append("Its observations are numbers without a place: they are drawn as lines, without films.")
    return [*said, f"{', '.join([*written, *films])}: {options.out}"]


# Sheets


def drawn(scene: Scene) -> dict[str, Figure]:
    """Of observations that are pictures."""
    paint, truth = scene.painter, scene.truth[1:]
    assert paint is not None
    shown = figures.columns(len(truth))
    steps = [scene.step(t) for t in shown]
    seen = [paint.picture(truth[t]) for t in shown]
    foreseen, rolled = scene.prediction.observations, scene.rollouts
    rows: dict[str, list[Picture]] = {
        "next frame": seen,
        "predicted": [paint.picture(foreseen[t]) for t in shown],
        "error": [paint.error(truth[t], foreseen[t]) for t in shown],
    }
    several: dict[str, list[Picture]] = {"what happened": seen}
    several |= {f"model {k + 1}": [paint.picture(one[t]) for t in shown] for k, one in enumerate(rolled.observations)}
    several["disagreement"] = [paint.spread(rolled.disagreement[t]) for t in shown]
    return {
        "prediction": figures.strip(rows, steps),
        "models": figures.rollout_sheet(several, steps, scene.options.start, _lines(scene)),
        "choice": _choice_sheet(scene),
    }


def numbers_drawn(scene: Scene) -> dict[str, Figure]:
    """Of observations that are numbers without a place: those that change most."""
    truth = scene.truth.reshape(len(scene.truth), -1)
    kept = np.sort(np.argsort(-truth.std(0), kind="stable")[: figures.PANELS])
    names = [f"observation {i}" for i in kept]
    start = scene.options.start
    return {
        "prediction": figures.prediction_lines(names, start, truth[1:, kept], scene.prediction.observations[:, kept]),
        "models": figures.rollout_lines(
            names, start, truth[1:, kept], scene.rollouts.observations[..., kept], _lines(scene)
        ),
        "choice": _choice_sheet(scene),
    }


def _lines(scene: Scene) -> dict[str, Any]:
    rolled = scene.rollouts
    return {"realised": scene.episode.rewards, "rewards": rolled.rewards, "values": rolled.values}


def _choice_sheet(scene: Scene) -> Figure:
    return figures.choice_sheet(scene.options.start, scene.parts, scene.episode.actions, scene.actions)


def png(figure: Figure) -> bytes:
    """As a file; the same numbers make the same bytes."""
    data = io.BytesIO()
    with mpl.rc_context(LOOK):
        figure.savefig(data, format="png", dpi=130, metadata={"Software": None})
    return data.getvalue()


# Films


def prediction_frames(scene: Scene) -> Iterator[Picture]:
    """True next frame, decoded prediction of the sampled model, error; by step."""
    paint, foreseen = scene.painter, scene.prediction.observations
    assert paint is not None
    for t, true in enumerate(scene.truth[1:]):
        yield beside(
            [
                titled(paint.picture(true), f"step {scene.step(t)}\nnext frame"),
                titled(paint.picture(foreseen[t]), "\npredicted"),
                titled(paint.error(true, foreseen[t]), "\nerror"),
            ]
        )


def model_frames(scene: Scene) -> Iterator[Picture]:
    """What happened, each model's roll-out, their disagreement; by step."""
    paint, rolled = scene.painter, scene.rollouts
    assert paint is not None
    for t, true in enumerate(scene.truth[1:]):
        row = [titled(paint.picture(true), f"step {scene.step(t)}\nwhat happened")]
        for k, one in enumerate(rolled.observations):
            words = f"model {k + 1}\nr {rolled.rewards[k, t]:+.2f}, V {rolled.values[k, t]:+.2f}"
            row.append(titled(paint.picture(one[t]), words))
        yield beside([*row, titled(paint.spread(rolled.disagreement[t]), "\ndisagreement")])


def choice_frames(scene: Scene) -> Iterator[Picture]:
    """The frame before each action, and where the action comes from."""
    assert scene.painter is not None
    film = figures.ChoiceFilm(scene.parts, scene.actions, scene.painter)
    for t, action in enumerate(scene.episode.actions):
        yield film.frame(scene.truth[t], t, scene.options.start + t, int(action))


def _films(scene: Scene) -> Iterator[str]:
    options = scene.options
    several = {"prediction": prediction_frames, "models": model_frames, "choice": choice_frames}
    for name, frames in several.items():
        path = options.out / f"{name}.{options.film}"
        how: dict[str, Any] = {"fps": options.fps, "macro_block_size": 2}
        if options.film == "gif":
            how = {"duration": 1000 / options.fps, "loop": 0}
        try:
            imageio.mimwrite(path, list(frames(scene)), **how)
        except (OSError, RuntimeError) as error:
            raise UserError(f"{path} cannot be written: {str(error).splitlines()[0]}") from None
        yield path.name


# Numbers


def numbers(scene: Scene, run: Path) -> dict[str, Any]:
    """What the sheets show, and where it comes from."""
    agent, episode, options, rolled = scene.agent, scene.episode, scene.options, scene.rollouts
    trained = json.loads((run / "config.json").read_text(encoding="utf-8"))
    truth = scene.truth.reshape(len(scene.truth), -1)
    foreseen = scene.prediction.observations.reshape(len(truth) - 1, -1)
    spread = rolled.disagreement.reshape(len(truth) - 1, -1)
    return {
        "run": str(run),
        "env": agent.config.env_name,
        "algo": agent.config.algo,
        "trained_steps": agent.step,
        "commit": trained.get("commit"),
        "version": __version__,
        "episode": options.episode,
        "stored": options.stored,
        "seed": options.seed,
        "first_step": options.start,
        "actions": episode.actions.tolist(),
        "rewards": episode.rewards.tolist(),
        "predicted_rewards": scene.prediction.rewards.tolist(),
        "error": np.abs(foreseen - truth[1:]).mean(1).tolist(),
        "copying": np.abs(truth[:-1] - truth[1:]).mean(1).tolist(),
        "models": {
            "rewards": rolled.rewards.tolist(),
            "values": rolled.values.tolist(),
            "disagreement": spread.mean(1).tolist(),
        },
        "choices": {
            "models": "the posterior mean, then the draws",
            "rewards": scene.choices.rewards.tolist(),
            "values": scene.choices.values.tolist(),
        },
    }
