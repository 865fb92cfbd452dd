"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.session import set_json

if TYPE_CHECKING:
    from dxt_replay.replay.interface.captures import NamedPart
    from dxt_replay.traces.part import Part
    from dxt_replay.traces.workers.workers import Workers

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What makes an option of a command."""

PATH = click.Path(path_type=Path)

force_option = click.option("--force", is_flag=True, help="Replace an output that an earlier command wrote.")


def json_output(text: str) -> Decorator:
    """The option --json, which sets `session.current().as_json`; `text`: its help."""
    return click.option(
        "--json", "as_json", is_flag=True, expose_value=False, is_eager=True, callback=set_json, help=text
    )


json_option = json_output("Print the result as JSON.")


def output_option(metavar: str, text: str) -> Decorator:
    """The required option -o: the output of the command."""
    return click.option("-o", "--output", required=True, type=PATH, metavar=metavar, help=text)


exclude_option = click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Leave out files whose path matches (* matches / too); repeatable.",
)


def maps_option(text: str) -> Decorator:
    """The option --map; `text`: its help."""
    return click.option("--map", "maps", multiple=True, metavar="PREFIX=DIR", help=text)


def part_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options --ranks, --from, --until and --steps: the command gets its `capture` as a `NamedPart`."""
    return _with_options(_with_part(command, _PART_WORDS), *_PART_OPTIONS)


def time_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options --from, --until and --steps: as `part_options`, without --ranks."""
    words = {name: keyword for name, keyword in _PART_WORDS.items() if name != "ranks"}
    return _with_options(_with_part(command, words), *_PART_OPTIONS[:-1])


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `part_options`, and --path, --exclude, --op and --api; all of them choose the part."""
    words = {**_PART_WORDS, "path": "paths", "exclude": "exclude", "op": "operations", "api": "interfaces"}
    return _with_options(_with_part(command, words), *_PART_OPTIONS, *_FILTER_OPTIONS)


_PART_WORDS = {"ranks": "ranks", "begin": "begin", "until": "until", "steps": "steps"}
"""Parameter of a command -> keyword of `Part.parse`."""

_PART_OPTIONS = (
    click.option("--steps", metavar="A-B", help="Only training steps A to B, on each rank at its own times."),
    click.option("--until", metavar="TIME", help="Only operations that start before this time of the capture."),
    click.option(
        "--from",
        "begin",
        metavar="TIME",
        help="Only operations that start at this time of the capture or later: 10, 10s, 500ms.",
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
    """Replace a command's path (or paths) and the parameters `words` by `capture`, a `NamedPart`."""

    @functools.wraps(command)
    def gathering(capture: Path | tuple[Path, ...], **given: Any) -> Any:
        said = {keyword: given.pop(parameter) for parameter, keyword in words.items()}
        paths = (capture,) if isinstance(capture, Path) else capture
        return command(capture=_named_part(paths, said), **given)

    return gathering


def _named_part(paths: tuple[Path, ...], said: Mapping[str, Any]) -> NamedPart:
    """`said`: keywords of `Part.parse`, which is called when the capture is opened."""
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.interface.captures import NamedPart

    def part() -> Part:
        from dxt_replay.traces.part import Part

        return Part.parse(**said)

    return NamedPart(path=paths[0], others=paths[1:], part=part, announce=status)


def worker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --workers and --dask: the command gets `workers`, which stop when it ends.

    Under mpiexec only the first process runs the command; the others work for it.
    """

    @functools.wraps(command)
    def sharing(workers: int | None, dask: str | None, **given: Any) -> Any:
        from dxt_replay.replay.commands.progress import piece_progress

        with _chosen_workers(workers, dask) as chosen:
            if chosen is None:
                return None
            with piece_progress() as chosen.on_progress:
                return command(workers=chosen, **given)

    return _with_options(sharing, *_WORKER_OPTIONS)


_WORKER_OPTIONS = (
    click.option("--dask", metavar="ADDRESS", help="Share the work among the workers of this Dask scheduler."),
    click.option(
        "--workers",
        type=int,
        metavar="N",
        help="Processes that share the work.  [default: one for each processor if the work is large]",
    ),
)


@contextmanager
def _chosen_workers(count: int | None, dask: str | None) -> Iterator[Workers | None]:
    if dask is None:
        from dxt_replay.replay.ranks.rank_workers import rank_workers

        with rank_workers(count) as workers:
            yield workers
        return
    if count is not None:
        raise click.UsageError("--workers and --dask exclude each other: the cluster has its own number of workers")
    from dxt_replay.traces.workers.dask_cluster import dask_workers

    with dask_workers(dask) as cluster:
        yield cluster


def capture_argument(name: str) -> Decorator:
    """An argument that names a capture or a Darshan log."""
    return click.argument(name, type=PATH)


floor_option = click.option(
    "--floor",
    nargs=2,
    multiple=True,
    type=PATH,
    metavar="A B",
    help="Two runs of the same application, or two replays. Their difference is noise, and no limit is stricter than "
    "it. Repeatable; the worst pair counts.",
)

different_runs_option = click.option(
    "--different-runs",
    is_flag=True,
    help="Compare two captures that are not source and replay: figures side by side, without a verdict.",
)
