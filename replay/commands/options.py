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
