"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import Decorator, family_options
from dxt_replay.replay.commands.session import note, set_details, set_json
from dxt_replay.replay.options.looking import FilterChoices, PartChoices

if TYPE_CHECKING:
    from dxt_replay.replay.interface.captures import NamedPart
    from dxt_replay.traces.part import Part
    from dxt_replay.traces.workers import Workers

PATH = click.Path(path_type=Path)

force_option = click.option("--force", is_flag=True, help="Replace an output that an earlier command wrote.")


def json_output(text: str) -> Decorator:
    """The option --json, which sets `session.current().as_json`; `text`: its help."""
    return click.option(
        "--json", "as_json", is_flag=True, expose_value=False, is_eager=True, callback=set_json, help=text
    )


json_option = json_output("Print the result as JSON.")

details_option = click.option(
    "--details", is_flag=True, expose_value=False, callback=set_details, help="Print all tables and figures."
)


def output_option(metavar: str, text: str) -> Decorator:
    """The required option -o: the output of the command."""
    return click.option("-o", "--output", required=True, type=PATH, metavar=metavar, help=text)


def part_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options --ranks, --from, --until and --steps: the command gets its `capture` as a `NamedPart`."""
    return _with_part(command, *PartChoices.__annotations__)


def time_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options --from, --until and --steps: as `part_options`, without --ranks."""
    return _with_part(command, "begin", "until", "steps")


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `part_options`, and --path, --exclude, --op and --api; all of them choose the part."""
    return _with_part(command, "paths", "exclude", "operations", "interfaces", *PartChoices.__annotations__)


def _with_part(command: Callable[..., Any], *keywords: str) -> Callable[..., Any]:
    """Replace a command's path (or paths) and these options by `capture`, a `NamedPart`."""

    @family_options(FilterChoices, *keywords)
    @functools.wraps(command)
    def gathering(capture: Path | tuple[Path, ...], **given: Any) -> Any:
        said = {keyword: given.pop(keyword) for keyword in keywords}
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
            chosen.on_choice = note
            with piece_progress() as chosen.on_progress:
                return command(workers=chosen, **given)

    for option in _WORKER_OPTIONS:
        sharing = option(sharing)
    return sharing


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
        from dxt_replay.replay.ranks.mpi import rank_workers

        with rank_workers(count) as workers:
            yield workers
        return
    if count is not None:
        raise click.UsageError("--workers and --dask exclude each other: the cluster has its own number of workers")
    from dxt_replay.traces.workers import dask_workers

    with dask_workers(dask) as cluster:
        yield cluster


def capture_argument(name: str) -> Decorator:
    """An argument that names a capture or a Darshan log."""
    return click.argument(name, type=PATH)
