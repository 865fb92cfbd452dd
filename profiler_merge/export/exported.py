"""The result of an export: its files, and what the format could not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One written file.

    entries: events, rows or actions in it.
    bytes: its size; 0 if it went to a pipe.
    """

    path: str
    entries: int
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A whole export.

    operations: number of operations in it.
    left_out: reason -> number of operations left out for it.
    notes: sentences for the user on what the format could not keep.
    """

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
