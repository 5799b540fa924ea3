"""Changes of the file system, one method each, and reading within bounds."""

import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

BLOCK = 1 << 20
Buffer = bytes | bytearray | memoryview


class Damaged(Exception):
    """A file is not what was written; the message says what is wrong with it, in a few words."""


class Stored(NamedTuple):
    """What a file must be."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: Buffer) -> "Stored":
        """What a file with these bytes is."""
        return cls(memoryview(data).nbytes, hashlib.sha256(data).hexdigest())


class Disk:
    """Every single operation by which a run changes its directory. Tests let any of them fail."""

    def open(self, path: Path) -> BinaryIO:
        """A new, empty file, unbuffered."""
        return open(path, "xb", buffering=0)

    def write(self, file: BinaryIO, data: memoryview) -> int:
        """Append; returns how many bytes were written, perhaps not all."""
        return file.write(data)

    def fsync(self, file: BinaryIO) -> None:
        """Put the file's data on the disk."""
        os.fsync(file.fileno())

    def fsync_directory(self, path: Path) -> None:
        """Put the names in a directory on the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def mkdir(self, path: Path) -> None:
        """A new directory, with those above it."""
        path.mkdir(parents=True)

    def rename(self, old: Path, new: Path) -> None:
        """Atomic; a file of the new name is replaced."""
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def create(self, path: Path, data: Buffer) -> Stored:
        """A new file with these bytes, on the disk when this returns."""
        left = memoryview(data).cast("B")
        with self.open(path) as file:
            while left:
                left = left[self.write(file, left) :]
            self.fsync(file)
        return Stored.of(data)

    def replace(self, path: Path, data: Buffer) -> None:
        """A file with these bytes in the place of the old one, which stays whole until then."""
        beside = path.with_name(f".partial-{path.name}")
        self.remove(beside)
        self.create(beside, data)
        self.rename(beside, path)
        self.fsync_directory(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file or a directory of files, if it is there."""
        if path.is_dir() and not path.is_symlink():
            for inner in path.iterdir():
                self.remove(inner)
            self.rmdir(path)
        elif path.is_symlink() or path.exists():
            self.unlink(path)


def read(path: Path, limit: int) -> bytes:
    """A regular file's bytes, at most `limit`; a device or a pipe would have no end."""
    try:
        with open(path, "rb", opener=_opened) as file:
            mode = os.fstat(file.fileno())
            if not stat.S_ISREG(mode.st_mode):
                raise Damaged(f"{path.name} is no file")
            if mode.st_size > limit:
                raise Damaged(f"{path.name} has {mode.st_size} bytes where at most {limit} make sense")
            return file.read(mode.st_size + 1)
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from None


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would block


def read_checked(path: Path, wanted: Stored, limit: int) -> bytes:
    """The bytes of a file that is what it must be."""
    if wanted.size > limit:
        raise Damaged(f"{path.name} claims {wanted.size} bytes where at most {limit} make sense")
    data = read(path, wanted.size)
    if Stored.of(data) != wanted:
        raise Damaged(f"{path.name} has changed since it was written")
    return data


def check(path: Path, wanted: Stored) -> None:
    """Raise Damaged unless a file is what it must be; reads it block by block."""
    try:
        with open(path, "rb", opener=_opened) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size != wanted.size:
                raise Damaged(f"{path.name} has {found.st_size} bytes of {wanted.size}")
            digest = hashlib.sha256()
            for _ in range(0, wanted.size, BLOCK):
                digest.update(file.read(BLOCK))
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from None
    if digest.hexdigest() != wanted.sha256:
        raise Damaged(f"{path.name} has changed since it was written")
