"""Predicts: `transform` of a capture, `simulate` on described storage, `calibrate` of such a description."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dxt_replay.replay.commands import session
from dxt_replay.replay.commands.captures import PartOption, Source, opened
from dxt_replay.replay.commands.face import Force, Option, PathLike, command, output, public
from dxt_replay.replay.commands.replaying import check_profiled, run, stage, unstage
from dxt_replay.traces.errors import ContradictionError, ReplayError, TargetError, UsageError
from dxt_replay.traces.paces import Pace
from dxt_replay.traces.plain import Result

if TYPE_CHECKING:
    from dxt_replay.replay.calibration.calibration import Calibration
    from dxt_replay.replay.calibration.published import Published
    from dxt_replay.replay.plan.pacing import Pacing
    from dxt_replay.replay.simulation.check import Agreement
    from dxt_replay.replay.simulation.model import StorageModel
    from dxt_replay.replay.simulation.predict import Prediction, SimulatedJob
    from dxt_replay.replay.transform.rewrite import Transformed
    from dxt_replay.traces.store.reader import Capture
    from dxt_replay.traces.workers import Work, Workers

Progress = Callable[[str, int, int], None]
"""Takes the current work, and of it what is done and all."""

PIECE_OPERATIONS = 1 << 18
"""Operations whose items a worker derives at once and sends back: up to 30 MB of items, or those of one larger rank."""

OPERATION_WORK, RANK_WORK = 4, 1 << 14
"""Work of deriving the items of an operation and of a rank, in operations of a pass that reads them once."""

MAX_RANKS = 1 << 20
"""Most ranks that are simulated."""


MOST_COUNTS = 64
"""Most numbers of ranks in one scaling table."""

CHECK_NAME = ".dxt-replay-check-"
"""How the name of the directory of a check begins; a random number follows."""


@command(following=lambda result, given: ("stage", given["output"], "--target", "TARGET"), tidy=True)
def transform(
    capture: Source,
    output: Annotated[PathLike, output("OUT.capture", "The capture to write, such as what-if.capture.")],
    *,
    chunk: Annotated[int | str | None, Option("Store HDF5 data in chunks of this size, such as 1MiB.", "SIZE")] = None,
    compression: Annotated[
        str | None,
        Option("gzip:0.6 stores 60 % of the bytes; gzip:0.6:250MB/s also sets the decoder's speed.", "NAME:RATIO"),
    ] = None,
    transfer_size: Annotated[
        int | str | None, Option("Read streams in requests of this size, such as 1MiB.", "SIZE")
    ] = None,
    readers: Annotated[int | None, Option("Readers of each rank; 0: the training thread itself reads.", "N")] = None,
    prefetch: Annotated[int | None, Option("Batches that readers may be ahead of the training loop.", "N")] = None,
    compute_speed: Annotated[float, Option("Compute X times as fast, such as 4.", "X")] = 1.0,
    ranks: Annotated[int | None, Option("Share the work among N ranks.", "N")] = None,
    weak: Annotated[bool, Option("With --ranks: give each rank as much work as before.")] = False,
    force: Force = False,
) -> Transformed:
    """Write a capture (or a .darshan log with a profile) as it would be if the application read in another way.

    The changes are applied in the order of the options below. The result is a capture: stage it, replay it with
    `run --pace steps`, compare it. The assumptions are printed.

    In Python:

        dxt_replay.transform("run.capture", "what-if.capture", transfer_size="1MiB", readers=8).assumptions

    Sizes are bytes, or text such as "1MiB". None and 1.0 change nothing.
    Raises: UsageError for a change that has no meaning for the capture; TargetError for `output`.
    """
    from dxt_replay.replay.transform.changes import Changes, parse_compression
    from dxt_replay.replay.transform.rewrite import transform_capture
    from dxt_replay.traces.units import parse_bytes

    changes = Changes(
        chunk_bytes=None if chunk is None else parse_bytes(str(chunk), "--chunk"),
        compression=None if compression is None else parse_compression(compression),
        transfer_bytes=None if transfer_size is None else parse_bytes(str(transfer_size), "--transfer-size"),
        readers=readers,
        prefetch=prefetch,
        compute_speed=compute_speed,
        ranks=ranks,
        weak=weak,
    )
    with session.status("transforming"), opened(capture) as source:
        return transform_capture(source, changes, Path(output), force=force)


# ------------------------------------------------------------------------------------------ calibrate
def _measuring(passed: float, whole: float, now: str) -> str:
    return f"measuring {now}, {whole - passed:.0f} s left"


@public
def calibrate(
    target: Annotated[
        PathLike,
        Option(
            "Directory or s3:// URL to measure; what is written below it is removed again. Or a folder of results of "
            "DLIO or MLPerf Storage.",
            "DIR",
            text=True,
        ),
    ],
    output: PathLike | None = None,
    *,
    minutes: Annotated[float, Option("Time to measure for; more narrows the intervals.")] = 3.0,
    force: Force = False,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> Calibration | Published:
    """Measure a file system or an object store, so that `simulate` can predict a training run on it.

    Issues reads, writes and other calls of many sizes, up to 64 in flight, with the engine of a replay. The page cache
    is dropped before cold reads. On an object store: GETs of many sizes on up to 64 connections, PUT, HEAD and other
    requests; without the right to write, GETs and HEADs of a staged twin. The result lists what was not measured.

    Nothing else should use the machine or the storage meanwhile.

    A folder of results has runs of one workload, with one or more numbers of ranks. It is read, and nothing is
    measured: the model has what a step and a meeting cost the client, and a limit of the storage where one shows.

    In Python:

        dxt_replay.calibrate("/scratch", "measured.json").model

    `output`: the file of the storage model; None writes none. `on_progress` gets the seconds passed, the seconds in
    all, and the current measurement.
    Raises: UsageError for a time that is too short; TargetError for a target or output that cannot be used.
    """
    from dxt_replay.replay.calibration.calibration import calibrate as measure
    from dxt_replay.replay.calibration.calibration import calibrate_objects
    from dxt_replay.replay.calibration.published import is_published, published_results
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.target.targets import target_named
    from dxt_replay.traces.output import check_output, new_file

    place, named = None if output is None else Path(output), target_named(target)
    if place is not None:
        check_output(place, force=force)
    with unwind_on_signals(), session.progress(_measuring, on_progress) as report:
        done: Calibration | Published
        if isinstance(named, str):
            done = calibrate_objects(named, 60.0 * minutes, on_progress=report)
        elif is_published(Path(named)):
            done = published_results(Path(named))
        else:
            done = measure(named, 60.0 * minutes, on_progress=report)
        if place is not None:
            with new_file(place, force=force) as file:
                file.write((json.dumps(done.document(), indent=1, allow_nan=False) + "\n").encode())
    return done


@command(name="calibrate", like=calibrate)
def _calibrate(
    *,
    output: Annotated[PathLike, output("MODEL.json", "The storage model to write, such as measured.json.")],
    **given: Any,
) -> int:
    from dxt_replay.replay.show.notebook import sections_of

    done = calibrate(output=output, **given)
    if session.current().as_json:
        session.print_json({"output": str(output), **done.as_json()})
    else:
        session.print_answer(sections_of(done, str(output)))
    return 0


# ------------------------------------------------------------------------------------------- simulate
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulated(Result):
    """What `simulate` found. `generated`: as of `traces.records`. `recording_wait_ns`: as of
    `traces.measures.log_waits`. `scaling`: a prediction for each number of ranks that was asked for."""

    capture: Path
    storage: StorageModel
    prediction: Prediction
    scaling: Sequence[Prediction]
    recorded_ns: int
    recorded_training_ns: int
    recording_wait_ns: int | None
    warnings: tuple[str, ...]
    generated: str | None = None

    @property
    def change_pct(self) -> float | None:
        """Excess of the predicted time over the recorded one, per cent; None if nothing was recorded."""
        from dxt_replay.traces.units import ns_to_seconds

        recorded_s = ns_to_seconds(self.recorded_ns)
        return 100.0 * (ns_to_seconds(self.prediction.elapsed_ns) / recorded_s - 1.0) if recorded_s else None

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay simulate --json` prints."""
        from dxt_replay.traces.units import ns_to_seconds

        return {
            "capture": str(self.capture),
            "storage": {
                "name": self.storage.name,
                "about": self.storage.about,
                "uncertainty_pct": 100.0 * self.storage.uncertainty,
            },
            "recorded_s": ns_to_seconds(self.recorded_ns),
            "recorded_training_s": ns_to_seconds(self.recorded_training_ns),
            "recording_wait_s": None if self.recording_wait_ns is None else ns_to_seconds(self.recording_wait_ns),
            "change_pct": self.change_pct,
            "doubt": asdict(self.prediction.doubt),
            **self.prediction.as_json(),
            "steps": [asdict(each) for each in self.prediction.steps()],
            "scaling": [each.as_json() for each in self.scaling],
            "warnings": list(self.warnings),
        }


def rank_counts(text: str, flag: str = "--ranks") -> list[int]:
    """The numbers of `128,256,...,8192`. Three dots continue the ratio of the two numbers before, or their difference.

    Raises: UsageError for anything else.
    """
    words = [word.strip() for word in text.split(",")]
    counts: list[int] = []
    for place, word in enumerate(words):
        if word == "..." and len(counts) >= 2 and place + 1 < len(words) and words[place + 1].isdecimal():
            (first, value), last = counts[-2:], int(words[place + 1])
            if not first < value < last:
                raise UsageError(f"{flag} {text!r}: the numbers around ... must ascend")
            ratio, step = (value // first, 0) if value % first == 0 else (1, value - first)
            while (value := value * ratio + step) < last and len(counts) <= MOST_COUNTS:
                counts.append(value)
        elif word.isdecimal() and int(word) > 0:
            counts.append(int(word))
        else:
            raise UsageError(f"{flag} {text!r}: give numbers of ranks, such as 128,256,...,8192")
    if len(counts) > MOST_COUNTS:
        raise UsageError(f"{flag} {text!r} has {len(counts)} numbers; the limit is {MOST_COUNTS}")
    return counts


@command()
def simulate(
    capture: Source,
    storage: Annotated[
        str | Path | StorageModel,
        Option("A YAML or JSON file, or a shipped model: null, nvme, theta_lustre.", "MODEL", text=True),
    ],
    *,
    ranks: Annotated[
        Sequence[int], Option("For these numbers of ranks too: 128,256,...,8192.", "LIST", parse=rank_counts)
    ] = (),
    strong: Annotated[bool, Option("With --ranks: share the recorded work.")] = False,
    runs: Annotated[int, Option("Simulations with different seeds if the model has jitter.", flags="", least=1)] = 5,
    speed: Annotated[float, Option("Shorten every gap: 2 halves it.")] = 1.0,
    check: Annotated[
        str | Path | None,
        Option(
            "Replay 5 s on this real storage. A difference widens the interval; a contradiction fails.",
            "TARGET",
            text=True,
        ),
    ] = None,
    check_seconds: Annotated[float, Option("Predicted duration of the replay of `check`.", flags="")] = 5.0,
    part: PartOption = (),
    executor: Work = None,
    on_progress: Progress | None = None,
) -> Simulated:
    """Predict how long a capture would take on storage that a model describes.

    Only --check touches a file system.

    The operations of `run --pace steps` go through a storage model (docs/simulation.md explains its keys). If the
    model states an uncertainty or a jitter, the predicted time has an interval. For a recorded job the interval
    includes an error of 10 % of the causal model. The page cache is empty at the start.

    In Python:

        dxt_replay.simulate("run.capture", "nvme").prediction.elapsed_ns

    The workers of `executor` derive what the ranks do; the prediction does not depend on their number. `on_progress`
    gets `deriving` with ranks or `simulating` with operations: done, and all.
    Raises: UsageError for an invalid storage model, and for a capture without training steps. With `check` also
    TargetError and ReplayError; ContradictionError means that the replay contradicts the model.
    """
    from dxt_replay.replay.plan.pacing import Pacing
    from dxt_replay.replay.simulation.model import StorageModel, read_storage_model
    from dxt_replay.replay.simulation.predict import predict
    from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
    from dxt_replay.traces.measures.span_times import copies_alike, training_ns
    from dxt_replay.traces.records import generated
    from dxt_replay.traces.workers import workers_of

    if any(not 1 <= count <= MAX_RANKS for count in ranks):
        raise UsageError(f"a simulation needs 1 to {MAX_RANKS} ranks")
    if not 0 < check_seconds < 86_400:
        raise UsageError(f"a check of {check_seconds:g} seconds is not possible: check_seconds=5")
    if strong and not ranks:
        raise UsageError("strong scaling needs numbers of ranks: --ranks 2,4,8")
    model = storage if isinstance(storage, StorageModel) else read_storage_model(storage)
    check_profiled(capture)
    said = "simulating" if check is None else "simulating, and replaying the first seconds"
    with (
        session.status(said),
        session.progress(session.of_phases({"deriving": "ranks", "simulating": "operations"}), on_progress) as show,
        opened(capture, part=part) as source,
    ):
        simulating = partial(show, "simulating")
        derive = _Derive(pacing=Pacing(pace=Pace.STEPS, speed=speed), workers=workers_of(executor), show=show)
        job = derive(source)
        begin_ns, end_ns = source.time_span_ns
        predicted = predict(job, model, ranks=job.ranks, seeds=runs, on_progress=simulating)
        if check is not None:
            found = _checked(source, model, predicted, check, check_seconds, derive)
            predicted = replace(predicted, checked=found)
        return Simulated(
            generated=generated(source.info),
            capture=source.named,
            storage=model,
            prediction=predicted,
            scaling=[
                predict(
                    _shared_among(source, count, derive) if strong else job,
                    model,
                    ranks=count,
                    seeds=1,
                    on_progress=simulating,
                )
                for count in ranks
            ],
            recorded_ns=end_ns - begin_ns,
            recorded_training_ns=training_ns(source.spans) or 0,
            recording_wait_ns=longest_log_wait_ns(source.info, source.spans),
            warnings=(*job.warnings, *(() if strong else copies_alike(source.spans, max(ranks, default=0)))),
        )


def _checked(
    source: Capture, model: StorageModel, predicted: Prediction, target: str | Path, seconds: float, derive: _Derive
) -> Agreement:
    """Simulate a window of the capture, and replay it on the target of the check. Raises: ContradictionError."""
    from dxt_replay.replay.simulation.check import Agreement, first_steps, refusal
    from dxt_replay.replay.simulation.predict import predict
    from dxt_replay.replay.target.targets import target_named
    from dxt_replay.traces.part import Part
    from dxt_replay.traces.store.part_capture import part_of

    steps = first_steps(predicted.steps(), seconds)
    part = source if steps is None else part_of(source, Part(steps=steps))
    job = derive(part)
    window = predict(job, model, ranks=job.ranks, seeds=predicted.seeds)
    found = Agreement(
        steps=steps,
        simulated_ns=window.elapsed_ns,
        free_ns=window.free.elapsed_ns,
        measured_ns=_replayed_ns(part, target_named(target), derive.pacing.speed),
    )
    if found.verdict == "contradicts":
        raise ContradictionError(refusal(found, model.name))
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Derive:
    """Makes the lanes of a capture, with these choices. Raises: CaptureError without training steps, or for damage."""

    pacing: Pacing
    workers: Workers
    show: Progress

    def __call__(self, source: Capture) -> SimulatedJob:
        from dxt_replay.replay.causal.ranks import RankItems, items_of_ranks
        from dxt_replay.replay.ranks.mpi import Solo
        from dxt_replay.replay.run.story import choose_layers_together
        from dxt_replay.replay.simulation.predict import simulated_job
        from dxt_replay.traces.measures.span_times import computed_in_loops
        from dxt_replay.traces.store.part_capture import rank_pieces

        layers, origin_ns = choose_layers_together(source, Solo(), api="auto"), source.time_span_ns[0]
        derive = partial(items_of_ranks, source, layers=layers, origin_ns=origin_ns, pacing=self.pacing)
        found: list[RankItems] = []
        pieces = rank_pieces(source, PIECE_OPERATIONS)
        work = OPERATION_WORK * source.stored_rows() + RANK_WORK * len(source.ranks)
        with self.workers.results(derive, pieces, operations=work, named=_named) as results:
            for ranks in results:
                found += ranks
                self.show("deriving", len(found), len(source.ranks))
        return simulated_job(source, found, self.pacing, computed_in_loops(source.spans)[0])


def _named(ranks: Sequence[int]) -> str:
    return f"ranks {ranks[0]} to {ranks[-1]}"


def _shared_among(source: Capture, ranks: int, derive: _Derive) -> SimulatedJob:
    """The lanes of a capture whose work `ranks` ranks share. Raises: UsageError if the work cannot be shared."""
    from dxt_replay.replay.transform.changes import Changes
    from dxt_replay.replay.transform.rewrite import transform_capture
    from dxt_replay.traces.store.reader import open_capture

    with tempfile.TemporaryDirectory(prefix="dxt-replay-simulate-") as folder:
        output = Path(folder) / "shared.capture"
        transform_capture(source, Changes(ranks=ranks), output)
        return derive(open_capture(output, named=source.named))


def _replayed_ns(part: Capture, target: str | Path, speed: float) -> int:
    """Duration of a cold replay of `part` below `target`.

    It reads the twin that is staged there if that has all files. Else it stages a directory of its own, which is
    always removed.
    Raises: TargetError if the files do not fit; ReplayError if operations fail.
    """
    from dxt_replay.replay.ranks.stopping import unwind_on_signals

    with unwind_on_signals(), _scratch(target) as (place, output):
        twin = target
        if not _is_staged(part, target):
            twin = place
            stage(part, twin)
        result = run(part, twin, output, pace=Pace.STEPS.value, speed=speed)
    if not result.succeeded:
        raise ReplayError(
            f"the replay for --check below {target} did not do the recorded work: {'; '.join(result.warnings)}"
        )
    if result.disturbed:
        raise ReplayError(f"the replay for --check below {target} was {result.disturbed}: check again")
    return result.tally.last_end_ns


@contextmanager
def _scratch(target: str | Path) -> Iterator[tuple[str | Path, Path]]:
    """(Target of a twin, path of a replay): a new directory below the target, or a new prefix and a local directory."""
    from dxt_replay.replay.calibration.scratch import scratch_below
    from dxt_replay.replay.target.targets import open_target, place_below

    if isinstance(target, Path):
        with scratch_below(target, CHECK_NAME, "a check") as (folder, _):
            (folder / "twin").mkdir()
            yield folder / "twin", folder / "replay.capture"
        return
    place = place_below(target, f"{CHECK_NAME}{secrets.token_hex(6)}")
    with tempfile.TemporaryDirectory(prefix="dxt-replay-check-") as folder:
        try:
            yield place, Path(folder) / "replay.capture"
        finally:
            with open_target(place) as found:
                staged = found.exists
            if staged:
                unstage(place)


def _is_staged(part: Capture, target: str | Path) -> bool:
    try:
        planned = stage(part, target, dry_run=True).plan
    except TargetError:
        return False
    return bool(len(planned.already_staged)) and not len(planned.to_write)
