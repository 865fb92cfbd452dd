"""Runs an experiment: both sides in turn, in random order within each pair, so that drift of the machine and an effect
of the order itself cancel (randomised blocks; half of the pairs begin with each side)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from dxt_replay.replay.plan.layers import choose_layers
from dxt_replay.replay.plan.pacing import Pace, RunOptions
from dxt_replay.replay.ranks.mpi import Communicator, first_does
from dxt_replay.replay.regress.comparison import BASELINE, CANDIDATE, Regression, compare_sides
from dxt_replay.replay.regress.metrics import MeasuredRun, measure_run, primary_metric
from dxt_replay.replay.regress.record import ExperimentRecord, Side, observe
from dxt_replay.replay.regress.statistics import Rule
from dxt_replay.replay.run.feeder import Progress
from dxt_replay.replay.run.result import RunResult
from dxt_replay.replay.run.story import choose_layers_together, derive_context, run_replay
from dxt_replay.replay.target.stage import StagePlan, check_staged, plan_stage
from dxt_replay.replay.target.targets import check_there, open_target, same_place
from dxt_replay.traces.errors import TargetError, UsageError
from dxt_replay.traces.output import check_output
from dxt_replay.traces.schema import SPAN_KINDS, codes
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.writer import check_capture_output
from dxt_replay.traces.units import format_bytes

SEED = 1
"""Of the order of the runs. It is the same in every experiment, so that the sessions of a history differ in nothing."""

WARM_UPS = 1
"""First runs of each side, which do not count."""

Report = Callable[[str, Progress], None]
"""Callback that shows progress: the name of the run, and how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The user's choices for an experiment.

    `baseline`, `candidate`: differ in target and maps alone. `against`: a record, where there is no baseline.
    `repeats`: pairs of runs. `keep`: a directory for the replays, which are deleted when None.

    Raises: UsageError for sides of two kinds.
    """

    baseline: RunOptions | None
    candidate: RunOptions
    against: ExperimentRecord | None = None
    repeats: int = 10
    rule: Rule = field(default_factory=Rule)
    keep: Path | None = None

    def __post_init__(self) -> None:
        if self.baseline and self.baseline.on_objects != self.candidate.on_objects:
            raise UsageError(
                "one side is a directory and the other an object store, which answer different operations: give two "
                "of a kind"
            )

    @property
    def sides(self) -> Mapping[Side, RunOptions]:
        baseline: dict[Side, RunOptions] = {} if self.baseline is None else {BASELINE: self.baseline}
        return {**baseline, CANDIDATE: self.candidate}

    def order(self) -> list[tuple[int, Side]]:
        """(pair, side) of each run."""
        return schedule(self.repeats, tuple(self.sides))


def run_experiment(
    capture: Capture, experiment: Experiment, comm: Communicator, report: Report = lambda label, progress: None
) -> Regression | None:
    """All runs, then the result on process 0; None on the others. A run that is stopped ends the experiment.

    Raises: as `run_replay`; UsageError where processes of several nodes have no common directory to write to.
    """
    chosen, keep, sides, against = experiment.candidate, experiment.keep, experiment.sides, experiment.against

    def begun() -> tuple[ExperimentRecord, list[str]]:
        primary, processes = primary_metric(capture, chosen.pacing.pace), comm.size
        return observe(capture, sides, against, processes=processes, primary=primary, warmup=WARM_UPS, seed=SEED)

    conditions, differences = first_does(comm, begun)
    layers = choose_layers_together(capture, comm, api=chosen.api)
    context = derive_context(capture, comm, layers, chosen.pacing.pace)
    order = experiment.order()
    runs: list[MeasuredRun] = []
    with output_folder(keep, comm, "regress") as folder:
        for number, (pair, side) in enumerate(order, start=1):
            _settle(experiment, comm)
            progress = partial(report, f"run {number} of {len(order)}, {side}")
            result = run_replay(capture, _output(folder, pair, side, number), sides[side], comm, progress, context)

            runs.append(first_does(comm, partial(_measured, result, side, pair, kept=keep is not None)))
            if runs[-1].stopped:
                break
    if comm.rank:
        return None
    baseline = experiment.baseline or chosen
    return compare_sides(
        runs,
        conditions,
        rule=experiment.rule,
        against=against,
        same_place=against is None and len({(same_place(each.target), each.maps) for each in sides.values()}) == 1,
        differences=differences,
        capture=str(capture.path),
        baseline=str(baseline.target) if against is None else against.targets["candidate"].target,
        candidate=str(chosen.target),
        repeats=experiment.repeats,
    )


def _measured(result: RunResult | None, side: Side, pair: int, *, kept: bool) -> MeasuredRun:
    """On process 0, which has the result; deletes the capture of the run where it is not kept."""
    assert result is not None
    run = measure_run(open_capture(result.capture), result, side=side, pair=pair, kept=kept)
    if not kept:
        shutil.rmtree(result.capture, ignore_errors=True)
    return run


def schedule(repeats: int, sides: Sequence[Side] = (BASELINE, CANDIDATE)) -> list[tuple[int, Side]]:
    """(pair, side) of each run in order: `WARM_UPS` runs of each side as pair 0, then pairs 1 to `repeats`.

    As many pairs begin with one side as with the other (one more where `repeats` is odd); which ones, chance decides.
    A single side has a run in place of a pair.
    """
    order = [(0, side) for _ in range(WARM_UPS) for side in sides]
    rng = np.random.default_rng(SEED)
    first = np.arange(repeats) % 2
    if repeats % 2:
        first = (first + rng.integers(2)) % 2
    rng.shuffle(first)
    for pair, place in enumerate(first.tolist(), start=1):
        order += [(pair, side) for side in (sides[::-1] if place else sides)]
    return order


def default_pace(capture: Capture) -> Pace:
    """The pace that is nearest to the application: `steps` if the capture has training steps, else `think`."""
    has_steps = bool((codes(capture.spans, "kind") == SPAN_KINDS.index("step")).any())
    return Pace.STEPS if has_steps else Pace.THINK


def plan_staging(capture: Capture, experiment: Experiment) -> list[StagePlan]:
    """A plan of staging for each target that lacks files of the twin.

    Raises: TargetError when a target does not exist, or lacks room, both together where they share a file system.
    """
    plans: dict[str | Path, StagePlan] = {}
    for options in experiment.sides.values():
        check_there(options.target)
        target = same_place(options.target)
        chunks = choose_layers(capture, api=options.api).chunks if options.api == "hdf5" else None
        try:
            check_staged(capture, options.target, options.maps, chunks)
        except TargetError:
            if target not in plans:
                plans[target] = plan_stage(capture, options.target, maps=options.maps)
    check_room(list(plans.values()))
    return list(plans.values())


def check_room(plans: Sequence[StagePlan]) -> None:
    """Raises: TargetError where a plan does not fit, or two that share a file system do not fit together."""
    for plan in plans:
        if plan.shortage:
            raise TargetError(f"no room under {plan.target}: {plan.shortage}; choose another directory, or free space")
    if len(plans) < 2 or len({plan.room.store for plan in plans}) > 1:
        return
    needed, free = sum(plan.bytes_on_disk for plan in plans), plans[0].room.free_bytes
    if free is not None and needed > free:
        places = " and ".join(str(plan.target) for plan in plans)
        raise TargetError(
            f"no room under {places}, which share a file system: {format_bytes(needed)} are needed and "
            f"{format_bytes(free)} are free"
        )


def _output(folder: Path, pair: int, side: str, number: int) -> Path:
    """Path of the capture of a run; `number` counts all runs."""
    return folder / f"{f'pair-{pair:03d}' if pair else f'warmup-{number:03d}'}-{side}.capture"


@contextmanager
def output_folder(keep: Path | None, comm: Communicator, command: str) -> Iterator[Path]:
    """The directory that all processes write replays to; a temporary one goes when the context ends. Collective."""
    first_on_node = comm.gather(comm.first_on_node())

    def made() -> Path:
        if keep is None and sum(first_on_node or ()) > 1:
            raise UsageError("processes on several nodes need a common directory for their replays: give -o DIR")
        try:
            if keep is None:
                return Path(tempfile.mkdtemp(prefix=f"dxt-replay-{command}-"))
            keep.mkdir(exist_ok=True)
        except OSError as error:
            place = keep or tempfile.gettempdir()
            raise TargetError(f"cannot make a directory for the replays in {place}: {error.strerror}") from error
        return keep.absolute()

    folder = first_does(comm, made)
    try:
        yield folder
    finally:
        if keep is None and comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def check_outputs(experiment: Experiment) -> None:
    """Refuse the place of the kept replays before the first run.

    Raises: TargetError when one of them exists and is not to be replaced, or the directory cannot be made.
    """
    keep = experiment.keep
    if keep is not None and not keep.is_dir():
        check_output(keep)
    elif keep is not None:
        for number, (pair, side) in enumerate(experiment.order(), start=1):
            check_capture_output(_output(keep, pair, side, number), force=experiment.sides[side].force)


def _settle(experiment: Experiment, comm: Communicator) -> None:
    """Let cached writes of the previous run reach the storage, so that the next run does not pay. Collective."""
    if comm.first_on_node():
        for target in {options.target for options in experiment.sides.values()}:
            # Where it fails the next run measures the cache.
            with suppress(TargetError), open_target(target) as opened:
                opened.sync()
    comm.barrier()
