"""Options and arguments that several commands share, and the opening of what they name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from traces.store import Capture

LOG_SUFFIX = ".darshan"

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")

exclude_option = click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Leave out files whose path matches (* matches / too); repeatable.",
)


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options `ranks`, `begin`, `until` and `steps`: what `Selection.parse` takes."""
    for option in (
        click.option("--steps", metavar="A-B", help="Only training steps A to B, on each rank at its own times."),
        click.option("--until", metavar="TIME", help="Only what starts before this time of the capture."),
        click.option(
            "--from", "begin", metavar="TIME", help="Only what starts from this time of the capture on: 10, 10s, 500ms."
        ),
        click.option("--ranks", metavar="LIST", help="Only these recorded ranks, such as 0-15,20."),
    ):
        command = option(command)
    return command


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options `path`, `exclude`, `op`, `api` and those of `selection_options`: what an analysis looks at."""
    command = selection_options(command)
    for option in (
        click.option("--api", multiple=True, metavar="NAME", help="Only POSIX, STDIO, MPIIO or HDF5; repeatable."),
        click.option("--op", multiple=True, metavar="NAME", help="Only read, write, open, close ...; repeatable."),
        exclude_option,
        click.option(
            "--path", multiple=True, metavar="GLOB", help="Only files whose path matches one of these; repeatable."
        ),
    ):
        command = option(command)
    return command


def capture_argument(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An argument that names a capture or a Darshan log."""
    return click.argument(name, type=click.Path(path_type=Path))


@contextmanager
def opened(path: Path) -> Iterator[Capture]:
    """The capture at `path`; a Darshan log is merged into a temporary one, which goes when the context ends.

    Raises: CaptureError, LogError, TargetError.
    """
    from traces.store import open_capture

    if path.suffix != LOG_SUFFIX:
        yield open_capture(path)
        return
    from profiler_merge.merge import merge
    from replay.commands.progress import status

    with tempfile.TemporaryDirectory(prefix="dxt-replay-") as folder:
        capture = Path(folder) / f"{path.stem}.capture"
        with status(f"merging {path.name}"):
            merge([path], [], capture)
        yield open_capture(capture)
