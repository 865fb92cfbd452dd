"""Options and arguments that several commands share, and the opening of what they name."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traces.errors import CaptureError, DxtReplayError, TargetError

if TYPE_CHECKING:
    from replay.ranks.comm import Communicator
    from traces.part import Part
    from traces.store.reader import Capture

LOG_SUFFIX = ".darshan"

force_option = click.option("--force", is_flag=True, help="Replace an output that an earlier command wrote.")

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")

exclude_option = click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Leave out files whose path matches (* matches / too); repeatable.",
)


def part_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options --ranks, --from, --until and --steps. The command gets them as `chosen_part`, which parses them."""
    return _with_options(_with_part(command, _PART_WORDS), *_PART_OPTIONS)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `part_options`, and --path, --exclude, --op and --api; all of them make `chosen_part`."""
    words = {**_PART_WORDS, "path": "paths", "exclude": "exclude", "op": "operations", "api": "interfaces"}
    return _with_options(_with_part(command, words), *_PART_OPTIONS, *_FILTER_OPTIONS)


_PART_WORDS = {"ranks": "ranks", "begin": "begin", "until": "until", "steps": "steps"}
"""Parameter of a command -> keyword of `Part.parse`."""

_PART_OPTIONS = (
    click.option("--steps", metavar="A-B", help="Only training steps A to B, on each rank at its own times."),
    click.option("--until", metavar="TIME", help="Only what starts before this time of the capture."),
    click.option(
        "--from", "begin", metavar="TIME", help="Only what starts from this time of the capture on: 10, 10s, 500ms."
    ),
    click.option("--ranks", metavar="LIST", help="Only these recorded ranks, such as 0-15,20."),
)

_FILTER_OPTIONS = (
    click.option("--api", multiple=True, metavar="NAME", help="Only POSIX, STDIO, MPIIO or HDF5; repeatable."),
    click.option("--op", multiple=True, metavar="NAME", help="Only read, write, open, close ...; repeatable."),
    exclude_option,
    click.option(
        "--path", multiple=True, metavar="GLOB", help="Only files whose path matches one of these; repeatable."
    ),
)


def _with_options(command: Callable[..., Any], *options: Callable[..., Any]) -> Callable[..., Any]:
    for option in options:
        command = option(command)
    return command


def _with_part(command: Callable[..., Any], words: Mapping[str, str]) -> Callable[..., Any]:
    """The command with `chosen_part` in place of the parameters `words`."""

    @functools.wraps(command)
    def gathering(**given: Any) -> Any:
        said = {keyword: given.pop(parameter) for parameter, keyword in words.items()}

        def chosen_part() -> Part:
            from traces.part import Part

            return Part.parse(**said)

        return command(chosen_part=chosen_part, **given)

    return gathering


def capture_argument(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An argument that names a capture or a Darshan log."""
    return click.argument(name, type=click.Path(path_type=Path))


def is_log(path: Path) -> bool:
    """Whether `path` names a Darshan log, by its suffix."""
    return path.suffix == LOG_SUFFIX


@contextmanager
def opened(path: Path, comm: Communicator | None = None, output: Path | None = None) -> Iterator[Capture]:
    """The capture at `path`; a Darshan log is merged into a temporary one, which goes when the context ends.

    `comm`: the processes that open it together, one without. The first merges, into a directory beside `output`: where
    a replay is written is a place that all nodes share, unlike the system's temporary directory.
    Raises: CaptureError, LogError, TargetError; KeyboardInterrupt and Terminated where a log was merged.
    """
    from replay.ranks.comm import Solo, together

    comm = comm or Solo()
    if is_log(path):
        with _merged(path, comm, output) as source:
            yield source
    else:
        yield together(comm, lambda: _open_capture(path))


def _open_capture(path: Path) -> Capture:
    """Raises: CaptureError, which names a file or folder of another kind that was given."""
    from profiler_merge.recognise import foreign
    from traces.store.reader import open_capture

    try:
        return open_capture(path)
    except CaptureError as error:
        missing = not (path / "capture.json").exists()
        raise CaptureError((foreign(path, "capture") if missing else None) or str(error)) from error


different_runs_option = click.option(
    "--different-runs",
    is_flag=True,
    help="Compare two captures of which neither replays the other: figures side by side, and no verdict.",
)


@contextmanager
def _merged(log: Path, comm: Communicator, output: Path | None) -> Iterator[Capture]:
    """The first process removes the directory, and so does any other that is about to end all."""
    from replay.ranks.comm import first_does, is_known_to_all, together
    from replay.ranks.stopping import unwind_on_signals
    from traces.store.reader import open_capture

    with unwind_on_signals():
        folder: Path = comm.broadcast(_temporary_name(output))
        capture = folder / f"{log.stem}.capture"
        removes = comm.rank == 0
        try:
            comm.barrier()  # before there is a directory, all know what to remove
            first_does(comm, lambda: _merge(log, capture))
            yield together(comm, lambda: open_capture(capture))
        except BaseException as error:
            removes = removes or not (isinstance(error, DxtReplayError) and is_known_to_all(error))
            if isinstance(error, DxtReplayError):
                error.args = (str(error).replace(str(capture), str(log)),)
            raise
        finally:
            if removes:
                _take_away(folder)


def _temporary_name(output: Path | None) -> Path:
    """Of a directory that there is not: hidden beside `output`, or in the system's temporary directory."""
    token = secrets.token_hex(4)
    if output is None:
        return Path(tempfile.gettempdir()) / f"dxt-replay-{token}"
    parent = output.absolute().parent
    while not os.path.exists(parent):  # as Path.exists, but False where this user may not look
        parent = parent.parent
    return parent / f".{output.name}.{token}"


def _merge(log: Path, capture: Path) -> None:
    """Merge into a directory that is made for it. Raises: LogError, TargetError."""
    from profiler_merge.merge import merge
    from replay.commands.progress import status

    try:
        capture.parent.mkdir(mode=0o700)
    except OSError as error:
        place = capture.parent.parent
        raise TargetError(f"cannot make a directory in {place} to merge the log into: {error.strerror}") from error
    with status(f"merging {log.name}"):
        merge([log], [], capture)


def _take_away(folder: Path) -> None:
    """Remove a directory that another process may be writing into: under its name it finds nothing any more."""
    with suppress(OSError):
        shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.gone")), ignore_errors=True)
