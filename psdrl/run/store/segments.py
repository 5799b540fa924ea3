"""Replay rows in files: what is new since the last checkpoint, compressed; small files are merged."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import zstandard

from psdrl.replay.rows import Rings, Rows, Span
from psdrl.run.store.files import Damaged, read_checked
from psdrl.run.store.manifest import Manifest, Piece, Segment
from psdrl.run.store.tree import from_safetensors, to_safetensors

CHUNK = 64 << 20  # bytes of rows per segment, about
MERGED = 8  # segments that become one
LEVEL = 3  # of compression: 2 GB/s and a 148th of 4000 frames of Pong, level 1 a 133rd
_HEADER = 512  # most bytes by which a segment's header grows per column
_WINDOW = 1 << 27

Part = tuple[Piece, Rows]


def row_bytes(memory: Rings, ring: int) -> int:
    """Bytes of a row."""
    first = memory.spans()[ring].first
    empty = memory.rows(ring, first, first).values()
    return sum(column.element_size() * math.prod(column.shape[1:]) for column in empty)


def new_pieces(spans: list[Span], marks: list[int]) -> list[Piece]:
    """The rows that are needed and not stored yet; before `marks` they are."""
    starts = [max(span.first, mark) for span, mark in zip(spans, marks, strict=True)]
    ends = [span.end for span in spans]
    return [Piece(ring, a, b) for ring, (a, b) in enumerate(zip(starts, ends, strict=True)) if a < b]


def chunked(pieces: list[Piece], sizes: list[int]) -> list[list[Piece]]:
    """The pieces in groups of about CHUNK bytes, long ones cut; sizes: bytes of each ring's rows."""
    groups: list[list[Piece]] = []
    room = 0
    for ring, first, last in pieces:
        while first < last:
            if room < sizes[ring]:
                groups.append([])
                room = max(CHUNK, sizes[ring])
            cut = min(last, first + room // sizes[ring])
            groups[-1].append(Piece(ring, first, cut))
            room -= (cut - first) * sizes[ring]
            first = cut
    return groups


def encode(parts: list[Part]) -> tuple[bytes, int]:
    """Rows as a compressed file, and its size before compression."""
    tensors = {f"{i}.{name}": column for i, (_, rows) in enumerate(parts) for name, column in rows.items()}
    raw = to_safetensors(tensors)
    return zstandard.ZstdCompressor(level=LEVEL).compress(raw), len(raw)


def decode(folder: Path, segment: Segment, limit: int) -> list[Part]:
    """The rows of a segment; raises Damaged. It is never unpacked beyond `limit` bytes or what the manifest says."""
    if segment.raw > limit:
        raise Damaged(f"{segment.name} claims {segment.raw} bytes of rows where at most {limit} make sense")
    packed = read_checked(folder / segment.name, segment.stored, limit + (limit >> 6) + 4096)
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    try:
        with unpacker.stream_reader(packed) as stream:
            raw = stream.read(segment.raw + 1)
    except zstandard.ZstdError:
        raise Damaged(f"{segment.name} cannot be unpacked") from None
    if len(raw) != segment.raw:
        raise Damaged(f"{segment.name} does not unpack to {segment.raw} bytes")
    found: dict[str, Rows] = {}
    for name, column in from_safetensors(raw, segment.name).items():
        number, _, field = name.partition(".")
        found.setdefault(number, {})[field] = column
    parts = [(piece, found.get(str(i), {})) for i, piece in enumerate(segment.pieces)]
    for piece, rows in parts:
        if not rows or any(x.ndim == 0 or len(x) != piece.last - piece.first for x in rows.values()):
            raise Damaged(f"{segment.name} does not hold the rows that it should")
    return parts


def needed(segments: Iterable[Segment], spans: list[Span]) -> list[Segment]:
    """The segments with a row that is still needed."""
    return [s for s in segments if any(last > spans[ring].first for ring, _, last in s.pieces)]


def mergeable(segments: list[Segment]) -> list[Segment]:
    """The newest segments, if they are due to become one: as many of a level as MERGED, and not too large."""
    newest = segments[-MERGED:]
    alike = len(newest) == MERGED and len({segment.level for segment in newest}) == 1
    return newest if alike and sum(segment.raw for segment in newest) <= CHUNK else []


def merged(all_parts: Iterable[Part], spans: list[Span]) -> list[Part]:
    """The same rows with one piece per ring where they follow each other; later ones override, old ones are dropped."""
    rings: dict[int, list[Part]] = {}
    for piece, rows in all_parts:
        piece, rows = _clipped(piece, rows, spans[piece.ring].first, piece.last)
        before = rings.setdefault(piece.ring, [])
        before[:] = [_clipped(*part, part[0].first, piece.first) for part in before]
        before.append((piece, rows))
    return [part for parts in rings.values() for part in _joined([p for p in parts if p[0].first < p[0].last])]


def _clipped(piece: Piece, rows: Rows, first: int, last: int) -> Part:
    """What of a piece lies between these."""
    start = min(max(piece.first, first), piece.last)
    stop = max(start, min(piece.last, last))
    part = slice(start - piece.first, stop - piece.first)
    return Piece(piece.ring, start, stop), {name: column[part] for name, column in rows.items()}


def _joined(parts: list[Part]) -> Iterator[Part]:
    """Neighbours as one piece."""
    run: list[Part] = []
    for part in [*parts, None]:
        if run and (part is None or part[0].first != run[-1][0].last):
            rows = {name: torch.cat([rows[name] for _, rows in run]) for name in run[0][1]}
            yield Piece(run[0][0].ring, run[0][0].first, run[-1][0].last), rows
            run = []
        if part is not None:
            run.append(part)


def restore_rows(folder: Path, manifest: Manifest, memory: Rings, num_actions: int) -> None:
    """Put the rows of all segments back into a buffer whose counters are restored; raises Damaged or ValueError.

    Memory is bounded by the buffer: pieces that it could not have written are refused before they are read."""
    spans = memory.spans()
    sizes = [row_bytes(memory, ring) for ring in range(len(spans))]
    reached = [span.first for span in spans]
    for segment in manifest.segments:
        limit = 4096
        for ring, first, last in segment.pieces:
            if ring >= len(spans) or last - first > memory.ring_slots + 1 or last > spans[ring].end:
                raise Damaged(f"{segment.name} holds rows {first} to {last}, which this run cannot have")
            limit += (last - first) * sizes[ring] + 16 * _HEADER
        for piece, rows in decode(folder, segment, limit):
            piece, rows = _clipped(piece, rows, spans[piece.ring].first, spans[piece.ring].end)
            if piece.first == piece.last:
                continue
            if piece.first > reached[piece.ring]:
                break
            actions = rows.get("actions")
            if actions is not None and len(actions) and not 0 <= int(actions.min()) <= int(actions.max()) < num_actions:
                raise Damaged(f"{segment.name} has actions that the environment does not have")
            memory.load_rows(piece.ring, piece.first, rows)
            reached[piece.ring] = max(reached[piece.ring], piece.last)
    if any(reach < span.end for reach, span in zip(reached, spans, strict=True)):
        raise Damaged("rows of the replay buffer are missing")
