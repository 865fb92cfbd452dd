"""Evaluations: their files, their batches, their times, and how often they run. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.workloads.fit.data_files import DataFiles
from dxt_replay.workloads.fit.estimate import Estimate, estimate, relative
from dxt_replay.workloads.fit.observation import Observation, RankReads
from dxt_replay.workloads.fit.sample_shape import Samples
from dxt_replay.workloads.fit.sample_size import modal
from dxt_replay.workloads.fit.step_times import computation


def evaluations(seen: Observation, data: DataFiles, samples: Samples) -> Iterator[Estimate]:
    """Estimates of the evaluation; only "none" if no files are read for it alone."""
    if not len(data.evaluation):
        yield estimate("workflow.evaluation", False, "no files are read by evaluations alone")
        return
    by_rank = [(rank, _fetches(rank, data.evaluation)) for rank in seen.looked]
    number = round(float(np.mean([len(_runs(rank, fetches)) for rank, fetches in by_rank])))
    if not number:
        yield estimate("workflow.evaluation", False, "no step waits for the files of evaluations")
        return
    between = max(round(samples.epochs / number), 1)
    done = samples.epochs // between
    found = f"{number} evaluations read {len(data.evaluation)} files that no training step reads"
    error = f"{done} instead of {number}, {relative(done, number)}: DLIO evaluates after epochs"
    yield estimate("workflow.evaluation", True, found, error if done != number else "")
    taken = np.concatenate([_taken(rank, fetches, data, samples) for rank, fetches in by_rank])
    yield estimate("reader.batch_size_eval", max(modal(taken)[0], 1), "samples of most batches")
    yield computation("evaluation.eval_time", [_times(rank, fetches) for rank, fetches in by_rank])
    for name in ("eval_after_epoch", "epochs_between_evals"):
        yield estimate(f"evaluation.{name}", between, f"{samples.epochs} epochs, {number} evaluations")


def _fetches(rank: RankReads, files: np.ndarray) -> np.ndarray:
    """Numbers of the batch fetches that wait for reads of the files, ascending."""
    return np.unique(rank.fetch[np.isin(rank.file_id, files) & (rank.fetch >= 0)])


def _runs(rank: RankReads, fetches: np.ndarray) -> np.ndarray:
    """Numbers of the fetches with which evaluations begin: a training step lies before each."""
    steps = rank.steps_begun(rank.loop.begin_ns[rank.loop.fetches[fetches]])
    return fetches[np.flatnonzero(np.diff(steps, prepend=-1))]


def _taken(rank: RankReads, fetches: np.ndarray, data: DataFiles, samples: Samples) -> np.ndarray:
    """int64: samples of each of these fetches: files, or bytes / bytes of a sample."""
    chosen = np.isin(rank.file_id, data.evaluation) & np.isin(rank.fetch, fetches)
    fetch = np.searchsorted(fetches, rank.fetch[chosen])
    if samples.one_file_each:
        return np.bincount(distinct_rows(fetch, rank.file_id[chosen]).values[:, 0])
    return np.round(np.bincount(fetch, weights=rank.length[chosen]) / samples.sample_bytes).astype(np.int64)


def _times(rank: RankReads, fetches: np.ndarray) -> np.ndarray:
    """float64: ns from the end of each evaluation fetch until its step ends, or until the next fetch of that
    evaluation.

    The last fetch of an evaluation is left out if neither is known."""
    loop = rank.loop
    events = loop.fetches[fetches]
    got = loop.end_ns[events]
    step = np.searchsorted(loop.step_begin_ns, loop.begin_ns[events], side="right") - 1
    in_step = (step >= 0) & (got <= loop.step_end_ns[step]) & ~rank.training_steps[step]
    follows = np.diff(fetches, append=-1) == 1
    until = np.where(follows, np.append(loop.begin_ns[events[1:]], 0), 0)
    until = np.where(in_step, loop.step_end_ns[step], until)
    return (until - got)[in_step | follows].astype(float)
