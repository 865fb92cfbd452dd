"""Stages twins, replays captures, and explains the model behind the pace `steps`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, is_from_logs, named, opened
from dxt_replay.replay.interface.merging import path_maps
from dxt_replay.replay.options.choices import SPEEDS, PathLike, PathMaps, RunChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.plan.pacing import Pacing
    from dxt_replay.replay.ranks.comm import Communicator
    from dxt_replay.replay.run.options import RunOptions
    from dxt_replay.replay.run.process import Progress
    from dxt_replay.replay.run.repeat import Repeats
    from dxt_replay.replay.run.result import RunResult
    from dxt_replay.replay.target.stage_plan import StagePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Result of `stage`. `written`: False for a dry run."""

    plan: StagePlan
    written: bool

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay stage --json` prints."""
        from dxt_replay.replay.target.stage_lines import as_json

        return {**as_json(self.plan), "written": self.written}

    def carry_out(
        self,
        *,
        workers: int | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Staged:
        """Write the plan of a dry run; arguments as of `stage`."""
        from dxt_replay.replay.ranks.time_limit import TimeLimit
        from dxt_replay.replay.run.options import check_timeout
        from dxt_replay.replay.target.stage import stage as carry_out

        with TimeLimit(check_timeout(timeout_s), doing="staging") as limit:
            carry_out(self.plan, workers=workers, progress=on_progress, limit=limit)
        return Staged(plan=self.plan, written=True)


def stage(
    capture: CaptureOrPath,
    target: PathLike,
    *,
    maps: PathMaps | None = None,
    sparse: bool = False,
    dry_run: bool = False,
    workers: int | None = None,
    timeout_s: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Staged:
    """Build the twin data set of a capture in the directory `target`. Keeps files that were staged before.

    `maps`: real data to read instead, never written. `sparse`: write holes instead of data. `workers`: files written
    at the same time. `timeout_s`: stop after these seconds and name the file that hangs; complete files stay, and the
    next call continues. `on_progress` gets the bytes done and the bytes in all.

        dxt_replay.stage("run.capture", "/lustre/me/twin", dry_run=True).plan.bytes_to_write

    Raises: TargetError when the twin does not fit, or a file that was not staged is in the way.
    """
    from dxt_replay.replay.target.stage_plan import plan_stage

    with opened(capture) as source:
        planned = Staged(plan=plan_stage(source, os.fspath(target), maps=path_maps(maps), sparse=sparse), written=False)
    return planned if dry_run else planned.carry_out(workers=workers, timeout_s=timeout_s, on_progress=on_progress)


def unstage(target: PathLike) -> int:
    """Remove all staged files of `target`, and no other file. Returns the number of files removed.

        dxt_replay.unstage("/lustre/me/twin")

    Raises: TargetError when `target` was not staged.
    """
    from dxt_replay.replay.target.stage import unstage as remove

    return remove(os.fspath(target))


@takes(RunChoices)
def run(
    capture: CaptureOrPath,
    target: PathLike,
    output: PathLike,
    *,
    cold: bool = False,
    maps: PathMaps | None = None,
    force: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    comm: Communicator | None = None,
    **choices: Unpack[RunChoices],
) -> RunResult:
    """Replay a capture on the twin in `target`, and record the replay as the capture `output`.

    `cold`: drop the twin from the page cache first. `force`: replace an earlier capture. `choices`: see `RunChoices`.
    In a program that mpiexec started, each process calls `run` and replays its share of the ranks; all get the result.

        result = dxt_replay.run("run.capture", "/lustre/me/twin", "replay.capture", pace="steps", cold=True)
        result.as_json()["elapsed_s"]

    Raises: UsageError for choices that do not fit; TargetError when the twin is not staged; ReplayError.
    """
    from dxt_replay.replay.ranks.mpi_world import connect
    from dxt_replay.replay.run.runner import run_replay

    comm, place = comm or connect(), Path(output)
    with _ready(capture, target, place, 1, comm, cold=cold, maps=maps, force=force, **choices) as (source, options):
        result = run_replay(source, place, options, comm, on_progress or _silent)
    everywhere: RunResult = comm.broadcast(result)
    return everywhere


@takes(RunChoices)
def run_repeatedly(
    capture: CaptureOrPath,
    target: PathLike,
    output: PathLike,
    times: int,
    *,
    cold: bool = False,
    maps: PathMaps | None = None,
    force: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    comm: Communicator | None = None,
    **choices: Unpack[RunChoices],
) -> Repeats:
    """Run `times` replays from the same state, into `OUT.1.capture`, `OUT.2.capture` ...; see `run`.

        repeats = dxt_replay.run_repeatedly("run.capture", "/lustre/me/twin", "replay.capture", 5)
        repeats.as_json()["elapsed_s"]["median"]

    Raises: as `run`. The captures of the earlier runs stay.
    """
    from dxt_replay.replay.ranks.mpi_world import connect
    from dxt_replay.replay.run.repeat import run_repeatedly as repeat_run

    comm, place = comm or connect(), Path(output)
    with _ready(capture, target, place, times, comm, cold=cold, maps=maps, force=force, **choices) as (source, options):
        result = repeat_run(source, place, options, comm, times, on_progress or _silent)
    everywhere: Repeats = comm.broadcast(result)
    return everywhere


@contextmanager
def _ready(
    capture: CaptureOrPath,
    target: PathLike,
    output: Path,
    times: int,
    comm: Communicator,
    *,
    cold: bool,
    maps: PathMaps | None,
    force: bool,
    **choices: Unpack[RunChoices],
) -> Iterator[tuple[Capture, RunOptions]]:
    """The opened capture and the options of a run, checked as far as possible before logs are merged. Collective."""
    from dxt_replay.replay.ranks.comm import first_does, together
    from dxt_replay.replay.ranks.time_limit import TimeLimit
    from dxt_replay.replay.run.options import check_timeout
    from dxt_replay.replay.run.repeat import check_outputs

    timeout_s = check_timeout(choices.get("timeout_s"))
    with ExitStack() as held:
        with TimeLimit(timeout_s, comm, "opening the capture, or waiting for the other processes"):
            first_does(comm, lambda: check_outputs(output, times, force=force))
            together(comm, lambda: pacing_of(capture, choices))
            source = held.enter_context(opened(capture, comm, output))
            chosen = partial(run_options, source, target, cold=cold, maps=maps, force=force)
            options = together(comm, lambda: chosen(**choices))
        yield source, options


def run_options(
    source: Capture,
    target: PathLike,
    *,
    cold: bool = False,
    maps: PathMaps | None = None,
    force: bool = False,
    **choices: Unpack[RunChoices],
) -> RunOptions:
    """The options of a replay, checked. Raises: UsageError for choices that do not fit the capture or each other."""
    from dxt_replay.replay.run.options import RunOptions
    from dxt_replay.replay.run.process_files import IoOptions, mpi_hints

    chosen = filled(RunChoices, choices)
    return RunOptions(
        target=Path(target),
        pacing=pacing_of(source, choices),
        compute=chosen["compute"],
        maps=path_maps(maps),
        cold=cold,
        api=chosen["api"],
        reconstruct=chosen["reconstruct"],
        io=IoOptions(direct=chosen["direct"], hints=mpi_hints(source)),
        sources=source.whole.info.sources if is_from_logs(source) else (),
        force=force,
        timeout_s=chosen["timeout_s"],
    )


def pacing_of(capture: CaptureOrPath, choices: Mapping[str, Any]) -> Pacing:
    """The pacing of a replay of `capture`, which may still be unopened.

    Raises: UsageError for choices that do not fit the capture or each other; TypeError for an unknown one.
    """
    from dxt_replay.replay.plan.pacing import Pace, Pacing

    chosen = filled(RunChoices, choices)
    speeds = {name: chosen[name] for name in SPEEDS}
    pacing = Pacing(pace=Pace.named(chosen["pace"]), **speeds)
    if pacing.pace is Pace.STEPS:
        check_profiled(capture)
    return pacing


def explain(
    capture: CaptureOrPath,
    *,
    api: str = "auto",
    reconstruct: bool = True,
    speed: float = 1.0,
    compute_speed: float | None = None,
    io_speed: float | None = None,
) -> dict[str, Any]:
    """The causal model of the training loop behind the pace `steps`, and its evidence. Replays nothing.

    `run` with the same choices (`RunChoices`) follows this model. At other speeds than the recorded ones `at_speed`
    holds the predicted run time.

        dxt_replay.explain("run.capture")["ranks"]

    Raises: UsageError when the capture has no training steps.
    """
    from dxt_replay.replay.causal.explain import explanation
    from dxt_replay.replay.plan.pacing import Pace, Pacing
    from dxt_replay.replay.ranks.comm import Solo
    from dxt_replay.replay.run.context import choose_layers_together, derive_context

    pacing = Pacing(pace=Pace.STEPS, speed=speed, compute_speed=compute_speed, io_speed=io_speed)
    check_profiled(capture)
    with opened(capture) as source:
        layers = choose_layers_together(source, Solo(), api=api, reconstruct=reconstruct)
        context = derive_context(source, Solo(), layers, Pace.STEPS)
        assert context.steps is not None  # the pace is steps
        return explanation(source, context.steps, pacing)


def check_profiled(capture: CaptureOrPath) -> None:
    """Raises: UsageError for logs without a profile, which have no steps to follow."""
    if is_from_logs(capture):
        log = named(capture)
        raise UsageError(
            f"{log} has no training steps, which the pace steps follows: merge it with a profile "
            f"(`dxt-replay merge {log} --profile DIR -o OUT.capture`), or replay it with --pace think or timed"
        )


def _silent(progress: object) -> None:
    """Show no progress."""
