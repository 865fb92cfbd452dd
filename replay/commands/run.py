"""`dxt-replay run`: replay a capture on a staged target, alone or under mpiexec."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traces.errors import DxtReplayError

if TYPE_CHECKING:
    from replay.comm import Communicator


@click.command()
@click.argument("capture", type=click.Path(path_type=Path))
@click.option("--target", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where the twin lies.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="OUT.capture")
@click.option(
    "--pace",
    type=click.Choice(["timed", "think", "none"]),
    default="timed",
    show_default=True,
    help="timed: at the original times; think: original think time after the previous operation; none: at once.",
)
@click.option("--speed", type=float, default=1.0, show_default=True, help="Times and gaps this much faster.")
@click.option(
    "--compute",
    type=click.Choice(["sleep", "spin", "skip"]),
    default="sleep",
    show_default=True,
    help="What stands for the computation between the operations.",
)
@click.option("--cold", is_flag=True, help="Drop the twin from the page cache first.")
@click.option("--map", "maps", multiple=True, metavar="PREFIX=DIR", help="As for stage; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    capture: Path,
    target: Path,
    output: Path,
    pace: str,
    speed: float,
    compute: str,
    cold: bool,
    maps: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replay a capture; the replay is written as a capture too.

    Under `mpiexec -n R` each process replays its share of the recorded ranks.
    Exits 1 when operations failed or the run was stopped.
    """
    from replay.comm import connect, together
    from replay.commands.output import print_json
    from replay.commands.progress import run_progress
    from replay.pacing import Pace, Pacing
    from replay.placement import parse_map
    from replay.plan import PlanOptions
    from replay.report import print_run
    from replay.runner import RunOptions, run_replay
    from traces.store import open_capture

    comm = connect()
    with _ending_together(comm), run_progress(comm.rank == 0) as progress:
        source = together(comm, lambda: open_capture(capture))
        options = together(
            comm,
            lambda: RunOptions(
                target=target,
                plan=PlanOptions(pacing=Pacing(pace=Pace(pace), speed=speed), compute=compute),
                maps=tuple(parse_map(text) for text in maps),
                cold=cold,
            ),
        )
        result = run_replay(source, output, options, comm, progress)
    if result is None:
        return
    if as_json:
        print_json(result.as_json())
    else:
        print_run(result.as_json())
    if result.tally.failed or result.stopped:
        raise SystemExit(1)


@contextmanager
def _ending_together(comm: Communicator) -> Iterator[None]:
    """A known error is learnt by all processes and told by the first; anything else in one of them ends them all."""
    try:
        yield
    except DxtReplayError as error:
        from replay.comm import is_known_to_all

        if comm.rank and is_known_to_all(error):
            raise SystemExit(error.exit_status) from error
        if comm.size > 1 and not is_known_to_all(error):
            click.echo(f"dxt-replay: error: process {comm.rank}: {error}", err=True)
            comm.abort()
        raise
    except Exception:
        if comm.size == 1:
            raise
        traceback.print_exc()
        click.echo(f"dxt-replay: process {comm.rank} failed and ends the replay", err=True)
        comm.abort()
