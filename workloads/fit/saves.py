"""The checkpoints of the training loop: who writes how much, and how often. Pure."""

from __future__ import annotations

import posixpath
import re
from typing import Any

import numpy as np

from dxt_replay.traces.schema import WRITE
from dxt_replay.workloads.description import Framework, Model, Workload
from dxt_replay.workloads.fit.observation import Observation, RankReads
from dxt_replay.workloads.fit.samples import Samples
from dxt_replay.workloads.fit.workload_text import Found
from dxt_replay.workloads.generate.checkpoint_files import saving, shards_of_rank

_OF_ONE = re.compile(r"global_epoch\d+_step\d+")
"""The folder that DLIO makes for each checkpoint."""

RESULT_SHARE = 0.05
"""Share of a capture's bytes from which a file that is written outside of the loop counts as a result."""

MIN_BYTES = 1024
"""Bytes of a save below which a rank does not count as a writer of the model."""


def saves(seen: Observation, samples: Samples | None, framework: Framework) -> Found:
    """Checkpoints and the model. `samples`: of the description; None where nothing is read.

    `framework`: the description's framework, which adds headers to the model. If nothing is written inside checkpoints,
    results written outside of the loop are expressed as one checkpoint at its end.
    """
    sizes = [(rank, rank.saved[rank.saved > 0]) for rank in seen.looked]
    writers = [(rank, each) for rank, each in sizes if len(each) and np.median(each) >= MIN_BYTES]
    written = seen.uses["written"]
    results = np.flatnonzero((written >= RESULT_SHARE * seen.moved) & (written >= MIN_BYTES))
    if writers:
        rank, of_rank = writers[0]
        yield "workflow.checkpoint", (True, f"{len(of_rank)} checkpoints on rank {rank.rank}")
        yield from _interval(rank, samples)
        folder, tail = posixpath.split(posixpath.dirname(seen.paths[int(seen.uses["saved"].argmax())]))
        folder = folder if _OF_ONE.fullmatch(tail) else posixpath.join(folder, tail)
        yield "checkpoint.checkpoint_folder", (folder or ".", "where the checkpoints were written")
        size = int(np.median(np.concatenate([each for _, each in writers])))
        yield _model_size(size, framework, f"median of what a rank writes for a checkpoint, {size:,} B")
        if len(writers) > 1:  # in DLIO every rank writes if more than one does
            yield "model.parallelism.zero_stage", (1, f"{len(writers)} of {len(sizes)} examined ranks write a share")
    elif len(results) and samples is not None:
        why = f"the capture has no checkpoints: {len(results)} files written beside the loop stand for one at its end"
        writing = min(int(seen.uses["writers"][results].sum()), seen.ranks)
        size = int(written[results].sum()) // writing
        yield "workflow.checkpoint", (True, why)
        yield "checkpoint.checkpoint_after_epoch", (samples.epochs, "at the end")
        yield "checkpoint.epochs_between_checkpoints", (samples.epochs, "once")
        folder = posixpath.dirname(seen.paths[int(results[0])])
        yield "checkpoint.checkpoint_folder", (folder or ".", "where the results were written")
        yield _model_size(size, framework, f"what a rank writes, {size:,} B")
        if writing > 1:
            yield "model.parallelism.zero_stage", (1, "every rank writes")
    else:
        yield "workflow.checkpoint", (False, "no bytes are written inside checkpoints")


def _model_size(size: int, framework: Framework, found: str) -> tuple[str, tuple[Any, str]]:
    """The model size of which a rank writes `size` bytes, headers of the framework included."""
    workload = Workload(framework=framework, model=Model(model_size_bytes=size))
    files = [file for shard in shards_of_rank(workload.model, 1, 0) for file in saving(workload, shard)]
    headers = int(sum(file.length[file.op == WRITE].sum() for file in files)) - size
    return "model.model_size_bytes", (max(size - headers, 1), f"{found}, without the framework's headers")


def _interval(rank: RankReads, samples: Samples | None) -> Found:
    """The interval of checkpoints in steps, from the number of steps completed before each.

    Checkpoints at the end of each whole epoch follow epochs, not steps. An interval that would lose the last checkpoint
    is shortened.
    """
    done = rank.steps_begun(rank.loop.begin_ns[np.flatnonzero(rank.saved)])
    every = max(int(np.median(np.diff(done, prepend=0))), 1)
    found = f"checkpoints after steps {', '.join(map(str, done[:4].tolist()))}{' ...' if len(done) > 4 else ''}"
    if samples is not None:
        per_epoch = samples.steps_per_epoch
        if samples.limit is None and per_epoch and every % per_epoch == 0:
            yield "checkpoint.checkpoint_after_epoch", (max(int(done[0]) // per_epoch, 1), found)
            yield "checkpoint.epochs_between_checkpoints", (every // per_epoch, found)
            return
        if len(done) * every > samples.run_steps >= len(done):
            every = samples.run_steps // len(done)
            found += f"; the description comes to {samples.run_steps} steps instead of {samples.steps}"
    yield "checkpoint.steps_between_checkpoints", (every, found)
