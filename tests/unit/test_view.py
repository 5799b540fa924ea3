"""`psdrl view`: its numbers by hand in NumPy, its pictures pixel by pixel, its films read back."""

import json
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
import torch

import psdrl
from psdrl.agents.psdrl import view
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.cli import look
from psdrl.errors import UserError
from psdrl.view import pictures, sheets
from psdrl.view.command import View
from tests.helpers import Array, hand_features, hand_hidden, hand_net, hand_returns

ACTIONS = 3


def agent_with_episode(kind: str = "image", **settings: Any) -> tuple[PsdrlAgent, view.Shown]:
    """A debug agent in float64 after an update, and the third newest stored episode, of 12 steps."""
    agent = debug_agent("fast", torch.float64, kind, ACTIONS, standardise=True, **settings)
    agent.update()
    return agent, view.stored(agent, 2)


class Hand:
    """The same episode by NumPy: one action, one step, one state at a time."""

    def __init__(self, agent: PsdrlAgent, episode: view.Shown) -> None:
        self.agent, self.model = agent, agent.models.forward_model
        with torch.no_grad():
            observations = torch.from_numpy(episode.observations)
            self.latents = agent.models.autoencoder.plain_latents(observations).double()
            self.latents = agent.models.autoencoder.scaled(self.latents).numpy()
        self.hidden = [np.zeros((1, self.model.hidden_size))]
        for t, action in enumerate(episode.actions):
            self.hidden.append(hand_hidden(self.model, self.latents[t : t + 1], np.array([action]), self.hidden[-1]))

    def step(self, sample: SampledModel, z: Array, h: Array, action: int) -> tuple[Array, Array, float]:
        h = hand_hidden(self.model, z, np.array([action]), h)
        weight, bias = (x.double().numpy() for x in (sample.weight, sample.bias))
        outcome = hand_features(self.model, h, z, np.array([action])) @ weight.T + bias
        return outcome[:, :-1], h, float(outcome[0, -1])

    @torch.no_grad()
    def decode(self, z: Array) -> Array:
        """Eq. 1's decoder, and the two normalisations undone."""
        encoder = self.agent.models.autoencoder
        raw = torch.from_numpy(z) / encoder.latent_scale + encoder.latent_mean
        if self.agent.spec.kind == "vector":
            return raw.numpy()
        images = encoder.decoder(raw) / encoder.contrast + encoder.mean_frame  # type: ignore[operator]
        return images.clamp(0, 1).numpy()


@pytest.mark.parametrize("kind", ["image", "vector", "grid"])
def test_the_next_frame_is_that_of_the_sampled_model(kind: str) -> None:
    agent, episode = agent_with_episode(kind)
    assert len(episode.actions) == 12
    hand, found = Hand(agent, episode), view.prediction(agent, episode)
    for t, action in enumerate(episode.actions):
        z, _, reward = hand.step(agent.model, hand.latents[t : t + 1], hand.hidden[t], action)
        np.testing.assert_allclose(found.observations[t], hand.decode(z)[0], atol=1e-6)
        assert found.rewards[t] == pytest.approx(reward, abs=1e-7)


def test_models_are_rolled_out_from_the_same_frame_with_the_same_actions() -> None:
    agent, episode = agent_with_episode()
    part, several = episode.part(4, 5), view.samples(agent, 3, seed=7)
    hand, found = Hand(agent, episode), view.rollouts(agent, part, several)
    assert found.observations.shape == (3, 5, 1, 64, 64)
    for k, sample in enumerate(several):
        z, h = hand.latents[4:5], hand.hidden[4]
        for t, action in enumerate(episode.actions[4:9]):
            z, h, reward = hand.step(sample, z, h, action)
            np.testing.assert_allclose(found.observations[k, t], hand.decode(z)[0], atol=1e-5)
            assert found.rewards[k, t] == pytest.approx(reward, rel=1e-5, abs=1e-6)
            value = hand_net(agent.models.acting_value, np.concatenate([z, h], 1))[0]
            assert found.values[k, t] == pytest.approx(value, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(found.disagreement, found.observations.std(0))
    assert found.disagreement.max() > 1e-4, "models differ"


def test_draws_are_the_posteriors_and_repeatable() -> None:
    agent, _ = agent_with_episode()
    before = agent.generator.get_state()
    one, two, other = (view.samples(agent, 2, seed) for seed in (1, 1, 2))
    assert torch.equal(one[1].weight, two[1].weight)
    assert not torch.equal(one[0].weight, one[1].weight)
    assert not torch.equal(one[0].weight, other[0].weight)
    assert torch.equal(agent.generator.get_state(), before), "training's stream is untouched"


@pytest.mark.parametrize("lookahead", [1, 2])
def test_choices_are_the_parts_of_what_acting_maximises(lookahead: int) -> None:
    agent, episode = agent_with_episode("vector", value={"lookahead": lookahead})
    several = view.samples(agent, 2, seed=0)
    hand, found = Hand(agent, episode), view.choices(agent, episode, several)
    assert found.rewards.shape == (3, 12, ACTIONS)
    for m, sample in enumerate([agent.draw(mean=True), *several]):
        layer = [x.double().numpy() for x in (sample.weight, sample.bias)]
        value, discount = agent.models.acting_value, agent.config.value.discount
        for t in range(12):
            z, h = hand.latents[t : t + 1], hand.hidden[t]
            wanted, _ = hand_returns(agent.models, *layer, z, h, discount, value, lookahead)
            np.testing.assert_allclose(found.returns[m, t], wanted[0], rtol=1e-6, atol=1e-7)
            rewards = [hand.step(sample, z, h, a)[2] for a in range(ACTIONS)]
            np.testing.assert_allclose(found.rewards[m, t], rewards, rtol=1e-6, atol=1e-7)


# Pictures


def scene_of(agent: PsdrlAgent, episode: view.Shown, **options: Any) -> sheets.Scene:
    return sheets.Scene(agent, view, episode, View(models=2, draws=3, **options))


def part_of(frame: pictures.Picture, column: int) -> pictures.Picture:
    """One of the pictures that stand side by side."""
    wide = 6 + max(pictures.SIDE, 128)
    times = round(pictures.SIDE / 64)
    left = column * wide + (max(pictures.SIDE, 64 * times) - 64 * times) // 2
    return frame[pictures.TITLE : pictures.TITLE + 64 * times, left : left + 64 * times][::times, ::times]


def test_films_show_truth_prediction_and_error_pixel_by_pixel() -> None:
    agent, episode = agent_with_episode()
    hand, scene = Hand(agent, episode), scene_of(agent, episode)
    frames = list(sheets.prediction_frames(scene))
    assert len(frames) == 12
    for t, frame in enumerate(frames):
        z, _, _ = hand.step(agent.model, hand.latents[t : t + 1], hand.hidden[t], int(episode.actions[t]))
        true, predicted = episode.observations[t + 1, 0] / 255, hand.decode(z)[0, 0]
        for column, wanted in ((0, true), (1, predicted)):
            shown = part_of(frame, column)
            assert (np.abs(shown - 255 * wanted[..., None]) <= 1).all(), (t, column)
        off = np.abs(true - predicted)
        light = part_of(frame, 2).sum(2, dtype=int)
        assert light[off > 0.6].min(initial=999) > light[off < 0.2].max(initial=0), "the larger, the lighter"


def test_films_show_each_model_and_where_they_disagree() -> None:
    agent, episode = agent_with_episode()
    scene = scene_of(agent, episode.part(3, 4), start=3)
    frames = list(sheets.model_frames(scene))
    assert len(frames) == 4
    for t, frame in enumerate(frames):
        for k in range(2):
            wanted = 255 * scene.rollouts.observations[k, t, 0]
            assert (np.abs(part_of(frame, 1 + k) - wanted[..., None]) <= 1).all()
        two = scene.rollouts.observations[:, t, 0]
        apart = np.abs(two[0] - two[1])
        light = part_of(frame, 3).sum(2, dtype=int)
        assert light[apart == apart.max()].max() >= light[apart < apart.max() / 4].max(initial=0)


def test_grids_and_deepsea_are_drawn_where_things_are() -> None:
    env = psdrl.make_env(psdrl.configure(env="deepsea-4"))
    env.close()
    paint = pictures.painter(env.spec)
    assert paint is not None
    diver = np.zeros(16)
    diver[6] = 1
    picture = paint.picture(diver)
    assert picture.shape == (4, 4, 3)
    assert picture[1, 2].tolist() == [255, 255, 255]
    assert picture.sum() == 3 * 255
    agent, _ = agent_with_episode("grid")
    grid = pictures.painter(agent.spec)
    assert grid is not None
    numbers = np.zeros((4, 3, 2))
    numbers[2, 1, 1], numbers[0, 0, 0] = 1, 0.5
    picture = grid.picture(numbers.ravel())
    np.testing.assert_array_equal(picture[2, 1], pictures.CHANNELS[1])
    np.testing.assert_array_equal(picture[0, 0], np.round(pictures.CHANNELS[0] / 2))
    assert pictures.painter(debug_agent("fast", torch.float64, "vector").spec) is None


# The command


def run(path: Path, env: str, **settings: Any) -> Path:
    psdrl.train(env, preset="debug", steps=200, logdir=path, eval_every=0, **settings)
    return path


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("view") / "sea", "deepsea-5-image")


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("view") / "cart", "CartPole-v1")


def test_a_run_is_filmed(pictured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "seen"
    assert look([str(pictured), "--out", str(out), "--models", "2", "--draws", "2"]) == 0
    assert "5 steps" in capsys.readouterr().out
    found = json.loads((out / "view.json").read_text(encoding="utf-8"))
    assert len(found["actions"]) == len(found["error"]) == 5
    assert np.shape(found["choices"]["values"]) == (3, 5, 2)
    assert np.shape(found["models"]["rewards"]) == (2, 5)
    for name in ("prediction", "models", "choice"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert len(imageio.mimread(out / f"{name}.gif")) == 5, name
    first = np.asarray(imageio.mimread(out / "prediction.gif")[0])[..., :3]
    diver = part_of(first, 0)[..., 0] > 128
    assert diver.sum() in range(12 * 12, 14 * 14 + 1), "one of 5 x 5 cells of 64 x 64 pixels"
    assert diver[13:26].sum() == diver.sum(), "after a step the diver is in the second row"
    assert look([str(pictured), "--out", str(out), "--stored", "--episode", "1", "--film", "mp4", "--steps", "1"]) == 0
    assert len(json.loads((out / "view.json").read_text(encoding="utf-8"))["actions"]) == 1
    assert len(imageio.mimread(out / "models.mp4", memtest=False)) == 1


def test_numbers_without_a_place_are_lines(numbered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert look([str(numbered), "--out", str(tmp_path / "seen"), "--steps", "6", "--models", "2"]) == 0
    assert "drawn as lines" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "seen").glob("*.*") if p.suffix) == [
        "choice.png",
        "models.png",
        "prediction.png",
        "view.json",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Name one run's directory"),
        (["RUN", "RUN"], "Name one run's directory"),
        (["nowhere"], "nowhere"),
        (["RUN", "--steps", "0"], "--steps is 0"),
        (["RUN", "--fps", "0"], "--fps is 0"),
        (["RUN", "--start", "9999"], "the episode has"),
        (["RUN", "--stored", "--episode", "9999"], "the replay buffer holds"),
        (["RUN", "--out", "FULL"], "is not empty"),
    ],
)
def test_mistakes_are_one_sentence(numbered: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "mine.txt").touch()
    places = {"RUN": str(numbered), "FULL": str(tmp_path)}
    given = [places.get(word, word) for word in arguments]
    with pytest.raises(UserError, match=words) as error:
        look(given if "FULL" in arguments else [*given, "--out", str(tmp_path / "new")])
    assert "\n" not in str(error.value)


def test_an_agent_whose_models_are_unknown_is_refused(tmp_path: Path) -> None:
    path = run(tmp_path / "b", "CartPole-v1", algo="bootstrap")
    with pytest.raises(UserError, match="cannot look into bootstrap"):
        look([str(path), "--out", str(tmp_path / "new")])


def test_without_a_posterior_there_is_one_model() -> None:
    agent, episode = agent_with_episode("vector", posterior={"rule": "none"})
    (only,) = view.samples(agent, 5, seed=0)
    assert torch.equal(only.weight, agent.models.forward_model.output.weight)
    scene = scene_of(agent, episode)
    assert not scene.sampled
    assert len(scene.choices.rewards) == len(scene.rollouts.rewards) == 1
