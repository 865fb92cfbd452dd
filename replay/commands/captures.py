"""Opens a capture, a Darshan log or a folder with the logs of one job, and chooses parts of a capture.

Logs are merged into a temporary capture without a profile, which is removed after its last use.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dxt_replay.replay.commands import session
from dxt_replay.replay.commands.face import PART_HELP, Argument, Option, PathLike, PathMaps
from dxt_replay.traces.errors import CaptureError, DxtReplayError, TargetError

if TYPE_CHECKING:
    from dxt_replay.replay.compare.noise import NoiseFloor
    from dxt_replay.replay.ranks.mpi import Communicator
    from dxt_replay.replay.target.placement import PathMap
    from dxt_replay.traces.part import Part
    from dxt_replay.traces.store.reader import Capture

    CaptureOrPath = Capture | PathLike
    """An opened capture, or the path of a capture, a log or a folder of logs: what every function takes."""
    Parts = Part | str | Sequence[str]
    """A part of a capture: `"steps=10-19,path=*.h5"`, several of these, or a `traces.part.Part`."""
else:
    CaptureOrPath, Parts = PathLike, Sequence[str]  # their homes import what reads captures, which --help need not

Source = Annotated[CaptureOrPath, Argument("CAPTURE")]
PartOption = Annotated[Parts, Option(PART_HELP, "KEY=VALUE,...", flags="--part")]

RunPair = tuple[CaptureOrPath, CaptureOrPath]
"""Two runs of one job."""

DifferentRuns = Annotated[bool, Option("Not source and replay: figures without a verdict.")]
Floor = Annotated[
    Sequence[RunPair],
    Option(
        "Two runs of the same application, or two replays: no limit is stricter than their difference. Repeatable.",
        "A B",
        pair=True,
    ),
]

LOG_SUFFIX = ".darshan"

_FROM_LOGS: weakref.WeakSet[Capture] = weakref.WeakSet()


def part_named(chosen: Parts) -> Part:
    """The part that somebody named. Raises: UsageError."""
    from dxt_replay.traces.part import Part

    return chosen if isinstance(chosen, Part) else Part.named([chosen] if isinstance(chosen, str) else chosen)


def path_maps(maps: PathMaps | None) -> tuple[PathMap, ...]:
    """The rules of `maps`. Raises: UsageError for a prefix that is not an absolute path."""
    if not maps:
        return ()
    from dxt_replay.replay.target.placement import parse_map

    if isinstance(maps, Mapping):
        maps = [f"{prefix}={os.fspath(directory)}" for prefix, directory in maps.items()]
    return tuple(parse_map(text) for text in maps)


def several(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    """One path or many, as a list."""
    return [Path(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]


def open_capture(path: str | os.PathLike[str]) -> Capture:
    """Open a capture, or merge a Darshan log (or a folder or archive of the logs of one job) into a temporary one.

    Reads the files table and the footers; operations are read only when used.

        capture = dxt_replay.open_capture("run.capture")

    Raises: CaptureError for a path that does not hold a capture; LogError for a log that cannot be read.
    """
    where = Path(path)
    if not is_log(where):
        return _open_stored(where)
    with _merged(where, None, None) as (capture, keep):
        keep()
        weakref.finalize(capture, _take_away, capture.path.parent)
    return capture


def part(
    capture: CaptureOrPath,
    *,
    ranks: str | None = None,
    begin: str | None = None,
    until: str | None = None,
    steps: str | None = None,
    paths: Sequence[str] = (),
    exclude: Sequence[str] = (),
    operations: Sequence[str] = (),
    interfaces: Sequence[str] = (),
) -> Capture:
    """The part of a capture that all of the conditions leave: a capture itself, which every function takes.

        first = dxt_replay.part(capture, ranks="0-15,20", until="2s", paths=["*.tfrecord"])

    begin, until: times of the capture, such as 10, 10s or 500ms. steps: "10-19". paths, exclude: shell patterns, in
    which * matches / too. operations: read, write, open ... interfaces: POSIX, STDIO, MPIIO, HDF5.
    Raises: UsageError for ranks or steps that the capture does not have, or when nothing is left.
    """
    from dxt_replay.traces.part import Part
    from dxt_replay.traces.store.part_capture import part_of

    conditions = Part.parse(
        ranks=ranks, begin=begin, until=until, steps=steps,
        paths=paths, exclude=exclude, operations=operations, interfaces=interfaces,
    )  # fmt: skip
    return part_of(held(capture), conditions)


def held(capture: CaptureOrPath) -> Capture:
    """Open the capture until the result is deleted. Raises: as `open_capture`."""
    from dxt_replay.traces.store.reader import Capture

    return capture if isinstance(capture, Capture) else open_capture(capture)


def is_log(path: Path) -> bool:
    """Whether `path` has the suffix of a Darshan log, or is a folder of logs that is not a capture."""
    if path.suffix == LOG_SUFFIX:
        return True
    if not path.is_dir() or (path / "capture.json").exists() or (path / "ops").exists():
        return False
    return any(name.endswith(LOG_SUFFIX) for _, _, names in os.walk(path) for name in names)


def _open_stored(path: Path) -> Capture:
    """Open a capture. Raises: CaptureError, which names the kind of another file or folder."""
    from dxt_replay.traces.store import reader

    try:
        return reader.open_capture(path)
    except CaptureError as error:
        from dxt_replay.profiler_merge.given_files import foreign

        missing = not (path / "capture.json").exists()
        raise CaptureError((foreign(path, "capture") if missing else None) or str(error)) from error


def is_from_logs(capture: CaptureOrPath) -> bool:
    """Whether the capture, or the one that it is a part of, comes from logs without a profile, merged or not yet."""
    return is_log(Path(capture)) if isinstance(capture, (str, os.PathLike)) else capture.whole in _FROM_LOGS


def named(capture: CaptureOrPath) -> Path:
    """The path that the user gave: for a temporary capture, that of the logs."""
    return Path(capture) if isinstance(capture, (str, os.PathLike)) else capture.named


@contextmanager
def opened(
    capture: CaptureOrPath, comm: Communicator | None = None, output: Path | None = None, *, part: Parts = ()
) -> Iterator[Capture]:
    """Open a capture or a path, or the part of it. A temporary capture, merged from logs, goes when the context ends.

    `comm`: the processes that open it together. The first one merges into a directory beside `output`, because all
    nodes share that place, unlike the system's temporary directory.
    Raises: CaptureError, LogError, TargetError; KeyboardInterrupt and Terminated if a log was merged.
    """
    from dxt_replay.replay.ranks.mpi import Solo, together
    from dxt_replay.traces.store.part_capture import part_of

    processes = comm or Solo()
    chosen = together(processes, lambda: part_named(part))  # first, so that its error comes before a long merge
    if not isinstance(capture, (str, os.PathLike)):
        yield part_of(capture, chosen)
    elif is_log(path := Path(capture)):
        with _merged(path, comm, output) as (merged, _):
            yield together(processes, lambda: part_of(merged, chosen))
    else:
        yield together(processes, lambda: part_of(_open_stored(path), chosen))


@contextmanager
def _merged(log: Path, comm: Communicator | None, output: Path | None) -> Iterator[tuple[Capture, Callable[[], None]]]:
    """A temporary capture, and a function that keeps it when the context ends well.

    The first process removes the directory, and so does any other that is about to end all.
    """
    from dxt_replay.replay.ranks.mpi import Solo, first_does, is_known_to_all, together
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.traces.store import reader

    comm = comm or Solo()
    kept: list[bool] = []
    with unwind_on_signals():
        folder: Path = comm.broadcast(_temporary_name(output))
        path = folder / f"{log.stem}.capture"
        removes = comm.rank == 0
        try:
            comm.barrier()  # Before the directory exists, so that every process can remove it.
            first_does(comm, lambda: _merge(log, path))
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


def _merge(log: Path, capture: Path) -> None:
    """Merge into a new directory. Raises: LogError, TargetError."""
    from dxt_replay.profiler_merge.darshan.jobs import find_logs
    from dxt_replay.profiler_merge.merge import merge

    try:
        capture.parent.mkdir(mode=0o700)
    except OSError as error:
        place = capture.parent.parent
        raise TargetError(f"cannot make a directory in {place} to merge the log into: {error.strerror}") from error
    with session.status(f"merging {log.name}"):
        merge(find_logs(log), [], capture)


def _take_away(folder: Path) -> None:
    """Remove a directory into which another process may write. Renaming it first stops further writes."""
    with suppress(OSError):
        shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.gone")), ignore_errors=True)


def floor_of(stack: ExitStack, pairs: Sequence[RunPair], *compared: Capture) -> NoiseFloor:
    """The noise floor. `compared`: the source and the replay that it is for, or nothing."""
    from dxt_replay.replay.compare.comparison import noise_floor as of_pairs
    from dxt_replay.replay.compare.noise import check_paces

    runs = [(stack.enter_context(opened(first)), stack.enter_context(opened(second))) for first, second in pairs]
    for replay in compared[1:]:
        check_paces(runs, replay)
    return of_pairs(runs, *compared[:1])
