"""Options and arguments that several commands share, and the opening of what they name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from replay.ranks.comm import Communicator
    from traces.part import Part
    from traces.store.reader import Capture

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
    """Whether `path` names a Darshan log, or a folder of logs."""
    from replay.interface import captures

    return captures.is_log(path)


different_runs_option = click.option(
    "--different-runs",
    is_flag=True,
    help="Compare two captures of which neither replays the other: figures side by side, and no verdict.",
)


@contextmanager
def opened(path: Path, comm: Communicator | None = None, output: Path | None = None) -> Iterator[Capture]:
    """As `replay.interface.captures.opened`, with progress on a terminal."""
    from replay.commands.progress import status
    from replay.interface import captures

    with captures.opened(path, comm, output, announce=status) as source:
        yield source
