"""Replays: `doctor` before, `stage` and `unstage` of the twin, `run`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dxt_replay.replay.commands import session
from dxt_replay.replay.commands.captures import (
    CaptureOrPath,
    PartOption,
    Parts,
    Source,
    is_from_logs,
    named,
    opened,
    path_maps,
)  # fmt: skip
from dxt_replay.replay.commands.face import (
    Argument,
    Force,
    Maps,
    Option,
    PathLike,
    PathMaps,
    Target,
    Timeout,
    check_choices,
    command,
    output,
    public,
)  # fmt: skip
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.paces import API_CHOICES, COMPUTE_CHOICES, PACE_CHOICES, Pace

if TYPE_CHECKING:
    from dxt_replay.replay.doctor import Diagnosis
    from dxt_replay.replay.plan.pacing import Pacing, RunOptions
    from dxt_replay.replay.ranks.mpi import Communicator
    from dxt_replay.replay.run.feeder import Progress
    from dxt_replay.replay.run.result import Repeats, RunResult
    from dxt_replay.replay.target.stage import StagePlan
    from dxt_replay.traces.store.reader import Capture

PaceOption = Annotated[
    str, Option("; ".join(f"{pace.value}: {pace.meaning}" for pace in Pace) + ".", choices=PACE_CHOICES)
]
SpeedOption = Annotated[float, Option("2 halves every gap.")]
ComputeOption = Annotated[str, Option("Compute asleep or spinning.", choices=COMPUTE_CHOICES)]
ApiOption = Annotated[
    str, Option("auto: as recorded; direct: POSIX past the page cache; null: no I/O.", choices=(*API_CHOICES, "direct"))
]
ColdOption = Annotated[bool, Option("Drop cached pages first.", flags="--cold/--warm")]


@command()
def doctor(directory: Annotated[PathLike | None, Argument("[DIR|TARGET]", text=True)] = None) -> Diagnosis:
    """Examine this machine, and a directory or object store, for all that a recording or a replay needs.

    It loads the compiled cores, the packages and MPI in processes of their own, and starts two MPI processes. It
    reads the limits of open files, threads and memory, and measures how late idle threads wake up. It tries Darshan
    on a small program. In a directory it tries direct I/O and the page cache with a file of 1 MiB, which it removes.
    To an object store (s3:// URL) it sends a PUT of 1 MiB, a GET, a LIST and a DELETE.
    Exits 0 if nothing that is needed is broken, 1 if something is, 2 for wrong use.

    In Python:

        assert dxt_replay.doctor("/scratch/twin").passed

    Raises: UsageError if `directory` is neither a directory nor the URL of an object store.
    """
    from dxt_replay.replay.doctor import examine
    from dxt_replay.replay.target.targets import target_named

    with session.status("examining"):
        return examine(None if directory is None else target_named(directory))


# ---------------------------------------------------------------------------------------------- stage
@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Result of `stage`. `written`: False for a dry run."""

    plan: StagePlan
    written: bool

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay stage --json` prints."""
        return {**self.plan.as_json(), "written": self.written}

    def carry_out(
        self,
        *,
        workers: int | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Staged:
        """Write the plan of a dry run; arguments as of `stage`."""
        from dxt_replay.replay.plan.pacing import check_timeout
        from dxt_replay.replay.ranks.stopping import TimeLimit
        from dxt_replay.replay.target.stage import stage as carry_out
        from dxt_replay.replay.target.targets import check_there

        check_there(self.plan.target)
        with (
            TimeLimit(check_timeout(timeout_s), doing="staging") as limit,
            session.progress(session.of_bytes("staging"), on_progress) as progress,
        ):
            carry_out(self.plan, workers=workers, progress=progress, limit=limit)
        return Staged(plan=self.plan, written=True)


@public
def stage(
    capture: Source,
    target: Target,
    *,
    dry_run: Annotated[bool, Option("Print what would be written, and write nothing.")] = False,
    sparse: Annotated[bool, Option("Write holes, whose reads reach no device.")] = False,
    maps: Maps = None,
    workers: Annotated[int | None, Option("Files written at the same time.", least=1, most=64)] = None,
    timeout_s: Timeout = None,
    part: PartOption = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Staged:
    """Stage a twin of the recorded data set of a capture (or a .darshan log) under a target directory.

    Each file that the capture reads is made as large as its accesses need. Its data do not compress. The target exists;
    what was staged before stays, and real data of --map is never written.

    In Python:

        dxt_replay.stage("run.capture", "/lustre/me/twin", dry_run=True).plan.bytes_to_write

    When `timeout_s` ends the call, complete files stay, and the next call continues. `on_progress` gets the bytes done
    and the bytes in all.
    Raises: TargetError when `target` does not exist, the twin does not fit, or a file that was not staged is in the
    way.
    """
    from dxt_replay.replay.target.stage import plan_stage

    with opened(capture, part=part) as source:
        plan = plan_stage(source, os.fspath(target), maps=path_maps(maps), sparse=sparse)
    planned = Staged(plan=plan, written=False)
    return planned if dry_run else planned.carry_out(workers=workers, timeout_s=timeout_s, on_progress=on_progress)


def unstage(target: PathLike) -> int:
    """Remove all staged files of `target`, and no other file. Returns the number of files removed.

        dxt_replay.unstage("/lustre/me/twin")

    Raises: TargetError when `target` was not staged.
    """
    from dxt_replay.replay.target.stage import unstage as remove

    return remove(os.fspath(target))


@command(name="stage", like=stage)
def _stage(
    *, remove: Annotated[bool, Option("Remove all that was staged, and nothing else.")] = False, **given: Any
) -> int:
    from dxt_replay.replay.target.targets import check_there, target_named
    from dxt_replay.traces.units import format_counted

    target, as_json, dry_run = given["target"], session.current().as_json, given.pop("dry_run")
    if remove:
        removed = unstage(target)
        if as_json:
            session.print_json({"target": str(target), "removed": removed})
        else:
            click.echo(f"Removed {format_counted(removed, 'file')} from {target}")
        return 0
    if not dry_run:
        check_there(target_named(target))
    limits = {key: given.pop(key) for key in ("workers", "timeout_s")}
    planned = stage(**given, dry_run=True)
    if not as_json:
        for line in planned.plan.lines(dry_run=dry_run):
            click.echo(line)
    if not dry_run:
        began = time.monotonic()
        planned = planned.carry_out(**limits)
        if not as_json:
            click.echo(planned.plan.done_line(time.monotonic() - began))
            again = session.given_options({"maps", "part"})
            session.print_next("run", given["capture"], "--target", target, *again, "-o", "replay.capture")
    if as_json:
        session.print_json(planned.as_json())
    return 0


# ------------------------------------------------------------------------------------------------ run
@public
def run(
    capture: Source,
    target: Target,
    output: Annotated[PathLike, output("OUT.capture", "The capture of the replay.")],
    *,
    pace: PaceOption = "timed",
    speed: SpeedOption = 1.0,
    compute: ComputeOption = "sleep",
    api: ApiOption = "auto",
    timeout_s: Timeout = None,
    cold: ColdOption = True,
    maps: Maps = None,
    part: PartOption = (),
    force: Force = False,
    on_progress: Callable[[Progress], None] | None = None,
    comm: Communicator | None = None,
) -> RunResult:
    """Replay a capture (or a .darshan log), and write the replay as a capture too.

    Under `mpiexec -n R` each process replays its share of the recorded ranks.
    Exits 1 when an operation or close failed, a read or write moved fewer bytes than recorded, or the run was stopped.

    In Python:

        result = dxt_replay.run("run.capture", "/lustre/me/twin", "replay.capture", pace="steps")
        result.as_json()["elapsed_s"]

    In a program that mpiexec started, each process calls `run`; all get the result. When `timeout_s` ends a run,
    ReplayError names the call that hangs. If the calling thread itself is stuck in it, the process ends with status 2.
    Raises: UsageError for choices that do not fit; TargetError when the twin is not staged; ReplayError.
    """
    how: dict[str, Any] = {
        "speed": speed,
        "compute": compute,
        "api": api,
        "cold": cold,
        "maps": maps,
        "timeout_s": timeout_s,
    }
    (found,) = _replays(capture, target, [Path(output)], part, on_progress, comm, pace=pace, force=force, **how)
    return found


def run_repeatedly(
    capture: CaptureOrPath,
    target: PathLike,
    output: PathLike,
    times: int,
    *,
    part: Parts = (),
    on_progress: Callable[[Progress], None] | None = None,
    comm: Communicator | None = None,
    **how: Any,
) -> Repeats:
    """Run `times` replays from the same state, into `OUT.1.capture`, `OUT.2.capture` ...; `how`: as of `run`.

        repeats = dxt_replay.run_repeatedly("run.capture", "/lustre/me/twin", "replay.capture", 5)
        repeats.as_json()["elapsed_s"]["median"]

    Raises: as `run`. The captures of the earlier runs stay.
    """
    from dxt_replay.replay.run.result import Repeats
    from dxt_replay.replay.run.story import outputs_of

    check_choices(run, how)
    outputs = outputs_of(Path(output), times)
    return Repeats(runs=tuple(_replays(capture, target, outputs, part, on_progress, comm, **how)))


def _next(result: Any, given: Mapping[str, Any]) -> Sequence[PathLike]:
    first = result.runs[0] if given["repeat"] > 1 else result
    return ("compare", given["capture"], first.capture) if result.succeeded else ()


@command(name="run", like=run, following=_next, fails=lambda result, given: not result.succeeded)
def _run(
    *,
    repeat: Annotated[int, Option("Run N times, into OUT.1.capture ...; print the median.", "N", least=1)] = 1,
    comm: Communicator,
    **given: Any,
) -> RunResult | Repeats:
    return run(comm=comm, **given) if repeat == 1 else run_repeatedly(times=repeat, comm=comm, **given)


def _replays(
    capture: CaptureOrPath,
    target: PathLike,
    outputs: Sequence[Path],
    part: Parts,
    show: Callable[[Progress], None] | None,
    comm: Communicator | None,
    *,
    pace: str = "timed",
    speed: float = 1.0,
    timeout_s: float | None = None,
    force: bool = False,
    **how: Any,
) -> list[RunResult]:
    """Replay into each of `outputs`. What can be refused is refused before logs are merged. Collective."""
    from dxt_replay.replay.plan.pacing import check_timeout
    from dxt_replay.replay.ranks.mpi import connect, first_does, together
    from dxt_replay.replay.ranks.stopping import TimeLimit
    from dxt_replay.replay.run.story import run_repeatedly
    from dxt_replay.traces.store.writer import check_capture_output

    def check_outputs() -> None:
        for path in outputs:
            check_capture_output(path, force=force)

    processes = comm or connect()
    how |= {"pace": pace, "speed": speed, "timeout_s": check_timeout(timeout_s), "force": force}
    with ExitStack() as held:
        with TimeLimit(timeout_s, processes, "opening the capture, or waiting for the other processes"):
            first_does(processes, check_outputs)
            together(processes, lambda: pacing_of(capture, pace, speed))
            source = held.enter_context(opened(capture, processes, outputs[0], part=part))
            options = together(processes, lambda: run_options(source, target, **how))
        progress = held.enter_context(session.progress(session.of_run, show, shown=processes.rank == 0))
        runs = run_repeatedly(source, outputs, options, processes, progress)
    everywhere: list[RunResult] = processes.broadcast(runs)
    return everywhere


def run_options(
    source: Capture,
    target: PathLike,
    *,
    pace: str = "timed",
    speed: float = 1.0,
    api: str = "auto",
    maps: PathMaps | None = None,
    **choices: Any,
) -> RunOptions:
    """The options of a replay, checked; `choices`: as of RunOptions. Raises: UsageError for choices that do not fit the
    capture or each other."""
    from dxt_replay.replay.plan.pacing import RunOptions, mpi_hints
    from dxt_replay.replay.target.targets import target_named

    place = target_named(target)
    objects = place if isinstance(place, str) else ""
    if not objects and api == "s3":
        raise UsageError("--api s3 needs a --target s3://BUCKET/PREFIX")
    if objects and api not in ("auto", "s3", "null"):
        raise UsageError(f"--api {api} needs files: on an s3:// target choose auto, s3 or null")
    if objects and maps:
        raise UsageError("--map needs files: stage all data into the s3:// target")
    return RunOptions(
        target=place,
        pacing=pacing_of(source, pace, speed),
        maps=path_maps(maps),
        api="s3" if objects and api == "auto" else "posix" if api == "direct" else api,
        direct=api == "direct",
        hints=mpi_hints(source),
        sources=source.whole.info.sources if is_from_logs(source) else (),
        **choices,
    )


def pacing_of(capture: CaptureOrPath, pace: str, speed: float) -> Pacing:
    """The pacing of a replay of `capture`, which may still be unopened. Raises: UsageError if it does not fit."""
    from dxt_replay.replay.plan.pacing import Pacing

    pacing = Pacing(pace=Pace.named(pace), speed=speed)
    if pacing.pace.follows_training:
        check_profiled(capture)
    return pacing


def check_profiled(capture: CaptureOrPath) -> None:
    """Raises: UsageError for logs without a profile, which have no steps to follow."""
    if is_from_logs(capture):
        log = named(capture)
        raise UsageError(
            f"{log} has no training steps, which the pace steps follows: merge it with a profile "
            f"(`dxt-replay merge {log} --profile DIR -o OUT.capture`), or replay it with --pace think or timed"
        )
