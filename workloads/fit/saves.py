"""Estimates of the checkpoints of the training loop: who writes how much, and how often. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.schema import WRITE
from dxt_replay.traces.units import format_bytes
from dxt_replay.workloads.description import Framework, Model, Workload
from dxt_replay.workloads.fit.estimate import Estimate, estimate
from dxt_replay.workloads.fit.observation import BEFORE, SAVING, Observation, RankReads
from dxt_replay.workloads.fit.sample_shape import Samples
from dxt_replay.workloads.generate.checkpoint_files import saving, shards_of_rank

_OF_ONE = re.compile(r"global_epoch\d+_step\d+")
"""The folder that DLIO makes for each checkpoint."""

RESULT_SHARE = 0.05
"""Share of a capture's bytes from which a file that is written outside of the loop counts as a result."""

EQUAL_SHARES = 0.01
"""Largest relative difference of the ranks' bytes with which they count as equal."""

FEW_REQUESTS = 4
"""Kinds of checkpoint requests that DLIO issues as well: one tensor, and the headers of the archive."""

MIN_BYTES = 1024
"""Bytes of a save below which a rank does not count as a writer of the model."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saves:
    """Checkpoints in the terms of a description.

    any: whether there are checkpoints.
    results: files written outside of the loop's checkpoints, expressed as a checkpoint.
    """

    any: bool
    results: np.ndarray
    estimates: tuple[Estimate, ...]


def saves(seen: Observation, samples: Samples | None, framework: Framework) -> Saves:
    """Checkpoints and the model. `samples`: of the description; None where nothing is read.

    `framework`: the description's framework, which adds headers to the model. If nothing is written inside checkpoints,
    results written outside of the loop are expressed as one checkpoint at its end.
    """
    written = {rank.rank: _bytes_per_save(rank) for rank in seen.looked}
    writers = {rank: sizes for rank, sizes in written.items() if len(sizes) and np.median(sizes) >= MIN_BYTES}
    nothing = np.empty(0, dtype=np.int64)
    if writers:
        return Saves(any=True, results=nothing, estimates=tuple(_inside(seen, samples, framework, writers)))
    results = _results(seen)
    if len(results) and samples is not None:
        return Saves(any=True, results=results, estimates=tuple(_at_end(seen, samples, framework, results)))
    none = estimate("workflow.checkpoint", False, "no bytes are written inside checkpoints")
    return Saves(any=False, results=nothing, estimates=(none,))


def _results(seen: Observation) -> np.ndarray:
    """Files written outside of the loop with a notable share of all bytes of the capture."""
    uses = seen.uses
    rows = (uses.op == WRITE) & (uses.phase != BEFORE)
    found, place = np.unique(uses.file_id[rows], return_inverse=True)
    moved = np.bincount(place, weights=uses.bytes[rows], minlength=len(found))
    return found[moved >= max(RESULT_SHARE * uses.bytes.sum(), MIN_BYTES)]


def _at_end(seen: Observation, samples: Samples, framework: Framework, results: np.ndarray) -> Iterator[Estimate]:
    """One checkpoint after the last epoch that stands for results written outside of the loop."""
    uses = seen.uses
    rows = (uses.op == WRITE) & np.isin(uses.file_id, results)
    requests, moved = uses.total(rows)
    writers = min(int(uses.ranks[rows].sum()), seen.ranks)
    size = moved // writers
    found = f"{requests:,} writes to {len(results)} files beside the loop stand as a checkpoint at its end"
    yield estimate("workflow.checkpoint", True, found, "the capture has no checkpoints")
    yield estimate("checkpoint.checkpoint_after_epoch", samples.epochs, "at the end")
    yield estimate("checkpoint.epochs_between_checkpoints", samples.epochs, "once")
    folder = os.path.dirname(seen.paths[int(results[0])]) or "."
    yield estimate("checkpoint.checkpoint_folder", folder, "where the results were written")
    error = f"in {requests // writers:,} requests, which DLIO writes as one tensor"
    yield _model_size(size, framework, f"what a rank writes, {size:,} B", error)
    if writers > 1:
        yield estimate("model.parallelism.zero_stage", 1, "every rank writes")


def _inside(
    seen: Observation, samples: Samples | None, framework: Framework, writers: Mapping[int, np.ndarray]
) -> Iterator[Estimate]:
    """Estimates of checkpoints inside the loop. `writers`: rank -> bytes of each of its checkpoints."""
    first = next(rank for rank in seen.looked if rank.rank in writers)
    yield estimate("workflow.checkpoint", True, f"{len(writers[first.rank])} checkpoints on rank {first.rank}")
    yield from _interval(first, samples)
    yield estimate("checkpoint.checkpoint_folder", _folder(seen), "where the checkpoints were written")
    sizes = np.concatenate(list(writers.values()))
    size, pieces = int(np.median(sizes)), np.median(np.unique(first.saves[:, 0], return_counts=True)[1])
    uneven = np.ptp(sizes) > EQUAL_SHARES * size
    yield _model_size(
        size,
        framework,
        f"median of what a rank writes for a checkpoint, {size:,} B",
        f"between {format_bytes(sizes.min())} and {format_bytes(sizes.max())}" if uneven else "",
        f"in {pieces:.0f} requests, which DLIO writes as one tensor" if pieces > FEW_REQUESTS else "",
    )
    if len(writers) > 1:  # in DLIO every rank writes if more than one does
        error = (
            ""
            if len(writers) == len(seen.looked)
            else f"{len(writers)} of {len(seen.looked)} ranks that were looked at"
        )
        yield estimate("model.parallelism.zero_stage", 1, "every rank writes a share", error)


def _model_size(size: int, framework: Framework, found: str, *errors: str) -> Estimate:
    """The model size of which a rank writes `size` bytes, headers of the framework included."""
    model = max(size - _frame_bytes(framework, size), 1)
    return estimate("model.model_size_bytes", model, f"{found}, without the framework's headers", *errors)


def _frame_bytes(framework: Framework, size: int) -> int:
    """Bytes that DLIO's checkpoint of a model of `size` bytes adds to it."""
    workload = Workload(framework=framework, model=Model(model_size_bytes=size))
    files = [file for shard in shards_of_rank(workload.model, 1, 0) for file in saving(workload, shard)]
    return int(sum(file.length[file.op == WRITE].sum() for file in files)) - size


def _bytes_per_save(rank: RankReads) -> np.ndarray:
    """int64: bytes of the rank in each of its checkpoints."""
    if not len(rank.saves):
        return np.empty(0, dtype=np.int64)
    _, place = np.unique(rank.saves[:, 0], return_inverse=True)
    return np.bincount(place, weights=rank.saves[:, 3]).astype(np.int64)


def _interval(rank: RankReads, samples: Samples | None) -> Iterator[Estimate]:
    """The interval of checkpoints in steps, from the number of steps completed before each.

    Checkpoints at the end of each whole epoch follow epochs, not steps. An interval that would lose the last checkpoint
    is shortened.
    """
    done = rank.steps_begun(rank.loop.begin_ns[np.unique(rank.saves[:, 0])])
    gaps = np.diff(done, prepend=0)
    every = max(int(np.median(gaps)), 1)
    errors = [] if (gaps == every).all() else [f"between {gaps.min()} and {gaps.max()} steps"]
    found = f"checkpoints after steps {', '.join(map(str, done[:4].tolist()))}{' ...' if len(done) > 4 else ''}"
    per_epoch = samples.steps_per_epoch if samples is not None else 0
    if samples is not None and samples.limit is None and per_epoch and every % per_epoch == 0:
        after = max(int(done[0]) // per_epoch, 1)
        yield estimate("checkpoint.checkpoint_after_epoch", after, found)
        yield estimate("checkpoint.epochs_between_checkpoints", every // per_epoch, found, *errors)
        return
    if samples is not None and len(done) * every > samples.run_steps >= len(done):
        errors.append(f"{every} in the capture, which has {samples.steps} steps instead of {samples.run_steps}")
        every = samples.run_steps // len(done)
    if samples is not None and samples.epochs > 1:
        errors.append(f"DLIO's code counts the steps anew in each epoch of {per_epoch} steps")
    yield estimate("checkpoint.steps_between_checkpoints", every, found, *errors)


def _folder(seen: Observation) -> str:
    uses = seen.uses
    rows = (uses.phase == SAVING) & (uses.op == WRITE)
    most = int(uses.file_id[rows][uses.bytes[rows].argmax()])
    folder = os.path.dirname(seen.paths[most])
    head, tail = os.path.split(folder)
    return (head if _OF_ONE.fullmatch(tail) else folder) or "."
