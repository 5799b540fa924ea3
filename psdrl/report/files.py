"""Directories that a command may write over: its own, by a hidden mark."""

import os
from collections.abc import Iterable
from pathlib import Path

from psdrl.errors import UserError


def check_out(out: Path, mark: str) -> None:
    """Refuse to write where something else lies."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: name a directory.")
    if out.exists() and any(out.iterdir()) and not (out / mark).exists():
        raise UserError(f"--out {out} is not empty and holds something else: use another.")


def write(out: Path, mark: str, files: dict[str, bytes], folders: Iterable[str] = ()) -> None:
    """Each file at once, in this order; what an earlier call left beside them in these folders is removed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / mark).touch()
        for folder in folders:
            (out / folder).mkdir(exist_ok=True)
            for old in (out / folder).iterdir():
                if f"{folder}/{old.name}" not in files and not old.is_dir():
                    old.unlink()
        for name, data in files.items():
            beside = out / f"{name}.new"
            beside.write_bytes(data)
            os.replace(beside, out / name)
    except OSError as error:
        raise UserError(f"--out {out} cannot be written ({error.strerror}): use another.") from None
