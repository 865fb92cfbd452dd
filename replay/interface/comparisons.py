"""Compares a replay with its source, and one file system with another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.interface.replays import pacing_of, run_options
from dxt_replay.replay.options.choices import PathLike, PathMaps, RegressChoices, RunChoices, RunPair
from dxt_replay.replay.options.looking import PairChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.output import check_output, new_file
from dxt_replay.traces.paces import Pace
from dxt_replay.traces.workers import Work, workers_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.compare.comparison import Comparison
    from dxt_replay.replay.compare.noise import NoiseFloor
    from dxt_replay.replay.compare.verdict import Thresholds
    from dxt_replay.replay.plan.pacing import RunOptions
    from dxt_replay.replay.ranks.mpi import Communicator
    from dxt_replay.replay.regress.comparison import Regression
    from dxt_replay.replay.regress.experiment import Experiment
    from dxt_replay.replay.regress.record import ExperimentRecord
    from dxt_replay.replay.run.feeder import Progress
    from dxt_replay.traces.store.reader import Capture

PLACES = ("output", "record", "against")
"""Keywords of `regress` that are paths."""


@takes(PairChoices)
def compare(
    source: CaptureOrPath,
    replay: CaptureOrPath,
    thresholds: Thresholds | None = None,
    *,
    executor: Work = None,
    **choices: Unpack[PairChoices],
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

    chosen = filled(PairChoices, choices)
    with ExitStack() as stack:
        recorded, replayed = (stack.enter_context(opened(side)) for side in (source, replay))
        relation = check_pair(recorded, replayed, different_runs=chosen["different_runs"])
        noise = floor_of(stack, chosen["floor"], recorded, replayed) if chosen["floor"] else None
        return compare_captures(
            recorded,
            replayed,
            thresholds or THRESHOLDS,
            relation=relation,
            floor=noise,
            workers=workers_of(executor),
        )


def noise_floor(*pairs: RunPair) -> NoiseFloor:
    """The distance of two runs of the same application, or of two replays of one capture; the worst pair counts.

        dxt_replay.noise_floor(("monday.capture", "tuesday.capture")).measures["similarity.cosine"]

    Raises: UsageError for captures that are not different runs of one job; CaptureError.
    """
    with ExitStack() as stack:
        return floor_of(stack, pairs)


def floor_of(stack: ExitStack, pairs: Sequence[RunPair], *compared: Capture) -> NoiseFloor:
    """The noise floor. `compared`: the source and the replay that it is for, or nothing."""
    from dxt_replay.replay.compare.comparison import noise_floor as of_pairs
    from dxt_replay.replay.compare.noise import check_paces

    runs = [(stack.enter_context(opened(first)), stack.enter_context(opened(second))) for first, second in pairs]
    for replay in compared[1:]:
        check_paces(runs, replay)
    return of_pairs(runs, *compared[:1])


@takes(RegressChoices)
def regress(
    capture: CaptureOrPath,
    baseline: PathLike | None,
    candidate: PathLike,
    *,
    force: bool = False,
    on_staging: Callable[[int, int], None] | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    comm: Communicator | None = None,
    **choices: Unpack[RegressChoices],
) -> Regression:
    """Replay a capture on two targets in turn, and judge whether the application is slower on `candidate`.

    Stages twins that are absent. `against`: a record, whose runs replace those on `baseline`, which is then None.
    `force` replaces earlier replays in `output`, and an earlier `record`. The default of `pace` is steps if the capture
    has training steps, else think.

        dxt_replay.regress("run.capture", "/lustre/old/twin", "/lustre/new/twin").verdict

    Raises: UsageError for numbers out of range, or a record of other work; TargetError; ReplayError.
    """
    from dxt_replay.replay.ranks.mpi import connect, first_does, together
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.regress import experiment as module
    from dxt_replay.replay.regress.record import read_record
    from dxt_replay.replay.regress.statistics import Rule

    comm = comm or connect()
    if choices.get("pace") is None:
        choices.pop("pace", None)
    chosen = filled(RegressChoices, choices)
    how = {name: chosen[name] for name in RunChoices.__annotations__}
    keep, record, against = (None if chosen[name] is None else Path(chosen[name]) for name in PLACES)

    def prepared() -> Experiment:
        how["pace"] = choices.get("pace") or module.default_pace(source).value

        def options(target: PathLike, maps: PathMaps | None) -> RunOptions:
            return run_options(source, target, cold=chosen["cold"], maps=maps, force=force, **how)

        experiment = module.Experiment(
            baseline=None if baseline is None else options(baseline, chosen["baseline_maps"]),
            against=earlier,
            candidate=options(candidate, chosen["candidate_maps"]),
            repeats=chosen["repeats"],
            rule=Rule(threshold_pct=chosen["threshold_pct"]),
            keep=keep,
        )
        module.check_outputs(experiment)
        module.stage_all(module.plan_staging(source, experiment), on_staging)
        return experiment

    def checked() -> ExperimentRecord | None:
        if record is not None:
            check_output(record, force=force)
        return None if against is None else read_record(against)

    earlier = first_does(comm, checked)
    how["pace"] = choices.get("pace") or Pace.THINK.value  # whose options are those of every pace
    together(comm, lambda: pacing_of(capture, how))
    with unwind_on_signals(), opened(capture, comm, keep) as source:
        experiment = first_does(comm, prepared)
        result = module.run_experiment(source, experiment, comm, on_progress or _silent)
        if record is not None:
            first_does(comm, lambda: _write_record(result, record, force=force))
    everywhere: Regression = comm.broadcast(result)
    return everywhere


def _write_record(result: Regression | None, path: Path, *, force: bool) -> None:
    """Raises: TargetError."""
    from dxt_replay.replay.regress.comparison import record_of

    assert result is not None
    with new_file(path, force=force) as stream:
        stream.write(record_of(result).encoded())


def _silent(*progress: object) -> None:
    """Show no progress."""
