"""The kinds of targets, by the scheme of their URL. Another kind is a module with its class, and a line here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from dxt_replay.replay.target.object_store import SCHEME, parse_object_url
from dxt_replay.replay.target.objects import open_objects
from dxt_replay.replay.target.posix import open_directory
from dxt_replay.replay.target.protocol import Target, absent
from dxt_replay.traces.errors import UsageError

TARGETS: dict[str, Callable[[str | Path, bool], AbstractContextManager[Target]]] = {
    "": open_directory,
    SCHEME: open_objects,
}
"""Scheme of a URL -> what opens a target, and makes it where the second argument is True. "": paths."""


def open_target(where: str | Path, *, make: bool = False) -> AbstractContextManager[Target]:
    """Open the target at a path or URL; `make`: create it and its parents if absent.

    Raises: TargetError when it cannot be opened or made, or must not be used."""
    return TARGETS[_scheme(str(where))](where, make)


def _scheme(where: str) -> str:
    scheme, found, _ = where.partition("://")
    return scheme if found and scheme in TARGETS else ""


def target_named(where: str | os.PathLike[str]) -> str | Path:
    """A target as the user gives it: a path, or the text of a URL, which a path would change."""
    text = os.fspath(where)
    return text if _scheme(text) else Path(text)


def check_there(where: str | Path) -> None:
    """Raises: TargetError for a directory that does not exist, such as a mount that is not there."""
    with open_target(where) as target:
        if isinstance(target.where, Path) and not target.exists:
            raise absent(target)


def place_below(where: str | Path, name: str) -> str | Path:
    """The target in the folder, or below the prefix, `name` of a target. Raises: UsageError for a URL that is none."""
    return parse_object_url(where).below(name).url if isinstance(where, str) else where / name


def same_place(where: str | Path) -> str | Path:
    """The path or URL of a target, equal for all names of it. Raises: TargetError."""
    with open_target(where) as target:
        return target.where


def directory_named(where: str | os.PathLike[str], what: str) -> Path:
    """A target that must be a directory. `what`: "`capacity`", for the message. Raises: UsageError for a URL."""
    named = target_named(where)
    if isinstance(named, str):
        raise UsageError(f"{what} works on directories, not on {named.partition('?')[0]}: give a directory")
    return named


@contextmanager
def locked_target(where: str | Path) -> Iterator[None]:
    """Hold the lock of a target, as `Target.locked`. A target that does not exist needs no lock."""
    with open_target(where) as target, target.locked():
        yield
