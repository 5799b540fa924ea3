"""Configuration: the paper's table, presets, flags with their provenance, and the JSON round trip."""

import re
from dataclasses import replace
from typing import Any

import pytest

import psdrl
from psdrl import cli
from psdrl.agents import registry
from psdrl.agents.psdrl import presets
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.posterior import RELEASED_RIDGE, RELEASED_SCALE
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.validation import check
from psdrl.agents.psdrl.value import THRESHOLD
from psdrl.config import Config
from psdrl.errors import UserError
from tests.helpers import EnvSpec, dotted_names

# Table "Hyperparameters for PSDRL" of the paper, in its order; the m of the first 100k steps is in its text.
PAPER_TABLE: dict[str, Any] = {
    "posterior.prior": (1e3, 1e3),
    "posterior.noise": (1.0, 1.0),
    "forward.layers": 5,
    "forward.units": 2292,
    "forward.learning_rate": 1e-4,
    "forward.iterations": 3,  # the terminal model's too: they share their batches
    "forward.recurrent": 756,
    "forward.window": 4,
    "termination.layers": 4,
    "termination.units": 1536,
    "termination.learning_rate": 1e-4,
    "value.layers": 5,
    "value.units": 2292,
    "value.learning_rate": 1e-4,
    "value.iterations": 3,
    "value.target_every": 4,
    "value.discount": 0.99,
    "autoencoder.learning_rate": 1e-4,
    "autoencoder.iterations": 3,
    "replay.batch": 125,
    "replay.length": 250,
    "replay.capacity": 100_000,
    "policy.update_every": (250, 1000),
    "policy.epsilon": 0.001,
}

# What results also depend on: the protocol of Atari, from the authors' code.
PAPER_PROTOCOL = {"atari.noop_max": 30, "atari.max_steps": 27_000}


def lookup(config: Config, dotted: str) -> Any:
    value: Any = config
    for name in dotted.split("."):
        value = getattr(value, name)
    return value


def test_paper_preset_is_the_papers_table() -> None:
    config = psdrl.configure(game="Pong", preset="paper")
    assert {name: lookup(config, name) for name in PAPER_TABLE} == PAPER_TABLE
    assert {name: lookup(config, name) for name in PAPER_PROTOCOL} == PAPER_PROTOCOL
    assert (config.algo, config.rule, config.loss_reduction) == ("psdrl", "exact", "sum")
    assert config.steps == 1_000_000
    assert config.eval_every == 10_000
    assert config.released == ()
    assert [config.update_period(step) for step in (0, 99_999, 100_000, 10**6)] == [250, 250, 1000, 1000]
    assert THRESHOLD == 0.5  # on omega, Eq. 7
    assert (RELEASED_RIDGE, RELEASED_SCALE) == (100, 1e-3)
    assert config.reward_transform == "tanh"


def test_paper_preset_builds_the_papers_networks() -> None:
    """4 + 4 convolutional layers, 1536 encoded dimensions, and the memo's layer widths, by the weights' shapes."""
    import torch

    with torch.device("meta"):
        models = Models(
            psdrl.configure(game="Pong", preset="paper"), EnvSpec("Pong", "image", (1, 64, 64), "uint8", 6, "test")
        )
    shapes = {name: tuple(p.shape) for name, p in models.named_parameters() if name.endswith("weight")}
    encoder = [shape for name, shape in shapes.items() if name.startswith("autoencoder.encoder")]
    decoder = [shape for name, shape in shapes.items() if name.startswith("autoencoder.decoder")]
    assert encoder == [(48, 1, 4, 4), (96, 48, 4, 4), (192, 96, 4, 4), (384, 192, 4, 4)]
    assert decoder == [(384, 192, 4, 4), (192, 96, 4, 4), (96, 48, 4, 4), (48, 1, 5, 5)]
    assert models.autoencoder.latent_size == 1536
    linear = {
        name: [shape for key, shape in shapes.items() if key.startswith(f"{name}.layers")]
        for name in ("forward_model", "termination", "value.0", "target.0")
    }
    assert linear["forward_model"] == [(2292, 756 + 1536 + 6)] + [(2292, 2292)] * 3
    assert shapes["forward_model.output.weight"] == (1537, 2292)
    assert models.forward_model.gru.weight_ih.shape == (3 * 756, 1536 + 6)
    assert linear["termination"] == [(1536, 1536)] * 3 + [(1, 1536)]
    assert linear["value.0"] == linear["target.0"] == [(2292, 1536 + 756)] + [(2292, 2292)] * 3 + [(1, 2292)]


@pytest.mark.parametrize(
    ("choice", "cuda", "preset"),
    [
        ({"game": "Pong"}, False, "cpu"),
        ({"game": "Pong"}, True, "paper"),
        ({"game": "Pong", "device": "cpu"}, True, "cpu"),
        ({"game": "Pong", "device": "cuda"}, False, "paper"),
        ({"env": "deepsea-10"}, True, "deepsea"),
        ({"env": "deepsea-10-image"}, False, "deepsea"),
        ({"env": "minatar/breakout"}, True, "minatar"),
        ({"env": "CartPole-v1"}, False, "control"),
        ({"game": "Pong", "preset": "debug"}, True, "debug"),
    ],
    ids=str,
)
def test_auto_preset(choice: dict, cuda: bool, preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "cuda_available", lambda: cuda)
    config, why = registry.preset(choice)
    name = config.preset
    assert name == preset
    assert why
    assert psdrl.configure(**choice).preset == preset


@pytest.mark.parametrize("preset", ["paper", "cpu", "deepsea", "minatar", "control", "debug"])
def test_every_preset_is_valid_and_survives_json(preset: str) -> None:
    config = psdrl.configure(env="deepsea-7", preset=preset, logdir=None)
    check(config)
    assert registry.config_from_dict(config.to_dict()) == config
    from pathlib import Path

    moved = replace(config, logdir=Path("a/b"), seed=5, replay=replace(config.replay, batch=3))
    assert registry.config_from_dict(moved.to_dict()) == moved
    assert moved.to_dict() != config.to_dict()


def test_presets_do_not_ask_for_a_games_name() -> None:
    """One preset per kind of environment: what differs between two games is their name."""
    for games in (("minatar/freeway", "minatar/breakout"), ("minatar/asterix", "minatar/seaquest")):
        one, other = (psdrl.configure(env=game) for game in games)
        assert replace(one, env=games[1]) == other
    assert replace(psdrl.configure(game="Pong"), game="Freeway") == psdrl.configure(game="Freeway")


def test_unknown_settings_are_refused() -> None:
    stored = psdrl.configure(env="deepsea-7").to_dict()
    with pytest.raises(UserError, match="nonsense"):
        registry.config_from_dict(stored | {"nonsense": 1})
    with pytest.raises(UserError, match="bogus"):
        registry.config_from_dict(stored | {"value": stored["value"] | {"bogus": 1}})
    with pytest.raises(UserError, match="'nonsense'"):
        psdrl.configure(env="deepsea-7", nonsense=1)
    with pytest.raises(UserError, match=r"'value\.bogus'"):
        psdrl.configure(env="deepsea-7", value={"bogus": 1})


def test_configure_merges_into_the_preset() -> None:
    config = psdrl.configure(env="deepsea-7", preset="debug", value={"units": 33}, seed=4)
    base = psdrl.configure(env="deepsea-7", preset="debug")
    assert config == replace(base, seed=4, value=replace(base.value, units=33))


def flag(dotted: str) -> str:
    return "--" + dotted.replace("_", "-")


@pytest.mark.parametrize("dotted", PAPER_TABLE)
def test_every_hyperparameter_has_a_typed_flag(dotted: str) -> None:
    default = PAPER_TABLE[dotted]
    several = default if isinstance(default, tuple) else (default,)
    changed_to = tuple(number * 2 if isinstance(number, int) else number / 2 for number in several)
    other = changed_to if isinstance(default, tuple) else changed_to[0]
    config, _ = cli.parse_train(["--game", "Pong", "--preset", "paper", flag(dotted), *map(str, changed_to)])
    assert lookup(config, dotted) == other
    changed = [
        n for n in dotted_names(config) if lookup(config, n) != lookup(psdrl.configure(game="Pong", preset="paper"), n)
    ]
    assert changed == [dotted]


@pytest.mark.parametrize("equals", [False, True], ids=["space", "equals sign"])
def test_flags_start_from_the_preset(equals: bool) -> None:
    words = ["--env", "deepsea-5", "--seed", "3", "--value.units", "7"]
    if equals:
        words = [f"{a}={b}" for a, b in zip(words[::2], words[1::2], strict=True)]
    config, why = cli.parse_train(words)
    assert config == psdrl.configure(env="deepsea-5", seed=3, value={"units": 7})
    assert (config.preset, config.replay.length) == ("deepsea", 5)
    assert "DeepSea" in why


def test_help_shows_default_and_provenance(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.train(["--game", "Pong", "--preset", "paper", "--help-all"]) == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())
    sections = {part.split()[0]: part for part in re.split(r" (?=--[a-z])", text)}
    for dotted, default in PAPER_TABLE.items():
        help_text = sections.get(flag(dotted), "")
        assert "[paper" in help_text, f"{flag(dotted)} says not where it comes from: {help_text!r}"
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        assert f"(default: {shown})" in help_text, f"{flag(dotted)}: {help_text!r}"
    nested = [n for n in dotted_names(PsdrlConfig()) if "." in n]
    for name in nested:  # a switch is shown as --group.name, --group.no-name
        group, leaf = flag(name).split(".")
        sections[flag(name)] = sections.get(flag(name), "") + sections.get(f"{group}.no-{leaf}", "")
    without = [n for n in nested if not re.search(r"\[(paper|released|ours)", sections[flag(n)])]
    assert [n for n in without if n != "posterior.rule"] == [], "provenance is missing"


def test_psdrl_has_few_settings() -> None:
    """47, and with the 27 that every run had when they were counted 74; a new one replaces an old one. Import paths of
    networks of one's own are not counted: there is nothing to tune."""
    own = set(dotted_names(PsdrlConfig())) - set(dotted_names(Config())) - {"encoder", "world_model"}
    assert len(own) <= 47, sorted(own)


def test_update_period() -> None:
    config = psdrl.configure(game="Pong", preset="paper")
    assert [config.update_period(step) for step in (0, 250, 99_999, 100_000, 10**6)] == [250, 250, 250, 1000, 1000]


@pytest.mark.parametrize(
    ("algo", "rule", "in_force"),
    [
        ("psdrl", "exact", "exact"),
        ("psdrl", "released", "released"),
        ("psdrl", "none", "none"),
        ("egreedy-exploit", "exact", "none"),
        ("egreedy-explore", "exact", "none"),
        ("fresh-value", "exact", "exact"),
    ],
)
def test_sampling_rule_in_force(algo: str, rule: str, in_force: str) -> None:
    assert psdrl.configure(env="deepsea-4", algo=algo, posterior={"rule": rule}).rule == in_force


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"steps": 0}, "--steps is 0 but must be at least 1"),
        ({"forward": {"layers": 1}}, "--forward.layers is 1 but must be at least 2"),
        ({"forward": {"reward_weight": float("nan")}}, "--forward.reward-weight is nan"),
        ({"posterior": {"noise": (0.0, 1.0)}}, "--posterior.noise is 0.0 1.0 but must be one or two positive numbers"),
        ({"posterior": {"prior": (float("nan"),)}}, "--posterior.prior is nan but must be one or two"),
        ({"policy": {"update_every": (1, 2, 3)}}, "--policy.update-every is 1 2 3 but must be one or two"),
        ({"value": {"learning_rate": float("nan")}}, "--value.learning-rate is nan"),
        ({"value": {"random_share": 1.5}}, "--value.random-share is 1.5 but must lie between 0 and 1"),
        ({"value": {"target_rate": 2.0}}, "at most 1"),
        ({"value": {"discount": 1.0}}, r"\[0, 1\)"),
        ({"autoencoder": {"channels": ()}}, "one or more positive"),
        ({"autoencoder": {"channels": (1, 0, 1, 1)}}, "one or more positive"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(setting: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        psdrl.configure(env="deepsea-5", preset="paper", **setting)
