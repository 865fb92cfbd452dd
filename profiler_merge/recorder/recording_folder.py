"""The folder of a recording: logs and profiles of one run of a job and of no other, and the script that started it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from traces.errors import TargetError
from traces.output import DirectoryKind, new_directory

MARK = "recording.txt"
"""Names the command that was recorded. A folder without it is not a recording, and is never replaced."""

LOGS, PROFILES, CHECK, KILLED = "logs", "profile", "check", "killed"
SCRIPT, CONFIG, PYTHON = "job.sh", "darshan.conf", "python"
_NAMES = {MARK, LOGS, PROFILES, CHECK, KILLED, SCRIPT, CONFIG, PYTHON}


def _objection(path: Path) -> str | None:
    names = set(os.listdir(path))
    if MARK not in names or not names <= _NAMES:
        return "is not a recording that `dxt-replay record` wrote"
    return None


RECORDING = DirectoryKind(name="a recording", objection=_objection)


def make_folder(folder: Path, command: Sequence[str], *, force: bool) -> None:
    """Make the folder of a recording, with empty folders for logs and profiles.

    Raises: TargetError when something else is there, or a recording is and `force` is not given.
    """
    with new_directory(folder, RECORDING, force=force) as working:
        (working / MARK).write_text("\n".join(command) + "\n", encoding="utf-8", errors="surrogateescape")
        for name in (LOGS, PROFILES):
            (working / name).mkdir()


def write_script(path: Path, text: str) -> Path:
    """Write a script that can be run. Raises: TargetError."""
    try:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror}; choose another --logs") from error
    return path


def find_below(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Files below a folder whose names match one of the globs, sorted."""
    return sorted({path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()})


def collect_killed(folder: Path, job: int, temporary: Path) -> int:
    """Move what Darshan's killed processes of this job left in the temporary folder into `killed`; how many."""
    found = sorted(temporary.glob(f"*_id{job}_mmap-log-*.darshan"))
    for path in found:
        (folder / KILLED).mkdir(exist_ok=True)
        shutil.move(path, folder / KILLED / path.name)
    return len(found)


def remove_empty(folder: Path) -> None:
    """Remove the empty folders below a folder: those for days on which no process started."""
    for parent, _, _ in os.walk(folder, topdown=False):
        if parent != str(folder) and not os.listdir(parent):
            os.rmdir(parent)
