"""The jobs in an archive: captures, and Darshan logs, of which several may be of one job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.profiler_merge.darshan.job_logs import LOG_SUFFIXES, logs_by_job
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.traces.errors import LogError

CAPTURE_SUFFIX = ".capture"

OPERATIONS_A_LOG = 400_000
"""What a small log or capture costs, in operations read from a capture (`Workers.results`)."""

_RANK_FOLDER = re.compile(r"rank\d{1,7}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """One job. path: its capture, or the first of its logs. name: that path below the folder that was given, without
    its suffix. logs: empty for a capture."""

    name: str
    path: Path
    logs: tuple[Path, ...] = ()

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJobs:
    """The jobs, by name. unread: path -> why it cannot be read. helpers: logs of processes that only looked like a part
    of a job (`uname`, trackers), which were left out."""

    jobs: tuple[ArchiveJob, ...]
    unread: dict[Path, str]
    helpers: int

    @property
    def operations(self) -> int:
        """What all jobs cost, in operations read from a capture."""
        return OPERATIONS_A_LOG * sum(max(len(job.logs), 1) for job in self.jobs)


def archive_jobs(given: Sequence[Path], *, captures: bool) -> ArchiveJobs:
    """The jobs in the given paths: logs, captures, and folders that hold both at any depth.

    Logs of single processes are one job if they lie in one folder (or in its folders `rank<r>`) and share a job id, a
    parent or a command. A log of several ranks is a job of its own. `captures`: False skips captures.
    Raises: LogError for a path that does not exist, or a folder without any log or capture.
    """
    jobs: list[ArchiveJob] = []
    logs: dict[Path, list[tuple[Path, Path]]] = {}
    for path in dict.fromkeys(given):
        found = list(_recordings(path))
        if not any(captures or is_log for _, is_log in found):
            raise LogError(f"{path} holds no {'capture and no ' if captures else ''}{LOG_SUFFIXES[0]} log")
        root = path if path.is_dir() and not _is_capture(path) else path.parent
        for each, is_log in found:
            if is_log:
                logs.setdefault(_folder_of(each), []).append((each, root))
            elif captures:
                jobs.append(ArchiveJob(name=_name(each, root), path=each))
    unread: dict[Path, str] = {}
    helpers = 0
    for _, inside in sorted(logs.items()):
        of_root = dict(inside)
        opened = [log for path in sorted(of_root) if (log := _opened(path, unread)) is not None]
        grouped, left_out = logs_by_job(opened)
        helpers += left_out
        jobs += [
            ArchiveJob(name=_name(paths[0], of_root[paths[0]]), path=paths[0], logs=tuple(paths)) for paths in grouped
        ]
    return ArchiveJobs(jobs=tuple(sorted(jobs, key=lambda job: job.name)), unread=unread, helpers=helpers)


def _recordings(path: Path) -> Iterator[tuple[Path, bool]]:
    """(path, whether it is a log) of each capture and log. Raises: LogError for what is not there or not listed."""
    if not path.exists():
        raise LogError(f"{path} does not exist")
    if not path.is_dir():
        yield path, True
        return
    for parent, folders, names in os.walk(path, onerror=_refuse):
        if _is_capture(Path(parent)):
            folders.clear()
            yield Path(parent), False
            continue
        for name in names:
            if name.endswith(LOG_SUFFIXES):
                yield Path(parent, name), True


def _refuse(error: OSError) -> None:
    raise LogError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _is_capture(path: Path) -> bool:
    return (path / "capture.json").exists()


def _folder_of(log: Path) -> Path:
    """The folder that the logs of its job share."""
    folder = log.parent
    return folder.parent if _RANK_FOLDER.fullmatch(folder.name) else folder


def _opened(path: Path, unread: dict[Path, str]) -> DarshanLog | None:
    try:
        return open_log(path)
    except LogError as error:
        unread[path] = str(error)
        return None


def _name(path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix() if path != root else path.name
    for suffix in (*LOG_SUFFIXES, CAPTURE_SUFFIX):
        name = name.removesuffix(suffix)
    return name
