"""Words to settings: tyro parses, whole numbers may be written 1e6 or 1_000_000, and a mistake is one sentence."""

import contextlib
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from psdrl.config import flag
from psdrl.errors import UserError, nearest
from psdrl.flags.suggest import suggestion

T = TypeVar("T")
SWITCH_VALUES = {"true", "false", "yes", "no", "on", "off", "0", "1"}
NUMBERS = ConstructorRegistry()


def whole(text: str) -> int:
    """The whole number that people write as 1000000, 1_000_000, 1e6 or 2.5e5."""
    try:
        number = Decimal(text)  # exact, unlike float: 1e23 is a 1 with 23 zeros
        if number.is_finite() and number == number.to_integral_value() and abs(number) < Decimal(10) ** 30:
            return int(number)
    except InvalidOperation:
        pass
    raise ValueError(f"{text!r} is no whole number, such as 1000, 1_000 or 1e3")


def real(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number, such as 0.001 or 1e-3") from None


@NUMBERS.primitive_rule
def _numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if info.type is int:
        return PrimitiveConstructorSpec(1, "INT", lambda words: whole(words[0]), _is_whole, lambda n: [str(n)])
    if info.type is float:
        return PrimitiveConstructorSpec(1, "FLOAT", lambda words: real(words[0]), _is_real, lambda x: [str(x)])
    return None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def flags_of(kind: Any, prefix: str = "") -> list[str]:
    """All flags of a class of settings; a switch has two."""
    found: list[str] = []
    hints = get_type_hints(kind)
    for field in fields(kind):
        name = prefix + field.name
        if is_dataclass(hints[field.name]):
            found += flags_of(hints[field.name], name + ".")
            continue
        found.append(flag(name))
        if hints[field.name] is bool:
            found.append(flag(f"{prefix}no_{field.name}"))
    return found


def parse_known(kind: type[T], arguments: Sequence[str], prog: str, default: T | None = None) -> tuple[T, list[str]]:
    """Settings from those words that are flags of this class, and the other words."""
    start: dict[str, Any] = {} if default is None else {"default": default}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                args=list(arguments),
                prog=prog,
                registry=NUMBERS,
                add_help=False,
                return_unknown_args=True,
                **start,
            )
    except SystemExit:
        raise UserError(sentence(said.getvalue())) from None


def parse(kind: type[T], arguments: Sequence[str], prog: str, default: T | None = None) -> tuple[T, list[str]]:
    """Settings from flags, and the words that belong to no flag; an unknown flag is refused with a suggestion."""
    settings, others = parse_known(kind, arguments, prog, default)
    known = flags_of(kind)
    for word in others:
        if word.startswith("-") and not word[1:2].isdigit():
            name = word.partition("=")[0]
            raise UserError(f"Unknown flag {name}{suggestion(name, known) or f': {prog} --help lists them.'}")
        if word.lower() in SWITCH_VALUES:
            raise UserError(f"A switch takes no value such as {word!r}: write --compile or --no-compile, for example.")
    return settings, others


def command(kind: type[T], arguments: Sequence[str], prog: str) -> T:
    """The options of a command that has no words but its flags and positional arguments."""
    if {"-h", "--help", "--help-all"} & set(arguments):
        tyro.cli(kind, args=["--help"], prog=prog)
    options, others = parse(kind, arguments, prog)
    if others:
        raise UserError(f"{prog} does not know what to do with {others[0]!r}: {prog} --help shows how it is used.")
    return options


def sentence(box: str) -> str:
    """What tyro says in a box, as one sentence: the words between its title and the next line that is drawn."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [line.strip(" │") for line in plain.splitlines()]
    inner = rows[2:] if len(rows) > 1 and rows[1].startswith("--") else rows[1:]  # in ASCII the title has a row
    text = " ".join(itertools.takewhile(lambda row: not row.startswith(("──", "--", "╰")) or row[2:3].isalpha(), inner))
    text = text.strip().removeprefix("Error parsing ")
    if missing := re.match(r"Missing value for argument '(\S+)'", text):
        return f"{missing[1]} needs a value."
    if choice := re.match(r"invalid choice '(.*)' for argument '(\S+)'. Expected one of \((.*)\)\.$", text):
        names = re.findall(r"'([^']*)'", choice[3])
        hint = nearest(choice[1], names) or f": use one of {', '.join(names)}."
        return f"{choice[2]} has no choice {choice[1]!r}{hint}"
    return text if text.endswith((".", "?")) else f"{text}."
