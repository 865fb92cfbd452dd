"""What the names of Kineto's files say: host and process, and which files are cycles of one profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_FILE = re.compile(r"(?P<host>.+)_(?P<pid>\d+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?")


def host_and_pid(path: Path) -> tuple[str, int] | None:
    """What `torch.profiler.tensorboard_trace_handler` put into the name of the file; None for any other name.

    A `worker_name` of the user's own may look like it: only a number that is a process of the file's events is a pid.
    """
    found = _FILE.fullmatch(path.name)
    return (found["host"], int(found["pid"])) if found else None


def cycles_of(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The files of each process, in the order of their names, which hold the time of export."""
    groups: dict[object, list[Path]] = {}
    for path in paths:
        named = host_and_pid(path)
        groups.setdefault((path.parent, named) if named else path, []).append(path)
    return [tuple(sorted(group)) for group in groups.values()]
