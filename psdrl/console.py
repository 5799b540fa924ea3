"""Where people read: a console that a closed pipe does not stop."""

import os
import sys

from rich.console import Console


class PatientConsole(Console):
    """`psdrl presets | head -1` is no error, and a run whose reader has gone trains on, unread."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(nowhere)
