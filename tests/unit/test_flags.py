"""Flags: any settings can be written as flags and read again; numbers as people write them; suggestions; help."""

import dataclasses
import re
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from psdrl import cli
from psdrl.agents import registry
from psdrl.config import Config, flag, lookup
from psdrl.errors import UserError
from psdrl.flags import help as flags_help
from psdrl.flags import parse
from psdrl.flags.suggest import ELSEWHERE, suggestion
from tests.helpers import dotted_names

# What stands for nothing on a command line, or cannot be part of one.
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda word: word != "None")
BY_TYPE = {
    int: st.integers(-(10**20), 10**20),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: WORDS,
    Path: WORDS.map(Path),
}
KINDS = sorted({entry.settings for entry in registry.AGENTS.values()}, key=lambda kind: kind.__name__)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """All values of a type of setting."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        build: Any = kind
        return st.builds(build, **{f.name: values(hints[f.name]) for f in dataclasses.fields(kind)})
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        return st.lists(values(get_args(kind)[0]), max_size=4).map(tuple)
    if isinstance(kind, UnionType):
        return st.one_of(*(st.none() if part is type(None) else values(part) for part in get_args(kind)))
    return BY_TYPE[kind]


@st.composite
def configurations(draw: st.DrawFn) -> Config:
    """Any settings of any agent that name an environment and a preset."""
    kind = draw(st.sampled_from(KINDS))
    algos = [name for name, entry in registry.AGENTS.items() if entry.settings is kind]
    presets = list(registry.entry(algos[0]).presets.by_name)
    place = draw(st.sampled_from(["game", "env"]))
    named = {"game": None, "env": None} | {place: draw(WORDS)}
    choice = {"algo": draw(st.sampled_from(algos)), "preset": draw(st.sampled_from(presets))}
    return dataclasses.replace(draw(values(kind)), **named, **choice)


def written(config: Config) -> list[str]:
    """The flags that ask for every setting of a configuration."""
    words: list[str] = []
    for name in dotted_names(config):
        value = lookup(config, name)
        group, _, leaf = name.rpartition(".")
        if isinstance(value, bool):
            words.append(flag(name if value else f"{group}.no_{leaf}".lstrip(".")))
        elif name != "released" and value and isinstance(value, tuple) and all(isinstance(part, str) for part in value):
            words += [f"{flag(name)}={part}" for part in value]  # given several times
        elif isinstance(value, tuple):
            words += [flag(name), *map(str, value)]
        elif value is not None:
            words.append(f"{flag(name)}={value}")
    return words


def changed(config: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    both = {name: (lookup(config, name), lookup(other, name)) for name in dotted_names(config)}
    return {name: (one, another) for name, (one, another) in both.items() if one != another}


# The message names the setting: to shrink a configuration of 100 settings takes minutes.
@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
@given(configurations())
def test_settings_survive_flags_and_json(config: Config) -> None:
    assert changed(config, cli.parse_train(written(config))[0]) == {}
    assert registry.config_from_dict(config.to_dict()) == config


@settings(deadline=None, derandomize=True)
@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{:_}", "{}e0", "{}.0", "{}000e-3"]))
def test_whole_numbers_as_people_write_them(number: int, how: str) -> None:
    assert parse.whole(how.format(number)) == number


@pytest.mark.parametrize(
    ("text", "number"), [("1e6", 10**6), ("2.5e5", 250_000), ("1_000_000", 10**6), ("1e23", 10**23)]
)
def test_whole_numbers(text: str, number: int) -> None:
    assert parse.whole(text) == number
    assert cli.parse_train(["deepsea-4", "--steps", text, "--replay.capacity", text])[0].steps == number


@pytest.mark.parametrize("text", ["1.5", "1e-3", "nan", "inf", "many", "", "1e999999"])
def test_no_whole_numbers(text: str) -> None:
    with pytest.raises(UserError, match=r"^--steps.* is no whole number"):
        cli.parse_train(["deepsea-4", f"--steps={text}"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["Pong"], ("Pong", None)),
        (["pong", "--steps", "5"], ("Pong", None)),
        (["--compile", "SpaceInvaders"], ("SpaceInvaders", None)),
        (["deepsea-10"], (None, "deepsea-10")),
        (["--seed", "3", "CartPole-v1"], (None, "CartPole-v1")),
        (["minatar/breakout"], (None, "minatar/breakout")),
        (["mymodule:MyEnv-v0"], (None, "mymodule:MyEnv-v0")),
    ],
    ids=str,
)
def test_a_word_names_the_environment(words: list[str], expected: tuple[str | None, str | None]) -> None:
    config, _ = cli.parse_train(words)
    assert (config.game, config.env) == expected
    flags = [
        "--game" if config.game else "--env",
        config.env_name,
        *[w for w in words if w.lower() not in (config.env_name.lower(),)],
    ]
    assert cli.parse_train(flags)[0] == config, "the preset is that of the environment"


def known(algo: str) -> list[str]:
    return parse.flags_of(registry.entry(algo).settings)


def test_names_from_elsewhere_point_to_flags_that_exist() -> None:
    from psdrl.run.evaluate import Evaluation

    everything = {*known("psdrl"), *known("bootstrap"), *parse.flags_of(Evaluation)}
    leaves = {name[2:].rpartition(".")[2] for name in everything}
    assert {name for names in ELSEWHERE.values() for name in names} <= leaves
    assert not {f"--{name}" for name in ELSEWHERE} & set(known("psdrl")), "a flag of ours needs no translation"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--lr", "--value.learning-rate"),
        ("--learning-rate", "--forward.learning-rate"),
        ("--learning_rate", "--forward.learning-rate"),
        ("--total-timesteps", "--steps"),
        ("--n-envs", "--num-envs"),
        ("--gamma", "--value.discount"),
        ("--batch-size", "--replay.batch"),
        ("--env-id", "--env"),
        ("--buffer-size", "--replay.capacity"),
        ("--stepz", "--steps"),
        ("--valu.units", "--value.units"),
        ("--units", "--value.units"),
        ("--no-cuda-graph", "--no-cuda-graphs"),
    ],
)
def test_unknown_flags_get_a_suggestion(typed: str, meant: str) -> None:
    hint = suggestion(typed, known("psdrl"))
    assert re.search(rf"{re.escape(meant)}\b", hint), hint
    with pytest.raises(UserError) as refused:
        cli.parse_train(["deepsea-4", typed, "1"])
    assert str(refused.value) == f"Unknown flag {typed}{hint}"


def printed(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.train(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert all(len(line.rstrip()) <= 85 for line in lines)
    text = "\n".join(lines)
    shown = re.findall(r"^  (--[a-z-]+)", text, re.M)
    assert set(shown) <= set(known("psdrl"))
    assert 12 <= len(shown) <= 20
    assert "--help-all" in text


@pytest.mark.parametrize("words", [["--help"], ["--help-all"]], ids=str)
def test_tags_belong_to_the_value_shown(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSea's preset has steps of its own: they are not the paper's, and the paper's are named."""
    monkeypatch.setenv("COLUMNS", "120")  # wider terminals get groups of flags side by side

    def shown(environment: list[str]) -> str:
        assert cli.train([*environment, *words]) == 0
        text = printed(capsys.readouterr().out)
        return re.search(r"--steps .*? --(?!steps)", text)[0]  # type: ignore[index]

    assert "[paper]" in shown(["--game", "Pong", "--preset", "paper"])
    deepsea = shown(["deepsea-5"])
    assert "500" in deepsea
    assert "preset deepsea" in deepsea
    assert "[paper]" not in deepsea or "the default is 1000000 [paper]" in deepsea


def test_every_setting_of_a_preset_says_so() -> None:
    """Whatever a preset changes has no tag that claims the preset's value for the paper."""
    start = registry.preset({"env": "deepsea-20"})[0]
    changed = 0
    for name in dotted_names(start):
        group, _, leaf = name.rpartition(".")
        part = lookup(start, group) if group else start
        kind: Any = type(part)
        value, default = getattr(part, leaf), getattr(kind(), leaf)
        text = flags_help.texts(kind)[leaf]
        said = flags_help.with_source(text, value, default, "deepsea")
        if value == default or "[" not in text:
            assert said == text
            continue
        changed += 1
        assert re.search(r"\(preset deepsea; the default is .*\)$", said), said
        assert not said.endswith("]")
    assert changed > 20


def test_tags_of_choices_stay_with_them() -> None:
    text = "forward [paper], or backward. [ours]"
    assert flags_help.with_source(text, "backward", "forward", "x") == f"{text} (preset x; the default is forward)"
    assert flags_help.with_source("Units. [paper]", 3, 7, "x") == "Units. (preset x; the default is 7 [paper])"
    assert flags_help.with_source("Units. [paper]", 7, 7, "x") == "Units. [paper]"


@pytest.mark.parametrize("name", ["mymodule:MyEnv-v0", "minatar/breakout", "a b\\c*", "ALE/Pong-v5"])
def test_default_directories_suit_every_file_system(name: str) -> None:
    logdir = Config(env=name).default_logdir
    assert logdir.parent == Path("runs")
    assert re.fullmatch(r"[\w.+-]+-psdrl-0", logdir.name)
    assert Config(env="deepsea-10", seed=3).default_logdir == Path("runs/deepsea-10-psdrl-3")
