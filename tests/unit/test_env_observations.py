"""What environments show: pictures in any layout, vectors, and what is neither; their names and presets."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import psdrl
from psdrl.agents.psdrl import presets
from psdrl.agents.registry import preset
from psdrl.config import Config
from psdrl.envs import listing, make_env, registry
from psdrl.envs.observations import conversion
from psdrl.errors import UserError

HALF = np.zeros((48, 80), np.uint8)
HALF[:, 40:] = 200


def box(shape: tuple[int, ...], dtype: Any = np.uint8, high: float = 255) -> spaces.Box:
    return spaces.Box(0, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (box((48, 80)), HALF),
        (box((48, 80, 1)), HALF[:, :, None]),
        (box((48, 80, 3)), np.repeat(HALF[:, :, None], 3, 2)),
        (box((1, 48, 80)), HALF[None]),
        (box((3, 48, 80)), np.repeat(HALF[None], 3, 0)),
        (box((3, 48, 80), np.float32, 1), np.repeat(HALF[None], 3, 0) / np.float32(255)),
        (box((48, 80), np.float64, 255), HALF.astype(np.float64)),
    ],
    ids=["grey", "grey last", "colours last", "grey first", "colours first", "floats to 1", "floats to 255"],
)
def test_pictures(space: spaces.Box, observation: NDArray) -> None:
    shown, convert = conversion(space, "Picture-v0")
    picture = convert(observation)
    assert (shown.shape, picture.shape, picture.dtype) == ((1, 64, 64), (1, 64, 64), np.uint8)
    assert (picture[0, :, :31] == 0).all()
    assert (picture[0, :, 33:] == 200).all()


@pytest.mark.parametrize(
    ("shape", "axes"), [((4, 48, 80), None), ((4, 48, 80, 3), -1), ((4, 3, 48, 80), 1)], ids=["grey", "last", "first"]
)
def test_stacks_of_pictures(shape: tuple[int, ...], axes: int | None) -> None:
    frames = np.stack([HALF // (k + 1) for k in range(4)])
    observation = frames if axes is None else np.repeat(np.expand_dims(frames, axes), 3, axes)
    assert observation.shape == shape
    shown, convert = conversion(box(shape), "Picture-v0")
    assert shown.shape == (4, 64, 64)
    assert convert(observation)[:, 5, 60].tolist() == [200, 100, 66, 50]


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (box((5000,), np.float32), 5000),  # the author says that it is a vector
        (box((7, 7, 3)), 147),  # a grid of symbols, no picture
        (box((20, 20), np.float32, np.inf), 400),
        (spaces.Discrete(500), 500),
        (spaces.Dict({"speed": box((3,), np.float32), "gear": spaces.Discrete(5)}), 8),
        (spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(4))), 6),
    ],
    ids=str,
)
def test_vectors(space: spaces.Space, size: int) -> None:
    shown, convert = conversion(space, "Thing-v0")
    assert shown.shape == convert(space.sample()).shape == (size,)


@pytest.mark.parametrize(
    "space",
    [
        box((48, 80, 4)),  # a stack or transparency
        box((40, 48, 80)),
        box((2, 2, 48, 80, 3)),
        box((60, 60), np.float32, np.inf),
        spaces.Box(-1, 1, (60, 60), np.float32),
        spaces.Discrete(5000),
        spaces.Dict({"image": box((48, 80, 3)), "mission": spaces.Discrete(3)}),
        spaces.Tuple((spaces.Dict({"image": box((48, 80))}),)),
        spaces.Sequence(spaces.Discrete(3)),
    ],
    ids=str,
)
def test_what_is_neither_is_refused(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"Thing-v0 has observations") as error:
        conversion(space, "Thing-v0")
    assert "\n" not in str(error.value)


class Camera(gymnasium.Env):
    """A picture, or whatever is asked for."""

    def __init__(self, space: spaces.Space | None = None) -> None:
        self.observation_space = space or box((3, 48, 48))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.fixture
def camera() -> Iterator[str]:
    name = "psdrl-test/Camera-v0"
    gymnasium.register(name, lambda **kwargs: Camera(**kwargs))
    yield name
    del gymnasium.registry[name]


@pytest.mark.parametrize(("device", "name"), [("cpu", "cpu"), ("cuda", "paper")])
@pytest.mark.parametrize("algo", ["psdrl", "bootstrap", "successor", "dreamer"])
def test_pictures_get_the_preset_of_pictures(camera: str, algo: str, device: str, name: str) -> None:
    config, why = preset({"env": camera, "algo": algo, "device": device})
    assert config.preset == name
    assert "pictures" in why


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "control"),
        ("deepsea-7-image", "deepsea"),
        ("minatar/freeway", "minatar"),
        ("Nothing-v3", "control"),
    ],
)
def test_other_presets(env: str, name: str) -> None:
    """An unknown name gets some preset; its error comes when it is made."""
    assert presets.choose(Config(env=env, device="cpu"))[0] == name


def test_a_camera_is_learned_from_with_few_parameters(camera: str) -> None:
    """Not millions, as a flattened picture would need."""
    config = psdrl.configure(env=camera, device="cpu")
    env = make_env(config)
    agent = psdrl.Agent(config, env.spec)
    assert sum(p.numel() for p in agent.core.models.parameters()) < 1_000_000
    env.close()


@pytest.mark.parametrize(
    "name", ["ALE/Pong-v5", "PongNoFrameskip-v4", "PongDeterministic-v0", "Pong-v5", "Pong-v0", "Pong", "pong-ram-v4"]
)
@pytest.mark.parametrize("registered", [False, True])
def test_atari_by_its_other_names(name: str, registered: bool) -> None:
    if registered:
        import ale_py

        gymnasium.register_envs(ale_py)
    with pytest.raises(UserError, match="it is an Atari game, use --game Pong"):
        make_env(psdrl.configure(env=name, preset="debug", device="cpu"))


def test_a_users_own_pong_is_not_ataris() -> None:
    gymnasium.register("Pong-v77", lambda **kwargs: Camera(**kwargs))
    make_env(psdrl.configure(env="Pong-v77", preset="debug", device="cpu")).close()
    del gymnasium.registry["Pong-v77"]


MODULE = """
import gymnasium, numpy as np
class Mine(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}
gymnasium.register("Mine-v0", Mine)
"""


def test_a_module_in_the_working_directory(tmp_path: Path) -> None:
    """As `python -m psdrl.train` finds it, the console script does, whose path has no working directory."""
    (tmp_path / "myenvs.py").write_text(MODULE)
    root = Path(psdrl.__file__).parents[1]
    code = (
        f"import sys; sys.path = [p for p in sys.path if p] + [{str(root)!r}]; import psdrl; "
        "env = psdrl.make_env(psdrl.configure(env='myenvs:Mine-v0', preset='debug', device='cpu')); "
        "print(env.reset().shape)"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "(1, 2)", run.stderr


def test_listing() -> None:
    families = {name: (usage, suits, names) for name, usage, suits, names in listing()}
    assert list(families) == ["Atari", "DeepSea", "MinAtar", "gymnasium"]
    assert len(families["Atari"][2]) == 55
    assert "minatar/breakout" in families["MinAtar"][2]
    assert "CartPole-v1" in families["gymnasium"][2]
    for family, config in {
        "Atari": Config(game="Pong"),
        "DeepSea": Config(env="deepsea-9"),
        "MinAtar": Config(env="minatar/asterix"),
        "gymnasium": Config(env="CartPole-v1"),
    }.items():
        found = registry.family(config)
        assert found.name == family
        assert presets.choose(config)[0] in found.preset


def test_missing_packages_get_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install minatar"):
        make_env(psdrl.configure(env="minatar/breakout", preset="debug", device="cpu"))
    with pytest.raises(UserError, match="pip install"):
        make_env(psdrl.configure(game="Pong", preset="debug", device="cpu"))
    assert {name: names for name, _, _, names in listing()}["MinAtar"] == []


def test_what_cannot_be_rendered_says_so(camera: str) -> None:
    """Camera's constructor knows no render_mode."""
    with pytest.raises(UserError, match=f"{camera} cannot be rendered"):
        make_env(psdrl.configure(env=camera, preset="debug", device="cpu"), num_envs=1, render=True)
