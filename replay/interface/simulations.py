"""Predicts run times without a file system."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.interface.replays import check_profiled
from dxt_replay.replay.options.choices import SPEEDS, SimulateChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import ContradictionError, UsageError
from dxt_replay.traces.paces import Pace
from dxt_replay.traces.part import Part
from dxt_replay.traces.plain import Result
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.units import ns_to_seconds
from dxt_replay.traces.workers import Work, Workers, workers_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.plan.pacing import Pacing
    from dxt_replay.replay.simulation.check import Agreement
    from dxt_replay.replay.simulation.model import StorageModel
    from dxt_replay.replay.simulation.predict import Prediction, SimulatedJob
    from dxt_replay.traces.store.reader import Capture

Progress = Callable[[str, int, int], None]
"""Takes the current work, and of it what is done and all."""

PIECE_OPERATIONS = 1 << 18
"""Operations whose items a worker derives at once and sends back: up to 30 MB of items, or those of one larger rank."""

OPERATION_WORK, RANK_WORK = 4, 1 << 14
"""Work of deriving the items of an operation and of a rank, in operations of a pass that reads them once."""

MAX_RANKS = 1 << 20
"""Most ranks that are simulated."""


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
        recorded_s = ns_to_seconds(self.recorded_ns)
        return 100.0 * (ns_to_seconds(self.prediction.elapsed_ns) / recorded_s - 1.0) if recorded_s else None

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay simulate --json` prints."""
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
            "doubt": asdict(self.prediction.job.doubt),
            **self.prediction.as_json(),
            "steps": [{"step": each.step, **each.as_json()} for each in self.prediction.steps()],
            "scaling": [each.as_json() for each in self.scaling],
            "warnings": list(self.warnings),
        }


@takes(SimulateChoices)
def simulate(
    capture: CaptureOrPath,
    storage: str | Path | StorageModel,
    *,
    executor: Work = None,
    on_progress: Progress | None = None,
    **choices: Unpack[SimulateChoices],
) -> Simulated:
    """Predict how long a capture would take on storage that a model describes (docs/simulation.md).

    `storage`: a file, the name of a shipped model, or a `StorageModel`. `check`: a directory or `s3://` URL on the real
    storage, where the first `check_seconds` are replayed; if their time differs, the interval becomes wider. Without
    `check` only the capture is read. The workers of `executor` derive what the ranks do; the prediction does not depend
    on their number. `on_progress` gets `deriving` with ranks or `simulating` with operations: done, and all.

        dxt_replay.simulate("run.capture", "nvme").prediction.elapsed_ns

    Raises: UsageError for an invalid storage model, and for a capture without training steps. With `check` also
    TargetError and ReplayError; ContradictionError means that the replay contradicts the model.
    """
    from dxt_replay.replay.plan.pacing import Pacing
    from dxt_replay.replay.simulation.model import StorageModel, read_storage_model
    from dxt_replay.replay.simulation.predict import predict
    from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
    from dxt_replay.traces.measures.span_times import copies_alike, training_ns
    from dxt_replay.traces.records import generated

    chosen = filled(SimulateChoices, choices)
    runs, ranks, strong, seconds = chosen["runs"], chosen["ranks"], chosen["strong"], chosen["check_seconds"]
    if any(not 1 <= count <= MAX_RANKS for count in ranks):
        raise UsageError(f"a simulation needs 1 to {MAX_RANKS} ranks")
    if not 0 < seconds < 86_400:
        raise UsageError(f"a check of {seconds:g} seconds is not possible: --check-seconds 5")
    if strong and not ranks:
        raise UsageError("strong scaling needs numbers of ranks: --ranks 2,4,8")
    model = storage if isinstance(storage, StorageModel) else read_storage_model(storage)
    speeds = {name: chosen[name] for name in SPEEDS}
    show: Progress = on_progress or (lambda what, done, total: None)
    derive = _Derive(
        pacing=Pacing(pace=Pace.STEPS, **speeds),
        workers=workers_of(executor),
        show=show,
    )
    simulating = partial(show, "simulating")
    check_profiled(capture)
    with opened(capture) as source:
        job = derive(source)
        begin_ns, end_ns = source.time_span_ns
        predicted = predict(job, model, ranks=job.ranks, seeds=runs, on_progress=simulating)
        if chosen["check"] is not None:
            found = _checked(source, model, predicted, chosen, derive)
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
    source: Capture, model: StorageModel, predicted: Prediction, chosen: Mapping[str, Any], derive: _Derive
) -> Agreement:
    """Simulate a window of the capture, and replay it on the target of the check. Raises: ContradictionError."""
    from dxt_replay.replay.interface.checking import replayed_ns
    from dxt_replay.replay.simulation.check import Agreement, first_steps, refusal
    from dxt_replay.replay.simulation.predict import predict
    from dxt_replay.replay.target.targets import target_named

    steps = first_steps(predicted.steps(), chosen["check_seconds"])
    part = source if steps is None else part_of(source, Part(steps=steps))
    job = derive(part)
    window = predict(job, model, ranks=job.ranks, seeds=predicted.seeds)
    same = {name: chosen[name] for name in SPEEDS}
    found = Agreement(
        steps=steps,
        simulated_ns=window.elapsed_ns,
        free_ns=window.free.elapsed_ns,
        measured_ns=replayed_ns(part, target_named(chosen["check"] or ""), {"pace": Pace.STEPS.value, **same}),
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
