"""`dxt-replay run`: replay a capture on a staged target, alone or under mpiexec."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replay.commands.options import capture_argument, force_option, is_log, json_option, part_options
from replay.commands.replay_options import pacing_of, replay_options, run_options_of
from traces.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.run.result import RunResult
    from traces.part import Part


@click.command()
@capture_argument("capture")
@click.option("--target", type=click.Path(path_type=Path), metavar="DIR", help="Directory that holds the staged twin.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT.capture")
@replay_options(pace="timed")
@click.option("--cold", is_flag=True, help="Drop the twin from the page cache first.")
@click.option("--map", "maps", multiple=True, metavar="PREFIX=DIR", help="As for stage; repeatable.")
@part_options
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Run N times, into OUT.1.capture, OUT.2.capture ...; print each time and the median.",
)
@click.option("--explain", is_flag=True, help="Print the causal model behind --pace steps, and replay nothing.")
@force_option
@json_option
def command(
    capture: Path,
    target: Path | None,
    output: Path | None,
    chosen_part: Callable[[], Part],
    repeat: int,
    explain: bool,
    as_json: bool,
    maps: tuple[str, ...],
    **chosen: Any,
) -> None:
    """Replay a capture (or a .darshan log); the replay is written as a capture too.

    Under `mpiexec -n R` each process replays its share of the recorded ranks.
    Exits 1 when operations or closes failed or the run was stopped.
    """
    from replay.commands.options import opened
    from replay.commands.output import print_json
    from replay.commands.processes import ending_together
    from replay.commands.progress import run_progress
    from replay.ranks.comm import connect, first_does, together
    from replay.run.repeat import Repeats, check_outputs, run_repeatedly
    from replay.run.runner import run_replay
    from replay.show.terminal import print_repeats, print_run
    from traces.store.part_capture import part_of

    if explain:
        _explain(capture, chosen_part(), chosen, as_json=as_json)
        return
    if target is None or output is None:
        raise UsageError(f"a replay needs {'--target DIR' if target is None else '-o OUT.capture'}")
    comm = connect()
    with ExitStack() as stack:
        stack.enter_context(comm.watched())
        stack.enter_context(ending_together(comm))
        progress = stack.enter_context(run_progress(comm.rank == 0))
        first_does(comm, lambda: check_outputs(output, repeat, force=chosen["force"]))
        part = together(comm, chosen_part)
        pacing = together(comm, lambda: pacing_of(chosen, chosen["pace"]))
        if chosen["pace"] == "steps":
            together(comm, lambda: _check_profiled(capture))
        whole = stack.enter_context(opened(capture, comm, output))
        source = together(comm, lambda: part_of(whole, part))
        sources = whole.info.sources if is_log(capture) else ()
        options = together(
            comm, lambda: run_options_of(chosen, pacing, source, target=target, maps=maps, sources=sources)
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


def _explain(path: Path, part: Part, chosen: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the causal model of all ranks of the part: the one that a run with the same options follows."""
    from replay.causal.explain import model_sections
    from replay.commands.output import print_json
    from replay.interface.replays import explain
    from replay.show.terminal import print_sections
    from traces.store.part_capture import part_of
    from traces.store.reader import open_capture

    _check_profiled(path)
    names = ("api", "reconstruct", "speed", "compute_speed", "io_speed")
    explained = explain(part_of(open_capture(path), part), **{name: chosen[name] for name in names})
    if as_json:
        print_json(explained)
    else:
        print_sections(model_sections(explained))
