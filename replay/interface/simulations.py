"""Predicts run times without a file system."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.interface.replays import check_profiled
from dxt_replay.replay.options.choices import SPEEDS, SimulateChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import ContradictionError, UsageError
from dxt_replay.traces.paces import Pace
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.units import ns_to_seconds

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.plan.pacing import Pacing
    from dxt_replay.replay.simulation.agreement import Agreement
    from dxt_replay.replay.simulation.prediction import Prediction
    from dxt_replay.replay.simulation.simulated_job import SimulatedJob
    from dxt_replay.replay.simulation.storage_model import StorageModel
    from dxt_replay.traces.store.reader import Capture

MAX_RANKS = 1 << 20
"""Most ranks that are simulated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulated:
    """What `simulate` found. `recording_wait_ns`: as of `traces.measures.log_waits`. `scaling`: a prediction for each
    number of ranks that was asked for."""

    capture: Path
    storage: StorageModel
    prediction: Prediction
    scaling: Sequence[Prediction]
    recorded_ns: int
    recorded_training_ns: int
    recording_wait_ns: int | None
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay simulate --json` prints."""
        found, recorded = self.prediction.as_json(), ns_to_seconds(self.recorded_ns)
        return {
            "capture": str(self.capture),
            "storage": {
                "name": self.storage.name,
                "about": self.storage.about,
                "uncertainty_pct": 100.0 * self.storage.uncertainty,
            },
            "recorded_s": recorded,
            "recorded_training_s": ns_to_seconds(self.recorded_training_ns),
            "recording_wait_s": None if self.recording_wait_ns is None else ns_to_seconds(self.recording_wait_ns),
            "change_pct": 100.0 * (found["elapsed_s"] / recorded - 1.0) if recorded else None,
            **found,
            "steps": self.prediction.steps(),
            "scaling": [each.as_json() for each in self.scaling],
            "warnings": list(self.warnings),
        }


@takes(SimulateChoices)
def simulate(
    capture: CaptureOrPath, storage: str | Path | StorageModel, **choices: Unpack[SimulateChoices]
) -> Simulated:
    """Predict how long a capture would take on storage that a model describes (docs/simulation.md).

    `storage`: a file, the name of a shipped model, or a `StorageModel`. `check`: a directory on the real storage, in
    which the first `check_seconds` are replayed; if their time differs, the interval becomes wider. Without `check`
    only the capture is read.

        dxt_replay.simulate("run.capture", "nvme").prediction.elapsed_ns

    Raises: UsageError for an invalid storage model, and for a capture without training steps. With `check` also
    TargetError and ReplayError; ContradictionError means that the replay contradicts the model.
    """
    from dxt_replay.replay.plan.pacing import Pacing
    from dxt_replay.replay.simulation.model_file import read_storage_model
    from dxt_replay.replay.simulation.prediction import predict
    from dxt_replay.replay.simulation.storage_model import StorageModel
    from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
    from dxt_replay.traces.measures.span_times import training_ns

    chosen = filled(SimulateChoices, choices)
    runs, ranks, strong, seconds = chosen["runs"], chosen["ranks"], chosen["strong"], chosen["check_seconds"]
    if runs < 1 or any(not 1 <= count <= MAX_RANKS for count in ranks):
        raise UsageError(f"a simulation needs at least one run, and 1 to {MAX_RANKS} ranks")
    if not 0 < seconds < 86_400:
        raise UsageError(f"a check of {seconds:g} seconds is not possible: --check-seconds 5")
    if strong and not ranks:
        raise UsageError("strong scaling needs numbers of ranks: --ranks 2,4,8")
    model = storage if isinstance(storage, StorageModel) else read_storage_model(storage)
    speeds = {name: chosen[name] for name in SPEEDS}
    pacing, how = Pacing(pace=Pace.STEPS, **speeds), (chosen["compute"], chosen["reconstruct"])
    check_profiled(capture)
    with opened(capture) as source:
        job = _job(source, pacing, *how)
        begin_ns, end_ns = source.time_span_ns
        predicted = predict(job, model, ranks=job.ranks, seeds=runs)
        if chosen["check"] is not None:
            found = _checked(source, model, predicted, chosen, pacing)
            predicted = replace(predicted, checked=found)
        return Simulated(
            capture=source.named,
            storage=model,
            prediction=predicted,
            scaling=[
                predict(_shared_among(source, count, pacing, *how) if strong else job, model, ranks=count, seeds=1)
                for count in ranks
            ],
            recorded_ns=end_ns - begin_ns,
            recorded_training_ns=training_ns(source.spans) or 0,
            recording_wait_ns=longest_log_wait_ns(source.info, source.spans),
            warnings=job.steps.warnings,
        )


def _checked(
    source: Capture, model: StorageModel, predicted: Prediction, chosen: Mapping[str, Any], pacing: Pacing
) -> Agreement:
    """Simulate a window of the capture, and replay it on the target of the check. Raises: ContradictionError."""
    from dxt_replay.replay.interface.checking import replayed_ns
    from dxt_replay.replay.simulation.agreement import Agreement, first_steps, refusal
    from dxt_replay.replay.simulation.prediction import predict

    steps = first_steps(predicted.steps(), chosen["check_seconds"])
    part = source if steps is None else part_of(source, Part(steps=steps))
    job = _job(part, pacing, chosen["compute"], chosen["reconstruct"])
    window = predict(job, model, ranks=job.ranks, seeds=predicted.seeds)
    same = {name: chosen[name] for name in (*SPEEDS, "compute", "reconstruct")}
    target = Path(chosen["check"] or "")
    found = Agreement(
        steps=steps,
        simulated_ns=window.elapsed_ns,
        free_ns=window.free.elapsed_ns,
        measured_ns=replayed_ns(part, target, {"pace": Pace.STEPS.value, **same}),
    )
    if found.verdict == "contradicts":
        raise ContradictionError(refusal(found, model))
    return found


def _job(source: Capture, pacing: Pacing, compute: str, reconstruct: bool) -> SimulatedJob:
    """The lanes of a capture. Raises: CaptureError when it has no training steps, or a part is damaged."""
    from dxt_replay.replay.ranks.comm import Solo
    from dxt_replay.replay.run.context import choose_layers_together, derive_context
    from dxt_replay.replay.simulation.simulated_job import simulated_job
    from dxt_replay.traces.measures.span_times import computed_in_loops

    layers = choose_layers_together(source, Solo(), api="auto", reconstruct=reconstruct)
    context = derive_context(source, Solo(), layers, pacing.pace)
    assert context.steps is not None  # the pace is steps
    return simulated_job(source, context.steps, pacing, compute, computed_in_loops(source.spans)[0])


def _shared_among(source: Capture, ranks: int, pacing: Pacing, compute: str, reconstruct: bool) -> SimulatedJob:
    """The lanes of a capture whose work `ranks` ranks share. Raises: UsageError if the work cannot be shared."""
    from dxt_replay.replay.transform.changes import Changes
    from dxt_replay.replay.transform.rewrite import transform_capture
    from dxt_replay.traces.store.reader import open_capture

    with tempfile.TemporaryDirectory(prefix="dxt-replay-simulate-") as folder:
        output = Path(folder) / "shared.capture"
        transform_capture(source, Changes(ranks=ranks), output)
        return _job(open_capture(output, named=source.named), pacing, compute, reconstruct)
