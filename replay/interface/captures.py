"""Opens a capture, a Darshan log or a folder with the logs of one job, and chooses parts of a capture.

Logs are merged into a temporary capture without a profile, which is removed after its last use.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.options.looking import FilterChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import CaptureError, DxtReplayError, TargetError
from dxt_replay.traces.part import Part
from dxt_replay.traces.store import reader
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.ranks.mpi import Communicator

Announce = Callable[[str], AbstractContextManager[None]]
"""Called with what is being done ("merging job.darshan"); the context lasts as long as the work."""


def _silently(what: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPart:
    """A capture, log or folder of logs on a command line, not opened yet, and the chosen part of it.

    part: parses the options that choose the part; may raise UsageError. announce: called before logs are merged.
    others: the other paths of a command that takes several.
    """

    path: Path
    others: tuple[Path, ...] = ()
    part: Callable[[], Part] = Part
    announce: Announce = _silently


CaptureOrPath = Capture | NamedPart | str | os.PathLike[str]
"""An opened capture, or the path of a capture, a log, or a folder or archive of logs: what every function takes."""

LOG_SUFFIX = ".darshan"

_FROM_LOGS: weakref.WeakSet[Capture] = weakref.WeakSet()


def open_capture(path: str | os.PathLike[str]) -> Capture:
    """Open a capture, or merge a Darshan log (or a folder or archive of the logs of one job) into a temporary one.

    Reads the files table and the footers; operations are read only when used.

        capture = dxt_replay.open_capture("run.capture")

    Raises: CaptureError for a path that does not hold a capture; LogError for a log that cannot be read.
    """
    where = Path(path)
    if not is_log(where):
        return _open_stored(where)
    with _merged(where, None, None, _silently) as (capture, keep):
        keep()
        weakref.finalize(capture, _take_away, capture.path.parent)
    return capture


@takes(FilterChoices)
def part(capture: CaptureOrPath, **choices: Unpack[FilterChoices]) -> Capture:
    """The part of a capture that all of the choices leave.

    A part is a capture: every function of the interface takes it.

        first = dxt_replay.part(capture, ranks="0", until="2s", paths=["*.tfrecord"])

    Raises: UsageError for ranks or steps that the capture does not have, or when nothing is left.
    """
    return part_of(held(capture), Part.parse(**filled(FilterChoices, choices)))


def held(capture: CaptureOrPath) -> Capture:
    """Open the capture until the result is deleted. Raises: as `open_capture`."""
    if isinstance(capture, Capture):
        return capture
    if isinstance(capture, NamedPart):
        return part_of(open_capture(capture.path), capture.part())
    return open_capture(capture)


def is_log(path: Path) -> bool:
    """Whether `path` has the suffix of a Darshan log, or is a folder of logs that is not a capture."""
    if path.suffix == LOG_SUFFIX:
        return True
    if not path.is_dir() or (path / "capture.json").exists() or (path / "ops").exists():
        return False
    return any(name.endswith(LOG_SUFFIX) for _, _, names in os.walk(path) for name in names)


def _open_stored(path: Path) -> Capture:
    """Open a capture. Raises: CaptureError, which names the kind of another file or folder."""
    try:
        return reader.open_capture(path)
    except CaptureError as error:
        from dxt_replay.profiler_merge.given_files import foreign

        missing = not (path / "capture.json").exists()
        raise CaptureError((foreign(path, "capture") if missing else None) or str(error)) from error


def is_from_logs(capture: CaptureOrPath) -> bool:
    """Whether the capture, or the one that it is a part of, comes from logs without a profile, merged or not yet."""
    return capture.whole in _FROM_LOGS if isinstance(capture, Capture) else is_log(named(capture))


def named(capture: CaptureOrPath) -> Path:
    """The path that the user gave: for a temporary capture, that of the logs."""
    if isinstance(capture, Capture):
        return capture.named
    return capture.path if isinstance(capture, NamedPart) else Path(capture)


@contextmanager
def opened(capture: CaptureOrPath, comm: Communicator | None = None, output: Path | None = None) -> Iterator[Capture]:
    """Open a capture or a path. A temporary capture, merged from logs, is removed when the context ends.

    `comm`: the processes that open it together. The first one merges into a directory beside `output`, because all
    nodes share that place, unlike the system's temporary directory.
    Raises: CaptureError, LogError, TargetError; KeyboardInterrupt and Terminated if a log was merged.
    """
    from dxt_replay.replay.ranks.mpi import Solo, together

    if isinstance(capture, Capture):
        yield capture
        return
    given = capture if isinstance(capture, NamedPart) else NamedPart(path=Path(capture))
    processes = comm or Solo()
    part = together(processes, given.part)  # parse the part first, so that its error comes before a long merge
    if is_log(given.path):
        with _merged(given.path, comm, output, given.announce) as (merged, _):
            yield together(processes, lambda: part_of(merged, part))
    else:
        yield together(processes, lambda: part_of(_open_stored(given.path), part))


@contextmanager
def _merged(
    log: Path, comm: Communicator | None, output: Path | None, announce: Announce
) -> Iterator[tuple[Capture, Callable[[], None]]]:
    """A temporary capture, and a function that keeps it when the context ends well.

    The first process removes the directory, and so does any other that is about to end all.
    """
    from dxt_replay.replay.ranks.mpi import Solo, first_does, is_known_to_all, together
    from dxt_replay.replay.ranks.stopping import unwind_on_signals

    comm = comm or Solo()
    kept: list[bool] = []
    with unwind_on_signals():
        folder: Path = comm.broadcast(_temporary_name(output))
        path = folder / f"{log.stem}.capture"
        removes = comm.rank == 0
        try:
            comm.barrier()  # Before the directory exists, so that every process can remove it.
            first_does(comm, lambda: _merge(log, path, announce))
            capture = together(comm, lambda: reader.open_capture(path, named=log))
            _FROM_LOGS.add(capture)
            yield capture, lambda: kept.append(True)
            removes = removes and not kept
        except BaseException as error:
            removes = removes or not (isinstance(error, DxtReplayError) and is_known_to_all(error))
            raise
        finally:
            if removes:
                _take_away(folder)


def _temporary_name(output: Path | None) -> Path:
    """An unused name for a directory: hidden beside `output`, or in the system's temporary directory."""
    token = os.urandom(4).hex()
    if output is None:
        return Path(tempfile.gettempdir()) / f"dxt-replay-{token}"
    parent = output.absolute().parent
    while not os.path.exists(parent):  # like Path.exists, but False if this user may not look
        parent = parent.parent
    return parent / f".{output.name}.{token}"


def _merge(log: Path, capture: Path, announce: Announce) -> None:
    """Merge into a new directory. Raises: LogError, TargetError."""
    from dxt_replay.profiler_merge.darshan.jobs import find_logs
    from dxt_replay.profiler_merge.merge import merge

    try:
        capture.parent.mkdir(mode=0o700)
    except OSError as error:
        place = capture.parent.parent
        raise TargetError(f"cannot make a directory in {place} to merge the log into: {error.strerror}") from error
    with announce(f"merging {log.name}"):
        merge(find_logs(log), [], capture)


def _take_away(folder: Path) -> None:
    """Remove a directory into which another process may write. Renaming it first stops further writes."""
    with suppress(OSError):
        shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.gone")), ignore_errors=True)
