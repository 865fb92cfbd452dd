"""Checkpoints of the training loop: who writes how much, and how often. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.schema import WRITE
from dxt_replay.traces.units import format_bytes
from dxt_replay.workloads.description import Framework, Model, Workload
from dxt_replay.workloads.fit.estimate import Estimate
from dxt_replay.workloads.fit.observation import BEFORE, SAVING, Observation, RankReads
from dxt_replay.workloads.fit.sample_shape import Samples
from dxt_replay.workloads.generate.checkpoint_files import saving, shards_of_rank

_OF_ONE = re.compile(r"global_epoch\d+_step\d+")
"""The folder that DLIO makes for each checkpoint."""

RESULT_SHARE = 0.05
"""Share of all bytes of a capture from which on a file that is written beside the loop counts as a result."""

EQUAL_SHARES = 0.01
"""Largest difference of the ranks' bytes, as a share of them, with which they count as equal shares."""

FEW_REQUESTS = 4
"""Requests of a checkpoint that DLIO has too: one tensor and the headers of the archive."""

MIN_BYTES = 1024
"""Bytes of a save below which a rank does not count as one that writes a model."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saves:
    """Checkpoints as the description has them.

    any: whether there are some. results: files that are written outside of the loop's checkpoints, and stand as one.
    """

    any: bool
    results: np.ndarray
    estimates: tuple[Estimate, ...]


def saves(seen: Observation, samples: Samples | None, framework: Framework) -> Saves:
    """Checkpoints and the model. `samples`: of the description; None where nothing is read.

    `framework`: of the description, which writes headers beside the model. Where nothing is written inside checkpoints,
    results that are written beside the loop stand as one checkpoint at its end.
    """
    written = {rank.rank: _bytes_per_save(rank) for rank in seen.looked}
    writers = {rank: sizes for rank, sizes in written.items() if len(sizes) and np.median(sizes) >= MIN_BYTES}
    nothing = np.empty(0, dtype=np.int64)
    if writers:
        return Saves(any=True, results=nothing, estimates=_inside(seen, samples, framework, writers))
    results = _results(seen)
    if len(results) and samples is not None:
        return Saves(any=True, results=results, estimates=_at_end(seen, samples, framework, results))
    none = Estimate(key="workflow.checkpoint", value=False, found="no bytes are written inside checkpoints")
    return Saves(any=False, results=nothing, estimates=(none,))


def _results(seen: Observation) -> np.ndarray:
    """Files that are written beside the loop and hold a notable share of all bytes of the capture."""
    uses = seen.uses
    rows = (uses.op == WRITE) & (uses.phase != BEFORE)
    found, place = np.unique(uses.file_id[rows], return_inverse=True)
    moved = np.bincount(place, weights=uses.bytes[rows], minlength=len(found))
    return found[moved >= max(RESULT_SHARE * uses.bytes.sum(), MIN_BYTES)]


def _at_end(seen: Observation, samples: Samples, framework: Framework, results: np.ndarray) -> tuple[Estimate, ...]:
    """One checkpoint after the last epoch in place of results that are written beside the loop."""
    uses = seen.uses
    rows = (uses.op == WRITE) & np.isin(uses.file_id, results)
    requests, moved = uses.total(rows)
    writers = min(int(uses.ranks[rows].sum()), seen.ranks)
    size = moved // writers
    found = f"{requests:,} writes to {len(results)} files beside the loop stand as a checkpoint at its end"
    return (
        Estimate(key="workflow.checkpoint", value=True, found=found, error="the capture has no checkpoints"),
        Estimate(key="checkpoint.checkpoint_after_epoch", value=samples.epochs, found="at the end"),
        Estimate(key="checkpoint.epochs_between_checkpoints", value=samples.epochs, found="once"),
        Estimate(
            key="checkpoint.checkpoint_folder",
            value=os.path.dirname(seen.paths[int(results[0])]) or ".",
            found="where the results were written",
        ),
        Estimate(
            key="model.model_size_bytes",
            value=max(size - _frame_bytes(framework, size), 1),
            found=f"what a rank writes, {size:,} B, without the framework's headers",
            error=f"in {requests // writers:,} requests, which DLIO writes as one tensor",
        ),
        *([Estimate(key="model.parallelism.zero_stage", value=1, found="every rank writes")] if writers > 1 else []),
    )


def _inside(
    seen: Observation, samples: Samples | None, framework: Framework, writers: Mapping[int, np.ndarray]
) -> tuple[Estimate, ...]:
    """Estimates of checkpoints inside the loop. `writers`: rank -> bytes of each of its checkpoints."""
    first = next(rank for rank in seen.looked if rank.rank in writers)
    number = len(writers[first.rank])
    return (
        Estimate(key="workflow.checkpoint", value=True, found=f"{number} checkpoints on rank {first.rank}"),
        *_interval(first, samples),
        Estimate(key="checkpoint.checkpoint_folder", value=_folder(seen), found="where the checkpoints were written"),
        _model_size(first, np.concatenate(list(writers.values())), framework),
        *_shares(len(writers), len(seen.looked)),
    )


def _model_size(rank: RankReads, sizes: np.ndarray, framework: Framework) -> Estimate:
    """`sizes`: bytes of each checkpoint of each rank that writes them."""
    size, pieces = int(np.median(sizes)), np.median(np.unique(rank.saves[:, 0], return_counts=True)[1])
    errors = []
    if np.ptp(sizes) > EQUAL_SHARES * size:
        errors.append(f"between {format_bytes(sizes.min())} and {format_bytes(sizes.max())}")
    if pieces > FEW_REQUESTS:
        errors.append(f"in {pieces:.0f} requests, which DLIO writes as one tensor")
    return Estimate(
        key="model.model_size_bytes",
        value=max(size - _frame_bytes(framework, size), 1),
        found=f"median of what a rank writes for a checkpoint, {size:,} B, without the framework's headers",
        error="; ".join(errors),
    )


def _shares(writers: int, looked: int) -> tuple[Estimate, ...]:
    """Where more than one rank writes, every rank does in DLIO."""
    if writers == 1:
        return ()
    error = "" if writers == looked else f"{writers} of {looked} ranks that were looked at"
    return (Estimate(key="model.parallelism.zero_stage", value=1, found="every rank writes a share", error=error),)


def _frame_bytes(framework: Framework, size: int) -> int:
    """Bytes that DLIO's checkpoint of a model of `size` bytes has beside it."""
    workload = Workload(framework=framework, model=Model(model_size_bytes=size))
    files = [file for shard in shards_of_rank(workload.model, 1, 0) for file in saving(workload, shard)]
    return int(sum(file.length[file.op == WRITE].sum() for file in files)) - size


def _bytes_per_save(rank: RankReads) -> np.ndarray:
    """int64: bytes that the rank writes in each of its checkpoints."""
    if not len(rank.saves):
        return np.empty(0, dtype=np.int64)
    _, place = np.unique(rank.saves[:, 0], return_inverse=True)
    return np.bincount(place, weights=rank.saves[:, 3]).astype(np.int64)


def _interval(rank: RankReads, samples: Samples | None) -> tuple[Estimate, ...]:
    """When checkpoints are written, by steps that are done when they begin.

    One with each whole epoch follows epochs, not steps. An interval that would lose the last checkpoint is shortened.
    """
    done = rank.steps_begun(rank.loop.begin_ns[np.unique(rank.saves[:, 0])])
    gaps = np.diff(done, prepend=0)
    every = max(int(np.median(gaps)), 1)
    errors = [] if (gaps == every).all() else [f"between {gaps.min()} and {gaps.max()} steps"]
    found = f"checkpoints after steps {', '.join(map(str, done[:4].tolist()))}{' ...' if len(done) > 4 else ''}"
    per_epoch = samples.steps_per_epoch if samples is not None else 0
    if samples is not None and samples.limit is None and per_epoch and every % per_epoch == 0:
        after = max(int(done[0]) // per_epoch, 1)
        error = "; ".join(errors)
        return (
            Estimate(key="checkpoint.checkpoint_after_epoch", value=after, found=found),
            Estimate(key="checkpoint.epochs_between_checkpoints", value=every // per_epoch, found=found, error=error),
        )
    if samples is not None and len(done) * every > samples.run_steps >= len(done):
        errors.append(f"{every} in the capture, which has {samples.steps} steps in place of {samples.run_steps}")
        every = samples.run_steps // len(done)
    if samples is not None and samples.epochs > 1:
        errors.append(f"DLIO's code counts the steps anew in each epoch of {per_epoch} steps")
    return (Estimate(key="checkpoint.steps_between_checkpoints", value=every, found=found, error="; ".join(errors)),)


def _folder(seen: Observation) -> str:
    uses = seen.uses
    rows = (uses.phase == SAVING) & (uses.op == WRITE)
    most = int(uses.file_id[rows][uses.bytes[rows].argmax()])
    folder = os.path.dirname(seen.paths[most])
    head, tail = os.path.split(folder)
    return (head if _OF_ONE.fullmatch(tail) else folder) or "."
