"""`dxt-replay run`: replay a capture on a staged target, alone or under mpiexec."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replay.commands.options import capture_argument, force_option, is_log, json_option, part_options
from traces.errors import UsageError

if TYPE_CHECKING:
    from replay.run.result import RunResult
    from traces.part import Part


@click.command()
@capture_argument("capture")
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
@part_options
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Run N times, into OUT.1.capture, OUT.2.capture ...; tells each time and the median.",
)
@click.option("--explain", is_flag=True, help="Tell the causal model behind --pace steps, and replay nothing.")
@force_option
@json_option
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
    chosen_part: Callable[[], Part],
    repeat: int,
    explain: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Replay a capture (or a .darshan log); the replay is written as a capture too.

    Under `mpiexec -n R` each process replays its share of the recorded ranks.
    Exits 1 when operations or closes failed or the run was stopped.
    """
    from replay.commands.options import opened
    from replay.commands.output import print_json
    from replay.commands.processes import ending_together
    from replay.commands.progress import run_progress
    from replay.plan.lane_plan import PlanOptions
    from replay.plan.pacing import Pace, Pacing
    from replay.ranks.comm import connect, first_does, together
    from replay.run.options import RunOptions
    from replay.run.process_files import IoOptions, mpi_hints
    from replay.run.repeat import Repeats, check_outputs, run_repeatedly
    from replay.run.runner import run_replay
    from replay.show.terminal import print_repeats, print_run
    from replay.twin.placement import parse_map
    from traces.store.part_capture import part_of

    if explain:
        _explain(capture, chosen_part(), as_json=as_json)
        return
    if target is None or output is None:
        raise UsageError(f"a replay needs {'--target DIR' if target is None else '-o OUT.capture'}")
    comm = connect()
    with ExitStack() as stack:
        stack.enter_context(comm.watched())
        stack.enter_context(ending_together(comm))
        progress = stack.enter_context(run_progress(comm.rank == 0))
        first_does(comm, lambda: check_outputs(output, repeat, force=force))
        part = together(comm, chosen_part)
        pacing = together(
            comm, lambda: Pacing(pace=Pace(pace), speed=speed, compute_speed=compute_speed, io_speed=io_speed)
        )
        if pacing.pace is Pace.STEPS:
            together(comm, lambda: _check_profiled(capture))
        whole = stack.enter_context(opened(capture, comm, output))
        source = together(comm, lambda: part_of(whole, part))
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
                sources=whole.info.sources if is_log(capture) else (),
                force=force,
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
    if not all(run.succeeded for run in runs):
        raise SystemExit(1)


def _check_profiled(capture: Path) -> None:
    """Raises: UsageError for a log: without a profile there are no steps to follow."""
    if is_log(capture):
        raise UsageError(
            f"{capture} has no training steps, which the pace steps follows: merge it with a profile "
            f"(`dxt-replay merge {capture} --profile DIR -o OUT.capture`), or replay it with --pace think or timed"
        )


def _explain(path: Path, part: Part, *, as_json: bool) -> None:
    """Print the causal model of all ranks of the part."""
    from replay.causal.explain import explanation, model_sections
    from replay.causal.paced_ranks import derive_steps
    from replay.commands.output import print_json
    from replay.plan.layers import choose_layers
    from replay.plan.survey import survey_rank
    from replay.show.terminal import print_sections
    from traces.store.part_capture import part_of
    from traces.store.reader import open_capture

    _check_profiled(path)
    capture = part_of(open_capture(path), part)
    layers = choose_layers(capture)
    surveys = [survey_rank(capture, rank, layers) for rank in capture.ranks]
    explained = explanation(capture, derive_steps(capture, surveys, capture.time_span_ns[0]))
    if as_json:
        print_json(explained)
    else:
        print_sections(model_sections(explained))
