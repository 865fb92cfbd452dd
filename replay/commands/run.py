"""`dxt-replay run`: replay a capture on a staged target, alone or under mpiexec."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replay.commands.options import selection_options
from traces.errors import DxtReplayError, UsageError

if TYPE_CHECKING:
    from replay.comm import Communicator
    from replay.result import RunResult
    from replay.selection import Selection

LAST_WORDS_S = 0.2
"""How long a process that ends all others waits for its message to reach the launcher."""


@click.command()
@click.argument("capture", type=click.Path(path_type=Path))
@click.option("--target", type=click.Path(path_type=Path), metavar="DIR", help="Where the twin lies.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT.capture")
@click.option(
    "--pace",
    type=click.Choice(["timed", "think", "steps", "none"]),
    default="timed",
    show_default=True,
    help="timed: at the original times; think: original think time after the previous operation; steps: when the "
    "training loop allows it; none: at once.",
)
@click.option("--speed", type=float, default=1.0, show_default=True, help="Times and gaps this much faster.")
@click.option("--compute-speed", type=float, help="Compute this much faster (pace steps, think).  [default: --speed]")
@click.option("--io-speed", type=float, help="Gaps between operations this much faster (as above).  [default: --speed]")
@click.option(
    "--compute",
    type=click.Choice(["sleep", "spin", "skip"]),
    default="sleep",
    show_default=True,
    help="What stands for the computation between the operations.",
)
@click.option(
    "--api",
    type=click.Choice(["auto", "posix", "stdio", "mpiio", "hdf5", "null"]),
    default="auto",
    show_default=True,
    help="Through which interface operations are made; auto: what each was recorded at; null: none, no I/O.",
)
@click.option(
    "--reconstruct/--no-reconstruct",
    default=True,
    show_default=True,
    help="Whether operations that the capture reconstructed from counters are replayed.",
)
@click.option("--direct", is_flag=True, help="POSIX operations past the page cache (O_DIRECT).")
@click.option(
    "--vectored", type=int, default=0, metavar="N", help="POSIX operations as preadv and pwritev of N buffers each."
)
@click.option("--cold", is_flag=True, help="Drop the twin from the page cache first.")
@click.option("--map", "maps", multiple=True, metavar="PREFIX=DIR", help="As for stage; repeatable.")
@selection_options
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Run N times, into OUT.1.capture, OUT.2.capture ...; tells each time and the median.",
)
@click.option("--explain", is_flag=True, help="Tell the causal model behind --pace steps, and replay nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    capture: Path,
    target: Path | None,
    output: Path | None,
    pace: str,
    speed: float,
    compute_speed: float | None,
    io_speed: float | None,
    compute: str,
    api: str,
    reconstruct: bool,
    direct: bool,
    vectored: int,
    cold: bool,
    maps: tuple[str, ...],
    ranks: str | None,
    begin: str | None,
    until: str | None,
    steps: str | None,
    repeat: int,
    explain: bool,
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
    from replay.plan import PlanOptions
    from replay.process_files import IoOptions, mpi_hints
    from replay.repeat import Repeats, run_repeatedly
    from replay.report import print_repeats, print_run
    from replay.run_options import RunOptions
    from replay.runner import run_replay
    from replay.selection import Selection
    from replay.twin.placement import parse_map
    from traces.store import open_capture

    if explain:
        _explain(capture, Selection.parse(ranks=ranks, begin=begin, until=until, steps=steps), as_json=as_json)
        return
    if target is None or output is None:
        raise UsageError(f"a replay needs {'--target DIR' if target is None else '-o OUT.capture'}")
    comm = connect()
    with comm.watched(), _ending_together(comm), run_progress(comm.rank == 0) as progress:
        selection = together(comm, lambda: Selection.parse(ranks=ranks, begin=begin, until=until, steps=steps))
        source = together(comm, lambda: selection.of(open_capture(capture)))
        pacing = together(
            comm, lambda: Pacing(pace=Pace(pace), speed=speed, compute_speed=compute_speed, io_speed=io_speed)
        )
        options = together(
            comm,
            lambda: RunOptions(
                target=target,
                plan=PlanOptions(pacing=pacing, compute=compute),
                maps=tuple(parse_map(text) for text in maps),
                cold=cold,
                api=api,
                reconstruct=reconstruct,
                io=IoOptions(direct=direct, pieces=vectored, hints=mpi_hints(source)),
            ),
        )
        result: RunResult | Repeats | None
        if repeat == 1:
            result = run_replay(source, output, options, comm, progress)
        else:
            result = run_repeatedly(source, output, options, comm, repeat, progress)
    if result is None:
        return
    if as_json:
        print_json(result.as_json())
    elif isinstance(result, Repeats):
        print_repeats(result.as_json())
    else:
        print_run(result.as_json())
    runs = result.runs if isinstance(result, Repeats) else (result,)
    if any(run.tally.failed or run.stopped for run in runs):
        raise SystemExit(1)


def _explain(path: Path, selection: Selection, *, as_json: bool) -> None:
    """Print the causal model of all selected ranks."""
    from replay.causal.explain import explanation, model_sections
    from replay.causal.steps import derive_steps
    from replay.commands.output import print_json
    from replay.layers import choose_layers
    from replay.report import print_sections
    from replay.survey import survey_rank
    from traces.store import open_capture

    capture = selection.of(open_capture(path))
    layers = choose_layers(capture)
    surveys = [survey_rank(capture, rank, layers) for rank in capture.ranks]
    explained = explanation(capture, derive_steps(capture, surveys, capture.time_span_ns[0]))
    if as_json:
        print_json(explained)
    else:
        print_sections(model_sections(explained))


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
            time.sleep(LAST_WORDS_S)
            comm.abort()
        raise
    except (Exception, KeyboardInterrupt):
        if comm.size == 1:
            raise
        # In one write, and with time for the launcher to pass it on: it drops what it has not read when all end.
        click.echo(f"{traceback.format_exc()}dxt-replay: process {comm.rank} failed and ends the replay", err=True)
        time.sleep(LAST_WORDS_S)
        comm.abort()
