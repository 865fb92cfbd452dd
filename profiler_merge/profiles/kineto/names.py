"""Facts in the names of Kineto's files: host and process, and the files that are cycles of one profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_FILE = re.compile(r"(?P<host>.+)_(?P<pid>\d+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?")


def host_and_pid(path: Path) -> tuple[str, int] | None:
    """Host and pid that `torch.profiler.tensorboard_trace_handler` put into the file name; None for any other name.

    A user's own `worker_name` may look the same, so only a process id of the file's events counts as a pid.
    """
    found = _FILE.fullmatch(path.name)
    return (found["host"], int(found["pid"])) if found else None


def cycles_of(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The files of each process, sorted by name, which contains the time of export."""
    groups: dict[object, list[Path]] = {}
    for path in paths:
        named = host_and_pid(path)
        groups.setdefault((path.parent, named) if named else path, []).append(path)
    return [tuple(sorted(group)) for group in groups.values()]
