"""What a program asks of the system, as Python's audit events (PEP 578): a test acts amid it, and patches nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

_hooked: list[bool] = []
_watchers: list[Callable[[str, tuple[Any, ...]], None]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watcher in tuple(_watchers):
        watcher(event, arguments)


@contextmanager
def before(event: str, pattern: str, act: Callable[[Path], object]) -> Iterator[None]:
    """Call `act` with each path that matches `pattern` just before `event`, such as "os.mkdir" or "open", happens to it
    ("os.rename": to the new name). What `act` raises, the program meets there."""
    place = 1 if event == "os.rename" else 0

    def watcher(happens: str, arguments: tuple[Any, ...]) -> None:
        if happens == event and isinstance(arguments[place], (str, bytes, os.PathLike)):
            path = os.fsdecode(arguments[place])
            if fnmatch(path, pattern):
                act(Path(path))

    if not _hooked:
        sys.addaudithook(_hook)  # which nothing can take away again
        _hooked.append(True)
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def captures_made() -> Iterator[list[Path]]:
    """The unfinished captures that the program begins."""
    made: list[Path] = []
    with before("os.mkdir", "*.capture.*.dxt-replay", made.append):
        yield made
