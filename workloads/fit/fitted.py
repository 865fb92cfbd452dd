"""Fits a workload description to a capture: collects the estimates of all keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.units import NS_PER_S
from dxt_replay.workloads.description import Reading, Workload
from dxt_replay.workloads.fit.data_files import DataFiles, data_files
from dxt_replay.workloads.fit.dlio_runs import DlioRun, dlio_runs
from dxt_replay.workloads.fit.estimate import Estimate, Unexpressed, estimate
from dxt_replay.workloads.fit.evaluations import evaluations
from dxt_replay.workloads.fit.loader import Loader, loader
from dxt_replay.workloads.fit.observation import Observation, own_cost_ns
from dxt_replay.workloads.fit.pipeline import elements_per_step
from dxt_replay.workloads.fit.record import overhead_bytes, record
from dxt_replay.workloads.fit.sample_shape import Samples, samples
from dxt_replay.workloads.fit.saves import Saves, saves
from dxt_replay.workloads.fit.step_times import computation, compute_ns, preparation_ns
from dxt_replay.workloads.fit.unexpressed import unexpressed
from dxt_replay.workloads.keys import KEYS
from dxt_replay.workloads.workload_values import workload_from_values

MIN_PREPARATION_S = 1e-6
"""Preparation time of a sample below which the description has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Result of a fit.

    estimates: one for each key, in the order of the description.
    unexpressed: operations that no key expresses.
    operations, bytes: totals of the capture over all ranks.
    ranks: those of the capture. notes: remarks for the user.
    dlio: how versions of DLIO run the description.
    data: the files of the data set; None where the loop reads nothing. saves: its checkpoints.
    """

    estimates: tuple[Estimate, ...]
    unexpressed: tuple[Unexpressed, ...]
    operations: int
    bytes: int
    ranks: int
    notes: tuple[str, ...]
    dlio: tuple[DlioRun, ...]
    data: DataFiles | None
    saves: Saves

    @property
    def values(self) -> dict[str, Any]:
        """The keys as nested values, as YAML gives them."""
        return _nested(self.estimates)

    def workload(self, reading: Reading = "documented") -> Workload:
        """The description under one of DLIO's readings. Raises: UsageError where its values contradict each other."""
        return workload_from_values(self.values, reading=reading)[0]


def _nested(estimates: Iterable[Estimate]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for each in estimates:
        *sections, name = each.key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = each.value
    return nested


def fit(seen: Observation, *, batch: int | None = None) -> Fit:
    """Fit a description to an observation. `batch`: the batch size, if it is known.

    Raises: CaptureError where the loop neither reads nor saves anything.
    """
    data = data_files(seen)
    shape = _samples(seen, data, batch) if data is not None else None
    chosen = loader(seen, data, shape)
    saved = saves(seen, shape, chosen.name)
    if data is None and not saved.any:
        raise CaptureError(
            "no training step waits for a read and none writes a checkpoint: there is nothing to describe; "
            "`dxt-replay summary` shows what the capture has"
        )
    found = [
        estimate("workflow.train", True, "the capture has training steps"),
        *chosen.estimates,
        *_data(seen, data, shape),
        *_times(seen, data, shape, chosen),
        *saved.estimates,
    ]
    estimates = _in_order(found)
    runs = dlio_runs(_nested(estimates), seen.ranks)
    operations, moved = seen.uses.total(np.ones(len(seen.uses.file_id), dtype=bool))
    return Fit(
        estimates=estimates,
        unexpressed=unexpressed(seen, data, saved),
        operations=operations,
        bytes=moved,
        ranks=seen.ranks,
        notes=(*seen.warnings, *(run.sentence for run in runs)),
        dlio=runs,
        data=data,
        saves=saved,
    )


def _samples(seen: Observation, data: DataFiles, batch: int | None) -> Samples:
    rank = seen.looked[0]
    begun = int(((rank.offset == 0) & np.isin(rank.file_id, data.train)).sum())
    elements = elements_per_step(seen.steps.spans[rank.rank], rank.loop, begun / max(len(rank.is_training), 1))
    overhead = overhead_bytes(data.format, max(int(rank.model.step_bytes), 1))
    return samples(seen, data, elements=elements, overhead=overhead, batch=batch)


def _data(seen: Observation, data: DataFiles | None, shape: Samples | None) -> Iterator[Estimate]:
    """Estimates of the data set, or of one that is never read if the loop reads nothing. The last estimate of a key
    counts."""
    if data is None or shape is None:
        steps = seen.looked[0].steps
        yield estimate("dataset.format", "synthetic", "no training step waits for a read")
        yield estimate("dataset.num_files_train", steps * seen.ranks, "a sample for each step and rank")
        return
    yield from data.estimates
    if shape.files != data.files:
        error = "every rank loads all files, DLIO reads no file on two ranks"
        yield estimate("dataset.num_files_train", shape.files, f"{len(data.train)} files for each rank", error)
    yield from shape.estimates
    yield from record(seen, data, shape)
    yield from evaluations(seen, data, shape)


def _times(seen: Observation, data: DataFiles | None, shape: Samples | None, chosen: Loader) -> Iterator[Estimate]:
    waits, cost = shape is not None and not shape.at_once, own_cost_ns(seen.steps)
    by_rank = [compute_ns(rank, cost[rank.rank], waits_for_input=waits) for rank in seen.looked]
    yield computation("train.computation_time", by_rank)
    if data is None or shape is None or shape.at_once or data.format == "tfrecord":
        return
    spent = float(np.median([preparation_ns(rank, data.train) for rank in seen.looked])) / NS_PER_S
    each = float(f"{spent / shape.batch:.5g}")
    if each >= MIN_PREPARATION_S:
        where = "of a fetch without its reads" if chosen.synchronous else "of a reader beside its reads"
        found = f"{spent:.3g} s {where} for each batch, the median"
        yield estimate("reader.preprocess_time", each, found, "one time for all samples" if shape.batch > 1 else "")


def _in_order(found: Iterable[Estimate]) -> tuple[Estimate, ...]:
    """The estimates in the order of DLIO's keys; the last estimate of a key counts."""
    place = {name: number for number, name in enumerate(KEYS)}
    by_key = {each.key: each for each in found}
    return tuple(sorted(by_key.values(), key=lambda each: place[each.key]))
