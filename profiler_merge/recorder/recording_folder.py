"""The folder of a recording: logs and profiles of one run of a job, and the script that started it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from pathlib import Path

from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.output import DirectoryKind, check_output, new_directory, refusal
from dxt_replay.traces.recorder_files import PAGE_FAULTS, RECORDING_MARK, UNSEEN
from dxt_replay.traces.text import without_secrets

LOGS, PROFILES, CHECK = "logs", "profile", "check"
KILLED = f"{LOGS}/killed"
SCRIPT, CONFIG, SMALL_CONFIG, PYTHON = "job.sh", "darshan.conf", "darshan-small.conf", "python"
_NAMES = {RECORDING_MARK, LOGS, PROFILES, CHECK, "killed", SCRIPT, CONFIG, SMALL_CONFIG, PYTHON, UNSEEN, PAGE_FAULTS}

DAYS_AHEAD = 8
"""Number of days for which dated folders are made: a process that starts later leaves no log."""


def _objection(path: Path) -> str | None:
    names = set(os.listdir(path))
    if RECORDING_MARK not in names or not names <= _NAMES:
        return "is not a recording that `dxt-replay record` wrote"
    return None


RECORDING = DirectoryKind(name="a recording", objection=_objection)


@contextmanager
def new_folder(folder: Path, command: Sequence[str], *, force: bool) -> Iterator[None]:
    """Make the folder of a recording, with empty folders for logs and profiles, and prepare the job in the context.

    If that fails the folder is removed, and an earlier recording is restored.
    Raises: TargetError when something else is there, or a recording without `force`, or when the disk refuses.
    """
    check_output(folder, force=force, kind=RECORDING)
    made = False
    with _aside(folder) as earlier:
        try:
            with new_directory(folder, RECORDING) as working:
                words = without_secrets("\n".join(command).replace(" ", "\0")).replace("\0", " ")  # each word whole
                (working / RECORDING_MARK).write_text(words + "\n", encoding="utf-8", errors="surrogateescape")
                for name in (LOGS, PROFILES):
                    (working / name).mkdir()
            made = True
            yield
        except BaseException as error:
            if made:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise refusal(error, folder) from error
            raise
    if earlier is not None:
        shutil.rmtree(earlier, ignore_errors=True)


@contextmanager
def _aside(folder: Path) -> Iterator[Path | None]:
    """Rename an earlier recording, yield its temporary name, and rename it back if the context fails."""
    earlier = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.replaced")
    try:
        os.rename(folder, earlier)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise refusal(error, folder) from error
    try:
        objection = _objection(earlier)
        if objection is not None:  # it appeared after the check
            raise TargetError(f"{folder} exists and {objection}: choose another name")
        yield earlier
    except BaseException:
        with suppress(OSError):  # something else has the name now, so the earlier recording stays beside it
            os.rename(earlier, folder)
        raise


def write_script(path: Path, text: str) -> Path:
    """Write an executable script. Raises: OSError."""
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    path.chmod(0o755)
    return path


def find_below(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Files below a folder whose names match one of the globs, sorted."""
    return sorted({path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()})


def make_dated(folder: Path) -> None:
    """Make the folders year/month/day that Darshan needs. Raises: OSError."""
    for day in (date.today() + timedelta(days=ahead) for ahead in range(DAYS_AHEAD)):
        (folder / f"{day.year}/{day.month}/{day.day}").mkdir(parents=True, exist_ok=True)


def collect_killed(folder: Path, job: int, temporary: Path) -> list[str]:
    """Move the data of this job's killed processes from the temporary folder to the logs; returns their programs."""
    found = sorted(temporary.glob(f"*_id{job}_mmap-log-*.darshan"))
    for path in found:
        if not path.stat().st_size:  # ended before Darshan noted anything: it has no log, as `began` then shows
            path.unlink()
            continue
        (folder / KILLED).mkdir(exist_ok=True)
        shutil.move(path, folder / KILLED / path.name)
    return [path.name.rpartition(f"_id{job}_")[0].partition("_")[2] for path in found]


def remove_empty(folder: Path) -> None:
    """Remove empty folders below a folder: those of days on which no process started."""
    for parent, _, _ in os.walk(folder, topdown=False):
        if parent != str(folder) and not os.listdir(parent):
            os.rmdir(parent)
