"""Prediction without a file system."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.interface.replays import RunChoices, check_profiled, one_of
from dxt_replay.traces.errors import ContradictionError, UsageError
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.units import ns_to_seconds

if TYPE_CHECKING:
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


def simulate(
    capture: CaptureOrPath,
    storage: str | Path | StorageModel,
    *,
    ranks: Sequence[int] = (),
    strong: bool = False,
    runs: int = 5,
    speed: float = 1.0,
    compute_speed: float | None = None,
    io_speed: float | None = None,
    compute: str = "sleep",
    reconstruct: bool = True,
    check: str | PathLike[str] | None = None,
    check_seconds: float = 5.0,
) -> Simulated:
    """How long a capture would take on a storage that is only described (docs/simulation.md): nothing is opened or read
    but the capture.

    `storage`: a file, the name of a shipped model, or a `StorageModel`. `ranks`: predict for these numbers of ranks
    too, each further set of the recorded ranks with files of its own; with `strong`, the recorded work is shared among
    them, as `transform` does it. `runs`: how many seeds, where times vary.
    `check`: a directory on the real storage, where the first steps of `check_seconds` are then replayed; all written
    there is removed again. Where the replay differs, the interval becomes wider.
    The other arguments are those of `RunChoices`; the pace is `steps`.

        dxt_replay.simulate("run.capture", "nvme").prediction.elapsed_ns

    Raises: UsageError for what is not a storage model, and a capture without training steps; with `check`, TargetError
    and ReplayError, of which ContradictionError says that the replay contradicts the model.
    """
    from dxt_replay.replay.plan.pacing import Pace, Pacing
    from dxt_replay.replay.simulation.model_file import read_storage_model
    from dxt_replay.replay.simulation.prediction import predict
    from dxt_replay.replay.simulation.storage_model import StorageModel
    from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
    from dxt_replay.traces.measures.span_times import training_ns

    one_of("compute", compute, ("sleep", "spin", "skip"))
    if runs < 1 or any(not 1 <= count <= MAX_RANKS for count in ranks):
        raise UsageError(f"a simulation needs at least one run, and 1 to {MAX_RANKS} ranks")
    if not 0 < check_seconds < 86_400:
        raise UsageError(f"a check of {check_seconds:g} seconds is not possible: --check-seconds 5")
    if strong and not ranks:
        raise UsageError("strong scaling needs numbers of ranks: --ranks 2,4,8")
    model = storage if isinstance(storage, StorageModel) else read_storage_model(storage)
    pacing = Pacing(pace=Pace.STEPS, speed=speed, compute_speed=compute_speed, io_speed=io_speed)
    check_profiled(capture)
    with opened(capture) as source:
        job = _job(source, pacing, compute, reconstruct=reconstruct)
        begin_ns, end_ns = source.time_span_ns
        predicted = predict(job, model, ranks=job.ranks, seeds=runs)
        if check is not None:
            found = _checked(source, model, predicted, Path(check), check_seconds, pacing, compute, reconstruct)
            predicted = replace(predicted, checked=found)
        return Simulated(
            capture=source.named,
            storage=model,
            prediction=predicted,
            scaling=[
                predict(
                    _shared_among(source, count, pacing, compute, reconstruct=reconstruct) if strong else job,
                    model,
                    ranks=count,
                    seeds=1,
                )
                for count in ranks
            ],
            recorded_ns=end_ns - begin_ns,
            recorded_training_ns=training_ns(source.spans) or 0,
            recording_wait_ns=longest_log_wait_ns(source.info, source.spans),
            warnings=job.steps.warnings,
        )


def _checked(
    source: Capture,
    model: StorageModel,
    predicted: Prediction,
    target: Path,
    seconds: float,
    pacing: Pacing,
    compute: str,
    reconstruct: bool,
) -> Agreement:
    """A window of the capture, simulated and replayed below `target`. Raises: ContradictionError."""
    from dxt_replay.replay.interface.checking import replayed_ns
    from dxt_replay.replay.simulation.agreement import Agreement, first_steps, refusal
    from dxt_replay.replay.simulation.prediction import predict

    steps = first_steps(predicted.steps(), seconds)
    part = source if steps is None else part_of(source, Part(steps=steps))
    job = _job(part, pacing, compute, reconstruct=reconstruct)
    window = predict(job, model, ranks=job.ranks, seeds=predicted.seeds)
    choices: RunChoices = {
        "pace": "steps",
        "speed": pacing.speed,
        "compute_speed": pacing.compute_speed,
        "io_speed": pacing.io_speed,
        "compute": compute,
        "reconstruct": reconstruct,
    }
    found = Agreement(
        steps=steps,
        simulated_ns=window.elapsed_ns,
        free_ns=window.free.elapsed_ns,
        measured_ns=replayed_ns(part, target, choices),
    )
    if found.verdict == "contradicts":
        raise ContradictionError(refusal(found, model))
    return found


def _job(source: Capture, pacing: Pacing, compute: str, *, reconstruct: bool) -> SimulatedJob:
    """The lanes of a capture. Raises: CaptureError when it has no training steps, or a part is damaged."""
    from dxt_replay.replay.ranks.comm import Solo
    from dxt_replay.replay.run.context import choose_layers_together, derive_context
    from dxt_replay.replay.simulation.simulated_job import simulated_job
    from dxt_replay.traces.measures.span_times import computed_in_loops

    layers = choose_layers_together(source, Solo(), api="auto", reconstruct=reconstruct)
    context = derive_context(source, Solo(), layers, pacing.pace)
    assert context.steps is not None  # the pace is steps
    return simulated_job(source, context.steps, pacing, compute, computed_in_loops(source.spans)[0])


def _shared_among(source: Capture, ranks: int, pacing: Pacing, compute: str, *, reconstruct: bool) -> SimulatedJob:
    """The lanes of a capture whose work `ranks` ranks share. Raises: UsageError where that has no meaning."""
    from dxt_replay.replay.transform.changes import Changes
    from dxt_replay.replay.transform.rewrite import transform_capture
    from dxt_replay.traces.store.reader import open_capture

    with tempfile.TemporaryDirectory(prefix="dxt-replay-simulate-") as folder:
        output = Path(folder) / "shared.capture"
        transform_capture(source, Changes(ranks=ranks), output)
        return _job(open_capture(output, named=source.named), pacing, compute, reconstruct=reconstruct)
