"""Which settings may change when a run is resumed, and that no other may."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psdrl import cli
from psdrl.errors import UserError
from psdrl.run.checkpoint import FREE, check_same, write_config
from tests.helpers import dotted_names, small_config

# Written down a second time: a setting that becomes free, or no longer is, must be changed here too.
MAY_CHANGE = {
    "steps": "a run may be prolonged",
    "logdir": "a run directory may be moved",
    "log": "who else is told changes no number",
    "resume": "the question itself",
    "device": "a run may move to another machine",
    "compile": "speed only",
    "cuda_graphs": "speed only",
    "profile": "speed only",
    "eval_every": "evaluation has random streams of its own",
    "eval_episodes": "evaluation has random streams of its own",
    "checkpoint_every": "saving changes nothing",
    "checkpoint_minutes": "saving changes nothing",
    "checkpoint_keep": "saving changes nothing",
    "replay.device": "where frames lie changes no number",
}


def changed(config: Any, dotted: str) -> Any:
    """The settings with another value of one of them. It need not be a sensible one: it is only compared."""
    name, _, rest = dotted.partition(".")
    value = getattr(config, name)
    if rest:
        return replace(config, **{name: changed(value, rest)})
    if isinstance(value, bool):
        return replace(config, **{name: not value})
    if isinstance(value, int | float):
        return replace(config, **{name: value + 1})
    return replace(config, **{name: (*value, 1) if isinstance(value, tuple) else f"{value}-other"})


NAMES = dotted_names(small_config())


def test_the_free_settings_are_these() -> None:
    assert set(MAY_CHANGE) == FREE
    assert set(NAMES) >= FREE, "a setting that does not exist"


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_setting_is_refused_unless_it_is_free(name: str, tmp_path: Path) -> None:
    config = small_config()
    write_config(tmp_path, config)
    check_same(tmp_path, config)
    other = changed(config, name)
    if name in MAY_CHANGE:
        check_same(tmp_path, other)
    else:
        with pytest.raises(UserError, match=rf"\({name} = "):
            check_same(tmp_path, other)


def test_a_run_goes_on_with_every_free_setting_changed(tmp_path: Path) -> None:
    """Through the command line; all but `compile`, which takes a minute, `device`, of which there is one here, and
    `log`, whose services have tests of their own."""
    small = ("--env", "deepsea-4", "--preset", "debug", "--device", "cpu")
    assert cli.train([*small, "--steps", "300", "--logdir", str(tmp_path / "old")]) == 0
    (tmp_path / "old").rename(tmp_path / "new")
    flags = "--steps 600 --resume must --no-cuda-graphs --profile 1:2 --eval-every 50 --eval-episodes 2"
    flags += " --checkpoint-every 200 --checkpoint-minutes 1 --checkpoint-keep 3 --replay.device host"
    assert cli.train([*small, *flags.split(), "--logdir", str(tmp_path / "new")]) == 0
    before, after = (small_config(), json.loads((tmp_path / "new" / "config.json").read_text())["config"])
    different = {n for n in NAMES if _stored(before.to_dict(), n) != _stored(after, n)}
    assert different == set(MAY_CHANGE) - {"compile", "device", "log"}, "each of them was another one before"
    steps = [json.loads(line)["step"] for line in (tmp_path / "new" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert steps[0] < 300 < steps[-1]


def _stored(values: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        values = values[name]
    return values
