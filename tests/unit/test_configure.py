"""`psdrl.configure`: what a name or a value that is wrong gets as an answer."""

from pathlib import Path
from typing import Any

import pytest

import psdrl

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a letter is missing": ({"step": 64}, "Unknown setting 'step'; did you mean steps"),
    "nested": ({"value": {"unit": 3}}, "Unknown setting 'value.unit'; did you mean units"),
    "nothing is close": ({"zzzzz": 3}, "Unknown setting 'zzzzz': use game, env,"),
    "text for a number": ({"steps": "64"}, "steps is '64' but must be a whole number."),
    "half a step": ({"steps": 1.5}, "steps is 1.5 but must be a whole number."),
    "no number": ({"steps": float("nan")}, "steps is nan but must be a whole number."),
    "a switch is no number": ({"steps": True}, "steps is True but must be a whole number."),
    "a number is no switch": ({"compile": 1}, "compile is 1 but must be True or False."),
    "nested type": ({"value": {"units": "3"}}, "value.units is '3' but must be a whole number."),
    "a number for a group": ({"value": 3}, "value is 3 but must be a dict of its settings: layers, units,"),
    "no such choice": ({"precision": "fp16"}, "precision is 'fp16' but must be 'fp32', 'tf32', 'mixed' or 'bf16'."),
    "text in a tuple": ({"autoencoder": {"channels": ["4"]}}, "autoencoder.channels is '4' but must be"),
    "an environment object": ({"env": 3}, "env is 3 but must be a string."),
    "an unknown preset": ({"preset": "contrl"}, "psdrl has no preset 'contrl'; did you mean control?"),
    "an unknown agent": ({"algo": "psdl"}, "Unknown agent 'psdl'; did you mean psdrl?"),
}


def test_a_single_value_is_a_tuple_of_one() -> None:
    assert psdrl.configure(env="deepsea-4", device="cpu", policy={"update_every": 1e2}).policy.update_every == (100,)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_are_refused_in_one_sentence(case: str) -> None:
    values, says = WRONG[case]
    with pytest.raises(psdrl.UserError) as refused:
        psdrl.configure(**{"env": "deepsea-5"} | values)
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)


def test_values_are_taken_as_they_are_meant() -> None:
    config = psdrl.configure(
        env="deepsea-5", steps=1e4, logdir="a/b", autoencoder={"channels": [4, 8]}, value={"discount": 0}
    )
    assert (config.steps, type(config.steps)) == (10_000, int)
    assert config.logdir == Path("a/b")
    assert config.autoencoder.channels == (4, 8)
    assert isinstance(config.value.discount, float)
