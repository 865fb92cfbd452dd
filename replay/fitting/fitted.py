"""A capture to a workload description: the estimates of all keys, put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.workloads.description import Reading, Workload
from dxt_replay.profiler_merge.workloads.workload_keys import KEYS
from dxt_replay.profiler_merge.workloads.workload_values import workload_from_values
from dxt_replay.replay.fitting.data_files import DataFiles, data_files
from dxt_replay.replay.fitting.dlio_runs import DlioRun, dlio_runs
from dxt_replay.replay.fitting.estimate import Estimate, Unexpressed
from dxt_replay.replay.fitting.evaluations import evaluations
from dxt_replay.replay.fitting.loader import Loader, loader
from dxt_replay.replay.fitting.observation import Observation, own_cost_ns
from dxt_replay.replay.fitting.pipeline import elements_per_step
from dxt_replay.replay.fitting.record import overhead_bytes, record
from dxt_replay.replay.fitting.sample_shape import Samples, samples
from dxt_replay.replay.fitting.saves import Saves, saves
from dxt_replay.replay.fitting.step_times import computation, compute_ns, preparation_ns
from dxt_replay.replay.fitting.unexpressed import unexpressed
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.units import NS_PER_S

MIN_PREPARATION_S = 1e-6
"""Preparation of a sample below which DLIO is given none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a capture came to.

    estimates: one for each key, in the order of the description. unexpressed: what no key expresses.
    operations, bytes: of the capture, all ranks together. ranks: of the capture. notes: what the user should know.
    dlio: what versions of DLIO make of the description.
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
    for estimate in estimates:
        *sections, name = estimate.key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = estimate.value
    return nested


def fit(seen: Observation, *, batch: int | None = None) -> Fit:
    """Fit a description to what was observed. `batch`: the batch size, where it is known.

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
        Estimate(key="workflow.train", value=True, found="the capture has training steps"),
        *chosen.estimates,
        *_data(seen, data, shape, chosen),
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


def _data(seen: Observation, data: DataFiles | None, shape: Samples | None, chosen: Loader) -> Iterable[Estimate]:
    """The data set; one that is never read where the loop reads nothing."""
    if data is None or shape is None:
        steps = seen.looked[0].steps
        nothing = "no training step waits for a read"
        yield Estimate(key="dataset.format", value="synthetic", found=nothing)
        yield Estimate(key="dataset.num_files_train", value=steps * seen.ranks, found="a sample for each step and rank")
        return
    for estimate in data.estimates:
        if estimate.key == "dataset.num_files_train" and estimate.value != shape.files:
            yield Estimate(
                key=estimate.key,
                value=shape.files,
                found=f"{len(data.train)} files for each rank",
                error="every rank loads all files, DLIO reads no file on two ranks",
            )
        else:
            yield estimate
    yield from shape.estimates
    yield from record(seen, data, shape)
    yield from evaluations(seen, data, shape)


def _times(seen: Observation, data: DataFiles | None, shape: Samples | None, chosen: Loader) -> Iterable[Estimate]:
    waits = data is not None and shape is not None and not shape.at_once
    cost = own_cost_ns(seen.steps)
    yield computation(
        "train.computation_time",
        [compute_ns(rank, cost[rank.rank], waits_for_input=waits) for rank in seen.looked],
    )
    if data is None or shape is None or shape.at_once:
        return
    spent = float(np.median([preparation_ns(rank, data.train) for rank in seen.looked])) / NS_PER_S
    each = float(f"{spent / shape.batch:.5g}")
    if each < MIN_PREPARATION_S:
        return
    if data.format == "tfrecord":
        return
    where = "of a fetch without its reads" if chosen.synchronous else "of a reader beside its reads"
    yield Estimate(
        key="reader.preprocess_time",
        value=each,
        found=f"{spent:.3g} s {where} for each batch, the median",
        error="one time for all samples" if shape.batch > 1 else "",
    )


def _in_order(found: Iterable[Estimate]) -> tuple[Estimate, ...]:
    """In the order of DLIO's own keys; the last estimate of a key counts."""
    place = {name: number for number, name in enumerate(KEYS)}
    by_key = {each.key: each for each in found}
    return tuple(sorted(by_key.values(), key=lambda each: place[each.key]))
