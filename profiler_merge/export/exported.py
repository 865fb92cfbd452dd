"""What an export wrote, and how a file is written so that it is there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from traces.errors import TargetError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One file. `entries`: events, rows or actions in it; `bytes` as stored, 0 where it went to a pipe."""

    path: str
    entries: int
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A whole export. `operations` are those in it; `left_out` maps a reason to the operations it kept out."""

    format: str
    output: str
    operations: int
    files: tuple[ExportedFile, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay export --json` prints."""
        return {
            "format": self.format,
            "output": self.output,
            "operations": self.operations,
            "left_out": dict(self.left_out),
            "files": [{"path": file.path, "entries": file.entries, "bytes": file.bytes} for file in self.files],
            "notes": list(self.notes),
        }


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when the context ends well, and leaves it as it was when not.

    As with a capture, what an earlier export wrote there is replaced; what is no file is not.
    Raises: TargetError when something else is at `path`, or the disk refuses.
    """
    # a name cannot be appended to "." or "/", which exist in any case
    temporary = path.parent / f".{path.name}.{os.getpid()}.new"
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise TargetError(f"{path} exists and is not a file: choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        raise refusal(error, path) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def refusal(error: OSError, path: Path) -> TargetError:
    """What the operating system refused while `path` was written."""
    return TargetError(f"cannot write {path}: {error.strerror or error}; choose another --output or free space there")
