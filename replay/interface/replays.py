"""Stages twins and replays captures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, is_from_logs, named, opened
from dxt_replay.replay.interface.merging import path_maps
from dxt_replay.replay.options.choices import SPEEDS, PathLike, ReplayChoices, StageChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.plan.pacing import Pacing, RunOptions
    from dxt_replay.replay.ranks.mpi import Communicator
    from dxt_replay.replay.run.feeder import Progress
    from dxt_replay.replay.run.result import Repeats, RunResult
    from dxt_replay.replay.target.stage import StagePlan


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
        with TimeLimit(check_timeout(timeout_s), doing="staging") as limit:
            carry_out(self.plan, workers=workers, progress=on_progress, limit=limit)
        return Staged(plan=self.plan, written=True)


@takes(StageChoices)
def stage(
    capture: CaptureOrPath,
    target: PathLike,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    **choices: Unpack[StageChoices],
) -> Staged:
    """Build the twin data set of a capture in the directory `target`, which exists. Keeps what was staged before.

    When `timeout_s` ends the call, complete files stay, and the next call continues. `on_progress` gets the bytes done
    and the bytes in all.

        dxt_replay.stage("run.capture", "/lustre/me/twin", dry_run=True).plan.bytes_to_write

    Raises: TargetError when `target` does not exist, the twin does not fit, or a file that was not staged is in the
    way.
    """
    from dxt_replay.replay.target.stage import plan_stage

    chosen = filled(StageChoices, choices)
    maps, limits = path_maps(chosen["maps"]), {name: chosen[name] for name in ("workers", "timeout_s")}
    with opened(capture) as source:
        plan = plan_stage(source, os.fspath(target), maps=maps, sparse=chosen["sparse"])
    planned = Staged(plan=plan, written=False)
    return planned if chosen["dry_run"] else planned.carry_out(on_progress=on_progress, **limits)


def unstage(target: PathLike) -> int:
    """Remove all staged files of `target`, and no other file. Returns the number of files removed.

        dxt_replay.unstage("/lustre/me/twin")

    Raises: TargetError when `target` was not staged.
    """
    from dxt_replay.replay.target.stage import unstage as remove

    return remove(os.fspath(target))


@takes(ReplayChoices)
def run(
    capture: CaptureOrPath,
    target: PathLike,
    output: PathLike,
    *,
    force: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    comm: Communicator | None = None,
    **choices: Unpack[ReplayChoices],
) -> RunResult:
    """Replay a capture on the twin in `target`, and record the replay as the capture `output`.

    `force`: replace an earlier capture. `choices`: see `RunChoices`.
    In a program that mpiexec started, each process calls `run` and replays its share of the ranks; all get the result.

        result = dxt_replay.run("run.capture", "/lustre/me/twin", "replay.capture", pace="steps")
        result.as_json()["elapsed_s"]

    Raises: UsageError for choices that do not fit; TargetError when the twin is not staged; ReplayError.
    """
    from dxt_replay.replay.ranks.mpi import connect
    from dxt_replay.replay.run.story import run_replay

    comm, place = comm or connect(), Path(output)
    with _ready(capture, target, place, 1, comm, force=force, **choices) as (source, options):
        result = run_replay(source, place, options, comm, on_progress or _silent)
    everywhere: RunResult = comm.broadcast(result)
    return everywhere


@takes(ReplayChoices)
def run_repeatedly(
    capture: CaptureOrPath,
    target: PathLike,
    output: PathLike,
    times: int,
    *,
    force: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    comm: Communicator | None = None,
    **choices: Unpack[ReplayChoices],
) -> Repeats:
    """Run `times` replays from the same state, into `OUT.1.capture`, `OUT.2.capture` ...; see `run`.

        repeats = dxt_replay.run_repeatedly("run.capture", "/lustre/me/twin", "replay.capture", 5)
        repeats.as_json()["elapsed_s"]["median"]

    Raises: as `run`. The captures of the earlier runs stay.
    """
    from dxt_replay.replay.ranks.mpi import connect
    from dxt_replay.replay.run.story import run_repeatedly as repeat_run

    comm, place = comm or connect(), Path(output)
    with _ready(capture, target, place, times, comm, force=force, **choices) as (source, options):
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
    force: bool,
    **choices: Unpack[ReplayChoices],
) -> Iterator[tuple[Capture, RunOptions]]:
    """The opened capture and the options of a run, checked as far as possible before logs are merged. Collective."""
    from dxt_replay.replay.plan.pacing import check_timeout
    from dxt_replay.replay.ranks.mpi import first_does, together
    from dxt_replay.replay.ranks.stopping import TimeLimit
    from dxt_replay.replay.run.story import check_outputs

    timeout_s = check_timeout(choices.get("timeout_s"))
    with ExitStack() as held:
        with TimeLimit(timeout_s, comm, "opening the capture, or waiting for the other processes"):
            first_does(comm, lambda: check_outputs(output, times, force=force))
            together(comm, lambda: pacing_of(capture, choices))
            source = held.enter_context(opened(capture, comm, output))
            options = together(comm, lambda: run_options(source, target, force=force, **choices))
        yield source, options


def run_options(
    source: Capture,
    target: PathLike,
    *,
    force: bool = False,
    **choices: Unpack[ReplayChoices],
) -> RunOptions:
    """The options of a replay, checked. Raises: UsageError for choices that do not fit the capture or each other."""
    from dxt_replay.replay.plan.pacing import RunOptions, mpi_hints
    from dxt_replay.replay.target.targets import target_named

    chosen = filled(ReplayChoices, choices)
    place = target_named(target)
    objects = place if isinstance(place, str) else ""
    _check_api(chosen, objects)
    return RunOptions(
        target=place,
        pacing=pacing_of(source, choices),
        compute=chosen["compute"],
        maps=path_maps(chosen["maps"]),
        cold=chosen["cold"],
        api="s3" if objects and chosen["api"] == "auto" else chosen["api"],
        direct=chosen["direct"],
        hints=mpi_hints(source),
        sources=source.whole.info.sources if is_from_logs(source) else (),
        force=force,
        timeout_s=chosen["timeout_s"],
    )


def _check_api(chosen: Mapping[str, Any], objects: str) -> None:
    """Raises: UsageError for choices that fit directories or object stores alone."""
    if not objects:
        if chosen["api"] == "s3":
            raise UsageError("--api s3 needs a --target s3://BUCKET/PREFIX")
        return
    if chosen["api"] not in ("auto", "s3", "null"):
        raise UsageError(f"--api {chosen['api']} needs files: on an s3:// target choose auto, s3 or null")
    if chosen["direct"]:
        raise UsageError("--direct needs files: an s3:// target has no page cache on this machine")
    if chosen["maps"]:
        raise UsageError("--map needs files: stage all data into the s3:// target")


def pacing_of(capture: CaptureOrPath, choices: Mapping[str, Any]) -> Pacing:
    """The pacing of a replay of `capture`, which may still be unopened.

    Raises: UsageError for choices that do not fit the capture or each other; TypeError for an unknown one.
    """
    from dxt_replay.replay.plan.pacing import Pace, Pacing

    chosen = filled(ReplayChoices, choices)
    speeds = {name: chosen[name] for name in SPEEDS}
    pacing = Pacing(pace=Pace.named(chosen["pace"]), **speeds)
    if pacing.pace is Pace.STEPS:
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


def _silent(progress: object) -> None:
    """Show no progress."""
