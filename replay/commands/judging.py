"""Judges: `compare` of a replay, `verify` of captures and twins, `regress` of storage, `history` of its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dxt_replay.replay.commands import session
from dxt_replay.replay.commands.captures import (
    CaptureOrPath,
    DifferentRuns,
    Floor,
    PartOption,
    RunPair,
    Source,
    floor_of,
    opened,
    several,
)  # fmt: skip
from dxt_replay.replay.commands.face import Argument, Force, Option, PathLike, command, output, public
from dxt_replay.replay.commands.replaying import ApiOption, ColdOption, pacing_of, run_options
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.paces import PACE_CHOICES, Pace

if TYPE_CHECKING:
    from dxt_replay.replay.compare.comparison import Comparison
    from dxt_replay.replay.compare.noise import NoiseFloor
    from dxt_replay.replay.compare.verdict import Thresholds
    from dxt_replay.replay.plan.pacing import RunOptions
    from dxt_replay.replay.ranks.mpi import Communicator
    from dxt_replay.replay.regress.comparison import Regression
    from dxt_replay.replay.regress.experiment import Experiment
    from dxt_replay.replay.regress.history import History
    from dxt_replay.replay.regress.record import ExperimentRecord
    from dxt_replay.replay.run.feeder import Progress
    from dxt_replay.replay.verify import Verified
    from dxt_replay.traces.workers import Work, Workers

Threshold = Annotated[float, Option("Least change that matters.", "PCT", name="threshold")]


# -------------------------------------------------------------------------------------------- compare
@public
def compare(
    source: CaptureOrPath,
    replay: CaptureOrPath,
    thresholds: Thresholds | None = None,
    *,
    different_runs: DifferentRuns = False,
    floor: Floor = (),
    executor: Work = None,
) -> Comparison:
    """Compare a replay with its source: did it do the same work, and how fast was the storage?

        print(dxt_replay.compare("run.capture", "replay.capture").headline)

    `executor` shares the work.
    Raises: UsageError for two captures in the wrong order or that are not source and replay, and for a pair that is
    not of this job; CaptureError.
    """
    from dxt_replay.replay.compare.comparison import THRESHOLDS
    from dxt_replay.replay.compare.comparison import compare as compare_captures
    from dxt_replay.traces.store.relation import check_pair
    from dxt_replay.traces.workers import workers_of

    with session.status("comparing"), ExitStack() as stack:
        recorded, replayed = (stack.enter_context(opened(side)) for side in (source, replay))
        relation = check_pair(recorded, replayed, different_runs=different_runs)
        noise = floor_of(stack, floor, recorded, replayed) if floor else None
        workers = workers_of(executor)
        limits = thresholds or THRESHOLDS
        return compare_captures(recorded, replayed, limits, relation=relation, floor=noise, workers=workers)


def noise_floor(*pairs: RunPair) -> NoiseFloor:
    """The distance of two runs of the same application, or of two replays of one capture; the worst pair counts.

        dxt_replay.noise_floor(("monday.capture", "tuesday.capture")).measures["similarity.cosine"]

    Raises: UsageError for captures that are not different runs of one job; CaptureError.
    """
    with ExitStack() as stack:
        return floor_of(stack, pairs)


@command(name="compare")
def _compare(
    source: Annotated[CaptureOrPath | None, Argument("[SOURCE]")] = None,
    replay: Annotated[CaptureOrPath | None, Argument("[REPLAY]")] = None,
    *,
    fail_under: Annotated[
        float | None,
        Option(
            "Fail when the cosine of all ten factors is below S. By default the seven that storage does not decide "
            "count, and must reach 0.95.",
            "S",
            least=0,
            most=1,
        ),
    ] = None,
    max_elapsed_error: Annotated[
        float, Option("Largest error of a timed replay's elapsed time, in per cent.", "PCT", least=0)
    ] = 1.0,
    max_drift: Annotated[float, Option("Largest drift of a timed replay, us per second.", "PPM", least=0)] = 20.0,
    different_runs: DifferentRuns = False,
    floor: Floor = (),
    executor: Workers,
) -> Comparison | NoiseFloor:
    """Compare a replay with its source: did it do the same work, and how fast was the storage?

    SOURCE and REPLAY are captures or .darshan logs. Exits 1 when the replay did other work than recorded, or did it at
    other times than due. How fast the storage was is a measurement and never fails. `compare --floor A B` alone prints
    how far two runs of the same application, or two replays, are from each other.
    """
    from dxt_replay.replay.compare.verdict import Thresholds

    if source is None and floor:
        with session.status("comparing"):
            return noise_floor(*floor)
    if source is None or replay is None:
        text = "give the recorded capture and its replay, or --floor A B: two runs of one application"
        raise click.UsageError(text, click.get_current_context())
    limits = Thresholds(fail_under=fail_under, elapsed_error_pct=max_elapsed_error, drift_ppm=max_drift)
    return compare(source, replay, limits, different_runs=different_runs, floor=floor, executor=executor)


# --------------------------------------------------------------------------------------------- verify
@command()
def verify(
    *paths: Annotated[PathLike, Argument("CAPTURE|TARGET...", text=True)],
    sources: Annotated[
        Sequence[PathLike],
        Option("What a capture was made from, where it does not lie beside it; repeatable.", "FILE", flags="--source"),
    ] = (),
    sizes_only: Annotated[bool, Option("Do not read the bytes of a twin: fast.")] = False,
) -> Verified:
    """Check captures against their own digests, counts and sources, and staged twins against their manifests.

    In a capture, every file must have its digest, every row must follow the format, and the counts must agree. In a
    twin, every file must be there: a plain file with one name, with the size and the bytes that `stage` gave it. No
    other file may be there. To check the HDF5 files of a twin, name its capture too. Nothing is written. Exits 0 if
    nothing differs, 1 if something differs, 2 for wrong use.

    In Python:

        assert dxt_replay.verify("run.capture", "/scratch/twin").passed

    Raises: UsageError for a path that is neither a capture nor a staged target.
    """
    from dxt_replay.replay.target.targets import target_named
    from dxt_replay.replay.verify import verify_places

    if not paths:
        raise UsageError("nothing to verify: give a capture, or a directory that `dxt-replay stage` filled")
    with session.status("verifying"):
        found = [target_named(path) for path in paths]
        return verify_places(found, sources=[Path(source) for source in sources], sizes_only=sizes_only)


# -------------------------------------------------------------------------------------------- regress
@public
def regress(
    capture: Source,
    baseline: Annotated[PathLike | None, Option("The target as it was, or a RECORD.json.", "DIR", text=True)],
    candidate: Annotated[PathLike | None, Option("The target to judge.", "DIR", text=True)],
    *,
    record: Annotated[PathLike | None, Option("Write a record, for `history` too.", "FILE")] = None,
    repeats: Annotated[int, Option("Pairs of runs.", "N", least=1, most=1000)] = 10,
    threshold_pct: Threshold = 5.0,
    pace: Annotated[
        str | None, Option("As of run.  [default: steps if recorded, else think]", choices=PACE_CHOICES)
    ] = None,
    api: ApiOption = "auto",
    cold: ColdOption = True,
    maps: Annotated[
        Sequence[str], Option("Real data, of one side or both; repeatable.", "[SIDE:]PREFIX=DIR", flags="--map")
    ] = (),
    part: PartOption = (),
    output: Annotated[PathLike | None, output("DIR", "Keep the replays in DIR.")] = None,
    report: Annotated[
        PathLike | Sequence[PathLike],
        Option("Write FILE.xml (JUnit), .md or .html (page).", "FILE", name="reports", flags="--report"),
    ] = (),
    fail_inconclusive: Annotated[bool, Option("Exit 1 also when inconclusive.")] = False,
    force: Force = False,
    on_staging: Callable[[int, int], None] | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    comm: Communicator | None = None,
) -> Regression:
    """Replay a capture (or a .darshan log) on two targets in turn, and judge whether one is slower.

    Twins that are absent are staged. The sides run in pairs of random order. The ratio of their times and its exact
    interval decide: regression, no change or inconclusive (docs/regression.md). TARGET alone measures the noise.
    Exits 1 for a regression or if stopped, else 0.

    In Python:

        dxt_replay.regress("run.capture", "/lustre/old/twin", "/lustre/new/twin").verdict

    A `baseline` that is a record (.json) replaces the runs on it: half the work, but all that changed since is part of
    the change. `maps`: "PREFIX=DIR" for both sides, "baseline:PREFIX=DIR" for one. Under `mpiexec -n R` the processes
    share the recorded ranks.
    Raises: UsageError for numbers out of range, or a record of other work; TargetError; ReplayError.
    """
    from dxt_replay.replay.ranks.mpi import connect, first_does, together
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.regress import experiment as module
    from dxt_replay.replay.regress.statistics import Rule
    from dxt_replay.replay.show.regress import report as text_of
    from dxt_replay.replay.target.stage import stage as stage_plan
    from dxt_replay.traces.output import new_file

    processes, rule, reports = (
        comm or connect(),
        Rule(threshold_pct=threshold_pct),
        list(dict.fromkeys(several(report))),
    )
    place, keep = None if record is None else Path(record), None if output is None else Path(output)

    def prepared() -> Experiment:
        chosen = pace or module.default_pace(source).value

        def side(name: str, target: PathLike) -> RunOptions:
            mine = [text.removeprefix(f"{name}:") for text in maps if text.startswith((f"{name}:", "/"))]
            return run_options(source, target, pace=chosen, api=api, cold=cold, maps=mine, force=force)

        experiment = module.Experiment(
            baseline=None if before is not None else side("baseline", baseline or ""),
            against=before,
            candidate=side("candidate", candidate or ""),
            repeats=repeats,
            rule=rule,
            keep=keep,
        )
        module.check_outputs(experiment)
        with session.progress(session.of_bytes("staging"), on_staging) as staging:
            for plan in module.plan_staging(source, experiment):
                stage_plan(plan, progress=staging)
        return experiment

    before = first_does(processes, lambda: _checked(baseline, candidate, maps, reports, place, force=force))
    together(processes, lambda: pacing_of(capture, pace or Pace.THINK.value, 1.0))  # think fits wherever steps may
    runs = (1 if before is not None else 2) * (repeats + module.WARM_UPS)
    with (
        unwind_on_signals(),
        opened(capture, processes, keep, part=part) as source,
        session.progress(session.of_experiment(runs), on_progress, shown=processes.rank == 0) as progress,
    ):
        experiment = first_does(processes, prepared)
        result = module.run_experiment(source, experiment, processes, progress)

        def write() -> None:
            assert result is not None
            files = {} if place is None else {place: result.record().encoded()}
            files |= {path: text_of(path.suffix, result, inconclusive_fails=fail_inconclusive) for path in reports}
            for path, content in files.items():
                with new_file(path, force=force) as stream:
                    stream.write(content)

        first_does(processes, write)
    everywhere: Regression = processes.broadcast(result)
    return everywhere


def _checked(
    baseline: PathLike | None,
    candidate: PathLike | None,
    maps: Sequence[str],
    reports: Sequence[Path],
    record: Path | None,
    *,
    force: bool,
) -> ExperimentRecord | None:
    """Refuse the experiment before its first run. Returns the record that is the baseline, if it is one.

    Raises: TargetError; UsageError for a report of another kind, and a record that cannot be read.
    """
    from dxt_replay.replay.regress.record import read_record
    from dxt_replay.replay.show.regress import SUFFIXES
    from dxt_replay.traces.output import check_output

    if baseline is None or candidate is None:
        missing = "--baseline" if baseline is None else "--candidate"
        raise UsageError(
            f"{missing} is missing: give --baseline DIR and --candidate DIR, or TARGET alone for its noise"
        )
    for text in maps:
        if not text.startswith(("baseline:/", "candidate:/", "/")):
            raise UsageError(f"--map {text!r}: give PREFIX=DIR, baseline:PREFIX=DIR or candidate:PREFIX=DIR")
    for path in reports:
        if path.suffix not in SUFFIXES:
            raise UsageError(f"--report {path}: give a name that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    for path in [*reports, *([] if record is None else [record])]:
        check_output(path, force=force)
    return read_record(Path(baseline)) if Path(baseline).suffix == ".json" else None


def _check_repeats(baseline: PathLike | None, repeats: int) -> None:
    """Raises: UsageError for too few runs for a verdict; as `read_record`."""
    from dxt_replay.replay.regress.record import read_record
    from dxt_replay.replay.regress.statistics import ALPHA, MOST_RUNS, least_pairs, least_runs

    least, counted = None, "runs against this record"
    if baseline is not None and Path(baseline).suffix == ".json":
        least = least_runs(len(read_record(Path(baseline)).counted_runs()))
    else:
        least, counted = least_pairs(), "pairs"
    if least is None or repeats < least:
        few = f"at least {least or MOST_RUNS} {counted} are needed at alpha {ALPHA:g}"
        text = f"--repeats {repeats} can never find a regression: {few}; give --repeats {least or MOST_RUNS} or more"
        raise UsageError(text)


@command(
    name="regress",
    like=regress,
    fails=lambda result, given: result.fails(inconclusive_fails=given["fail_inconclusive"]),
)
def _regress(
    capture: Source,
    targets: Annotated[Sequence[PathLike], Argument("[TARGET]", text=True)] = (),
    *,
    baseline: PathLike | None,
    candidate: PathLike | None,
    comm: Communicator,
    **given: Any,
) -> Regression:
    if len(targets) > 1:
        said = f"which of {' and '.join(map(str, targets))} is which? Give --baseline DIR and --candidate DIR"
        raise UsageError(said)
    if targets and (baseline or candidate):
        raise UsageError(f"{targets[0]} is given beside --baseline or --candidate: give TARGET alone, or both options")
    if targets:
        baseline = candidate = targets[0]
    from dxt_replay.replay.ranks.mpi import first_does

    first_does(comm, lambda: _check_repeats(baseline, given["repeats"]))
    return regress(capture, baseline, candidate, comm=comm, **given)


@command(fails=lambda found, given: found.regressed)
def history(*records: Annotated[PathLike, Argument("RECORD...")], threshold_pct: Threshold = 5.0) -> History:
    """Show how the results of an experiment changed from record to record.

    A RECORD is a file that `regress --record` wrote, or a folder with such .json files. Records of the same work,
    options and directory are a series. At a change point the later runs differ from the earlier ones by more than
    --threshold. Beside it stand changes of the environment, such as another kernel or mount option.

    Exits 1 if the newest record of a series holds a change for the worse: by the metric that decides, the last change
    is a regression. Else 0.

    In Python:

        dxt_replay.history("records").as_json()["series"][0]["headline"]

    Raises: UsageError for a file that is not a record, is damaged or of a newer release, and for folders without one.
    """
    from dxt_replay.replay.regress.history import make_history
    from dxt_replay.replay.regress.statistics import Rule

    return make_history([Path(place) for place in records], Rule(threshold_pct=threshold_pct))
