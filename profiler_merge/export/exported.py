"""What an export wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
