"""Predicts the duration of a job on a described storage, the use of its time, and its bottleneck."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dxt_replay.replay.causal.lane_events import EventLane, LaneTimes, Watch, run_lanes
from dxt_replay.replay.engine.items import MARK
from dxt_replay.replay.simulation._simulated_storage import SimulatedStorage
from dxt_replay.replay.simulation.agreement import Agreement
from dxt_replay.replay.simulation.simulated_job import TIME_CLASSES, SimulatedJob
from dxt_replay.replay.simulation.storage_model import StorageModel
from dxt_replay.replay.simulation.storage_use import KIND_NAMES, StorageUse
from dxt_replay.traces.units import NS_PER_US, ns_to_seconds

BUSY = 0.7
"""Share of the time from which on a queue that is busy holds a job up."""

FREE_PCT = 2.0
"""Per cent of the time that storage costs, up to which it does not limit a job."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One simulated run.

    training_ns: from the first step's begin to the last one's end. use: what the storage did, None without one.
    spent: where the time went. operations, items: how many were simulated. seconds: of processor time.
    """

    elapsed_ns: int
    training_ns: int
    use: StorageUse | None
    spent: Watch | None
    operations: int
    items: int
    seconds: float


MODEL_ERROR = 0.1
"""By how much a recorded job is taken to differ from its causal model. It is a goal, not a bound: on a busy machine of
two processors half of the jobs of `benchmarks.pipelines` differed by more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """Prediction for a job with a number of ranks on a storage.

    runs: with different seeds, then with all times of the storage shorter and longer by the model's uncertainty.
    free: with storage that takes no time. seeds: how many of `runs` differ in their seed alone.
    checked: a window of the job beside its replay, where it was checked.
    model_error: by how much of its time the job itself may differ, as a share: MODEL_ERROR for a recorded job, 0 for
    one whose dependencies are known.
    """

    job: SimulatedJob
    model: StorageModel
    ranks: int
    runs: Sequence[Run]
    seeds: int
    free: Run
    checked: Agreement | None = None
    model_error: float = 0.0

    @property
    def elapsed_ns(self) -> int:
        """The median of the runs that differ in their seed alone."""
        return int(np.median([run.elapsed_ns for run in self.runs[: self.seeds]]))

    @property
    def interval_ns(self) -> tuple[int, int]:
        """From the shortest to the longest run, with the error of the causal model; wider where a replayed window
        differs."""
        return self._interval([run.elapsed_ns for run in self.runs], self.free.elapsed_ns)

    @property
    def training_ns(self) -> int:
        """As `elapsed_ns`, of the training loop: without what the program does before and after it."""
        return int(np.median([run.training_ns for run in self.runs[: self.seeds]]))

    @property
    def training_interval_ns(self) -> tuple[int, int]:
        """As `interval_ns`, of the training loop."""
        return self._interval([run.training_ns for run in self.runs], self.free.training_ns)

    def _interval(self, times_ns: Sequence[int], free_ns: int) -> tuple[int, int]:
        found = round(min(times_ns) * (1.0 - self.model_error)), round(max(times_ns) * (1.0 + self.model_error))
        return found if self.checked is None else self.checked.widened(found, free_ns)

    @property
    def storage_pct(self) -> float:
        """Per cent of the predicted time that infinitely fast storage would save."""
        return 100.0 * max(0, self.elapsed_ns - self.free.elapsed_ns) / max(self.elapsed_ns, 1)

    @property
    def utilisation_pct(self) -> float | None:
        """Accelerator utilisation: the recorded compute, per cent of the simulated training loops without evaluations;
        None without steps, or where the capture shows no compute."""
        spent = self.runs[0].spent
        if spent is None or not self.job.compute_ns:
            return None
        in_steps = spent.spent_ns[:-1]
        loops_ns = int(in_steps.sum() - in_steps[:, TIME_CLASSES.index("evaluation")].sum())
        compute_ns = self.job.compute_ns * self.ranks / self.job.ranks
        return min(100.0 * compute_ns / loops_ns, 100.0) if loops_ns > 0 else None

    def as_json(self) -> dict[str, Any]:
        """The figures of the prediction, without the steps one by one."""
        return {
            "ranks": self.ranks,
            "nodes": self.model.nodes(self.ranks),
            "operations": self.job.operations_of(self.ranks),
            "elapsed_s": ns_to_seconds(self.elapsed_ns),
            "interval_s": [ns_to_seconds(limit) for limit in self.interval_ns],
            "training_s": ns_to_seconds(self.training_ns),
            "training_interval_s": [ns_to_seconds(limit) for limit in self.training_interval_ns],
            "check": None if self.checked is None else self.checked.as_json(),
            "runs": len(self.runs),
            "model_error_pct": 100.0 * self.model_error,
            "free_storage_s": ns_to_seconds(self.free.elapsed_ns),
            "storage_limits_pct": self.storage_pct,
            "accelerator_utilisation_pct": self.utilisation_pct,
            "time_s": self._time_s(),
            "bottleneck": self.bottleneck(),
            "resources": self.resources(),
            "requests": self._requests(),
            "simulated": {
                "operations": sum(run.operations for run in self.runs),
                "items": sum(run.items for run in self.runs),
                "seconds": sum(run.seconds for run in self.runs),
            },
        }

    def _time_s(self) -> dict[str, float]:
        spent = self.runs[0].spent
        assert spent is not None
        return {
            name: ns_to_seconds(int(total)) / self.ranks
            for name, total in zip(TIME_CLASSES, spent.spent_ns.sum(axis=0).tolist(), strict=True)
        }

    def steps(self) -> list[dict[str, Any]]:
        """Of each step, the mean time over the ranks by TIME_CLASSES, ms."""
        spent = self.runs[0].spent
        assert spent is not None
        per_rank = spent.spent_ns[:-1] / 1e6 / self.ranks
        return [
            {"step": spent.first_step + at, **dict(zip(TIME_CLASSES, row, strict=True))}
            for at, row in enumerate(per_rank.tolist())
            if any(row)
        ]

    def resources(self) -> list[dict[str, Any]]:
        """How busy each limit and each kind of servers with slots is, and how long requests waited for it."""
        use, elapsed, model = self.runs[0].use, max(self.runs[0].elapsed_ns, 1), self.model
        if use is None:
            return []
        found = []
        for limit, busy_ns, turn_ns, pipe_ns in zip(model.limits, use.busy_ns, use.turn_ns, use.pipe_ns, strict=True):
            found.append(_resource(limit.name, limit.each, busy_ns / elapsed, float(turn_ns + pipe_ns)))
        if model.servers.slots:
            busy = use.server_ns / (elapsed * model.servers.slots)
            found.append(_resource("slots of each server", "server", busy, None))
        if model.metadata.slots:
            busy = use.metadata_ns / (elapsed * model.metadata.slots)
            found.append(_resource("slots of each metadata server", "metadata", busy, None))
        return found

    def bottleneck(self) -> str:
        """The bottleneck of the job, in words."""
        if self.storage_pct < FREE_PCT:
            return "not storage: with infinitely fast storage the run would take as long"
        busiest = max(self.resources(), key=lambda each: float(each["busy_max_pct"]), default=None)
        if busiest is not None and busiest["busy_max_pct"] >= 100 * BUSY:
            return f"{busiest['name']}: busy {busiest['busy_max_pct']:.0f} % of the time"
        metadata = self._own_share_of_metadata()
        if metadata > 0.5:
            return "latency of metadata operations: no queue is busy, each operation takes its own time"
        return "latency of reads and writes: no queue is busy, each request takes its own time"

    def _own_share_of_metadata(self) -> float:
        use = self.runs[0].use
        total = 0.0 if use is None else float(use.operation_ns.sum())
        return 0.0 if use is None or not total else float(use.operation_ns[2:].sum()) / total

    def _requests(self) -> dict[str, Any]:
        use = self.runs[0].use
        if use is None:
            return {}
        by_kind = {
            name: {
                "operations": int(use.operations[kind]),
                "bytes": int(use.operation_bytes[kind]),
                "mean_us": float(use.operation_ns[kind]) / NS_PER_US / int(use.operations[kind]),
                "requests": int(use.requests[kind]),
                "request_bytes": int(use.request_bytes[kind]),
            }
            for kind, name in enumerate(KIND_NAMES)
            if use.operations[kind]
        }
        return {"by_operation": by_kind, "cache_hits": use.hits, "cache_hit_bytes": use.hit_bytes}


def _resource(name: str, each: str, busy: np.ndarray, waited_ns: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "each": each,
        "instances": len(busy),
        "busy_mean_pct": 100.0 * float(busy.mean()),
        "busy_max_pct": 100.0 * float(busy.max()),
        "waited_s": None if waited_ns is None else waited_ns / 1e9,
    }


def _timed(lanes: Sequence[EventLane]) -> list[EventLane]:
    """The lanes, those of training threads with room for the times of their items."""
    return [replace(lane, times=LaneTimes.room(len(lane.items))) if lane.watched else lane for lane in lanes]


def _training_ns(lanes: Sequence[EventLane]) -> int:
    """From the first mark of a step to the last, over all ranks."""
    marks = [lane.times.begin_ns[lane.items["kind"] == MARK] for lane in lanes if lane.times is not None]
    marks = [found for found in marks if len(found)]
    return max(int(found.max()) for found in marks) - min(int(found.min()) for found in marks) if marks else 0


def _simulated(lanes: Sequence[EventLane], storage: SimulatedStorage | None, watch: Watch | None) -> Run:
    """Run the lanes once, with or without a storage."""
    began, timed = time.thread_time(), _timed(lanes)
    done = run_lanes(timed, storage, watch)
    return Run(
        elapsed_ns=int(done.end_ns.max(initial=0)),
        training_ns=_training_ns(timed),
        use=None if storage is None else storage.use,
        spent=watch,
        operations=done.served,
        items=sum(len(lane.items) for lane in lanes),
        seconds=time.thread_time() - began,
    )


def predict(job: SimulatedJob, model: StorageModel, *, ranks: int, seeds: int) -> Prediction:
    """Simulate a job on a storage: with `seeds` seeds where the model has jitter, and at the limits of its uncertainty.

    The runs share nothing and go side by side; one run is serial, as its ranks share servers and meet at collectives.
    Raises: ReplayError when lanes wait for each other in a circle.
    """
    lanes = job.lanes(ranks)
    first = 1 if model.jitter is None else model.jitter.seed
    chosen = [(first + number, 1.0) for number in range(seeds if model.jitter is not None else 1)]
    limits = [(first, 1.0 - model.uncertainty), (first, 1.0 + model.uncertainty)] if model.uncertainty else []

    def run(seed: int, scale: float) -> Run:
        storage = SimulatedStorage(model, ranks=ranks, file_bytes=job.file_bytes, seed=seed, scale=scale)
        return _simulated(lanes, storage, job.watch())

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        free = pool.submit(_simulated, lanes, None, None)
        runs = list(pool.map(run, *zip(*chosen, *limits, strict=True)))
    inferred = any(each.known is None for each in job.steps.models.values())
    return Prediction(
        job=job,
        model=model,
        ranks=ranks,
        runs=runs,
        seeds=len(chosen),
        free=free.result(),
        model_error=MODEL_ERROR if inferred else 0.0,
    )
