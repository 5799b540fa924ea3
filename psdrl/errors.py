"""Errors that are the user's to mend: one clear sentence, exit code 2, no traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what to do instead."""


class Diverged(UserError):
    """Training has met a number that is not finite; a run puts back what it was before, and goes on."""

    def __init__(self, phase: str, cause: str) -> None:
        super().__init__(f"Training diverged in the phase {phase}: {cause}; lower the learning rates.")
        self.phase, self.cause = phase, cause


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint such as `; did you mean Pong or Phoenix?`, or nothing if no choice is close."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    return f"; did you mean {' or '.join(close)}?" if close else ""
