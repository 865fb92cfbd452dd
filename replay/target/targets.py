"""The kinds of targets, by the scheme of their URL. Another kind is a module with its class, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from dxt_replay.replay.target.posix import open_directory
from dxt_replay.replay.target.protocol import Target

TARGETS: dict[str, Callable[[str | Path, bool], AbstractContextManager[Target]]] = {"": open_directory}
"""Scheme -> what opens a target, and makes it where the second argument is True. "": paths."""


def open_target(where: str | Path, *, make: bool = False) -> AbstractContextManager[Target]:
    """Open the target at a path or URL; `make`: create it and its parents if absent.

    Raises: TargetError when it cannot be opened or made, or must not be used.
    """
    scheme, found, _ = str(where).partition("://")
    return TARGETS[scheme if found and scheme in TARGETS else ""](where, make)


@contextmanager
def locked_target(where: str | Path) -> Iterator[None]:
    """Hold the lock of a target, as `Target.locked`. A target that does not exist needs no lock."""
    with open_target(where) as target, target.locked():
        yield
