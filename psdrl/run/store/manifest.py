"""The manifest of a checkpoint: its files and the replay segments it needs, each with size and checksum."""

import hashlib
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from psdrl.run.store.files import Damaged, Disk, Stored, check, read
from psdrl.run.store.tree import from_json, to_json

FORMAT = 1
NAME = "manifest.json"
REPLAY = "replay"  # the directory of segments, shared by the checkpoints of a run
PARTS = ("agent", "run", "replay")
FILES = tuple(f"{part}.{kind}" for part in PARTS for kind in ("json", "safetensors"))
LIMIT = 16 << 20  # bytes of a manifest
SEGMENT = re.compile(r"segment-(\d{1,12})\.zst")
_SHA256 = re.compile("[0-9a-f]{64}")
_LARGEST = 2**62


class Piece(NamedTuple):
    """Rows `first` to before `last` of a ring of the replay buffer."""

    ring: int
    first: int
    last: int


@dataclass(frozen=True)
class Segment:
    """A compressed file of replay rows."""

    name: str
    stored: Stored
    raw: int  # bytes before compression
    level: int  # how often its rows were merged
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of; later segments override the rows of earlier ones."""

    step: int
    files: dict[str, Stored]
    segments: tuple[Segment, ...]


def write(disk: Disk, folder: Path, manifest: Manifest) -> None:
    """manifest.json, the last file of a checkpoint."""
    disk.create(folder / NAME, _signed({"format": FORMAT, **asdict(manifest)}))


def _signed(record: dict[str, Any]) -> bytes:
    """A record with the checksum of all before it."""
    digest = hashlib.sha256(to_json(record)).hexdigest()
    return to_json({**record, "sha256": digest}) + b"\n"


def load(folder: Path) -> Manifest:
    """The manifest of a checkpoint; raises Damaged unless it is one, byte by byte."""
    if (folder / "agent.pt").exists():
        raise Damaged("it was written by an earlier version of psdrl, whose format is no longer read")
    data = read(folder / NAME, LIMIT)
    record = from_json(data, NAME)
    if not isinstance(record, dict):
        raise Damaged(f"{NAME} is no manifest")
    if record.get("format") != FORMAT:
        raise Damaged(f"{NAME} is of format {str(record.get('format'))[:20]}, this version reads {FORMAT}")
    record.pop("sha256", None)
    if data != _signed(record):
        raise Damaged(f"{NAME} has changed since it was written")
    try:
        segments = tuple(_segment(segment) for segment in record["segments"])
        files = {name: _stored(stored) for name, stored in record["files"].items()}
        manifest = Manifest(_whole(record["step"]), files, segments)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Damaged(f"{NAME} is no manifest") from None
    if set(files) != set(FILES):
        raise Damaged(f"{NAME} does not name the files of a checkpoint")
    return manifest


def _segment(values: dict[str, Any]) -> Segment:
    name, raw, level = values["name"], _whole(values["raw"]), _whole(values["level"])
    if not SEGMENT.fullmatch(name):
        raise ValueError(name)
    pieces = tuple(Piece(*map(_whole, piece)) for piece in values["pieces"])
    if not pieces or any(piece.first >= piece.last for piece in pieces):
        raise ValueError("empty pieces")
    return Segment(name, _stored(values["stored"]), raw, level, pieces)


def _stored(values: list[Any]) -> Stored:
    size, digest = values
    if not _SHA256.fullmatch(digest):
        raise ValueError(digest)
    return Stored(_whole(size), digest)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise ValueError(value)
    return value


def verify(folder: Path, segments: Path | None, only: list[Segment] | None = None) -> Manifest:
    """The manifest of a checkpoint of which every byte is as it was written; raises Damaged.

    segments: their directory, or None not to look at the replay buffer; only: look at these segments alone."""
    manifest = load(folder)
    for name, stored in manifest.files.items():
        if segments is not None or not name.startswith("replay."):
            check(folder / name, stored)
    if segments is not None:
        for segment in manifest.segments if only is None else only:
            check(segments / segment.name, segment.stored)
    return manifest
