"""Sources of the captures that come with the package: a Darshan log and a profile per rank (see SOURCES.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NAMES = ("imagenet", "cosmictagger")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Paths of a bundled capture's sources."""

    name: str
    log: Path
    profiles: tuple[Path, ...]


def sample(name: str) -> Sample:
    """The bundled capture of that name (one of NAMES). Raises: KeyError for another."""
    if name not in NAMES:
        raise KeyError(name)
    folder = Path(__file__).parent / name
    return Sample(name=name, log=folder / "job.darshan", profiles=tuple(sorted(folder.glob("*.xplane.pb.gz"))))
