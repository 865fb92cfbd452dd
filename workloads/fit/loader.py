"""The framework, the data loader, the times of steps and of batches, and the evaluations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dxt_replay.replay.causal.training_loop import CHECKPOINT, COLLECTIVE, EVALUATION, FETCH
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.units import NS_PER_S, format_counted
from dxt_replay.workloads.description import Framework
from dxt_replay.workloads.fit.data_files import DataFiles
from dxt_replay.workloads.fit.observation import Observation, RankReads
from dxt_replay.workloads.fit.samples import Samples, modal, runs_of
from dxt_replay.workloads.fit.workload_text import Found

IN_ORDER = 0.9
"""Share of the samples that lie behind the previous one, from which the order counts as sequential."""

OPENS_PER_SAMPLE = 0.5
"""Opens per sample from which the application counts as opening a file for every sample."""

MIN_PREPARATION_S = 1e-6
"""Preparation time of a sample below which the description has none."""

CONSTANT_SHARE = 1e-4
"""Relative difference from the median up to which times count as equal."""

MOST_CONSTANT = 0.5
"""Share of the times that must be equal for a constant time. It is below 1 because the first steps of epochs are
longer."""

_PROFILES: Mapping[str, tuple[Framework, str]] = {
    "kineto": ("pytorch", "a PyTorch profile"),
    "xplane": ("tensorflow", "a TensorFlow profile"),
}
"""Kind of a source -> the framework, and how it was found."""

_AHEAD_FILES = 3
"""Files that DLIO's TFRecord reader has open for each of its threads: one is read, two are opened ahead."""

_KEEPS_OPEN = ("hdf5", "npz", "npy", "csv")
"""Formats whose headers, or whole files, DLIO's PyTorch loader reads again for each sample."""


def framework_of(seen: Observation, data: DataFiles | None, samples: Samples | None) -> tuple[Framework, str]:
    """The framework of DLIO whose loader reads most like the capture, and how that was found."""
    if data is None or samples is None:
        found = (profile for kind, profile in _PROFILES.items() if kind in seen.sources)
        return next(found, ("pytorch", "no profile names one, and nothing is read"))
    if data.format == "tfrecord":
        return "tensorflow", "the one that DLIO has for TFRecord"
    dealing = seen.looked[0].model.dealing
    if dealing is not None:
        return "pytorch", f"worker processes make whole batches in turn, {100 * dealing.consistent:.3g} % in time"
    if samples.at_once:
        return "tensorflow", "it alone loads a file once for all of its samples"
    # PyTorch's loader opens a file for each sample, TensorFlow's keeps it open while it reads on in it.
    opened = sum(int(np.isin(rank.opens, data.train).sum()) for rank in seen.looked)
    taken = samples.batch.size * sum(int(rank.is_training.sum()) for rank in seen.looked)
    said = f"{opened / max(taken, 1):.2g} opens for each sample"
    if opened >= OPENS_PER_SAMPLE * max(taken, 1) or data.format not in _KEEPS_OPEN:
        return "pytorch", said
    return "tensorflow", f"{said}: files are kept open, which DLIO's PyTorch loader never does"


def loader(seen: Observation, data: DataFiles, samples: Samples, framework: Framework) -> Found:
    """Readers, how far they run ahead, the order of samples, and the preparation of each."""
    dealing = seen.looked[0].model.dealing
    synchronous = dealing is None and all(rank.synchronous for rank in seen.looked)
    lanes = round(float(np.median([len(np.unique(rank.of(data.train)["lane"])) for rank in seen.looked])))
    made = [ahead for ahead in map(_batches_ahead, seen.looked) if ahead is not None]
    if dealing is not None and framework == "pytorch":
        yield "reader.read_threads", (dealing.workers, "worker processes in turn")
        yield "reader.prefetch_size", (dealing.prefetch * dealing.workers, f"{dealing.prefetch} batches for a worker")
    else:
        if data.format == "tfrecord":
            flight = float(np.median(np.concatenate([_files_in_flight(rank, data.train) for rank in seen.looked])))
            flight = max(flight, lanes) if seen.lanes_are_threads else flight
            how = f"{flight:.3g} files are read at the same time, DLIO has {_AHEAD_FILES} for each thread"
            yield "reader.read_threads", (max(round(flight / _AHEAD_FILES), 1), how)
        elif synchronous:
            yield "reader.read_threads", (int(framework == "tensorflow"), "the training thread reads")
        else:
            inferred = "" if seen.lanes_are_threads else ", inferred from reads that overlap"
            yield "reader.read_threads", (max(lanes, 1), f"threads that read the data set{inferred}")
        if synchronous:
            yield "reader.prefetch_size", (0, "reads never run ahead of the loop")
        elif made:
            yield "reader.prefetch_size", (max(made), "made batches that wait for the loop at most")
        else:
            yield "reader.prefetch_size", (2, "not known: DLIO's default")
    # DLIO's TFRecord reader shuffles in memory alone.
    in_order = float(np.mean([_rising(seen, rank, data, samples) for rank in seen.looked]))
    if not (data.format == "tfrecord" or data.stream or samples.at_once or in_order >= IN_ORDER):
        yield "reader.sample_shuffle", ("random", f"{100 * in_order:.3g} % of the samples lie behind the one before")
    if not (data.format == "tfrecord" or samples.at_once):
        spent = float(np.median([preparation_ns(rank, data.train) for rank in seen.looked])) / NS_PER_S
        each = float(f"{spent / samples.batch.size:.5g}")
        if each >= MIN_PREPARATION_S:
            yield "reader.preprocess_time", (each, f"{spent:.3g} s beside the reads of each batch, the median")


def _files_in_flight(rank: RankReads, files: np.ndarray) -> np.ndarray:
    """Number of files between their first and their last read, at the begin of each read. A pass begins at offset 0."""
    reads = rank.of(files)
    if not len(reads):
        return np.zeros(1)
    reads = reads[np.argsort(reads["file"], kind="stable")]
    first = np.flatnonzero(np.append(True, np.diff(reads["file"]) != 0) | (reads["offset"] == 0))
    begins, ends = reads["start_ns"][first], reads["end_ns"][np.append(first[1:], len(reads)) - 1]
    at = np.sort(reads["start_ns"])
    return np.searchsorted(np.sort(begins), at, side="right") - np.searchsorted(np.sort(ends), at, side="right")


def _batches_ahead(rank: RankReads) -> int | None:
    """Largest number of finished batches that waited for the loop; None if no span shows when a batch was made."""
    loop = rank.loop
    if not len(loop.made_end_ns):
        return None
    had = np.searchsorted(loop.made_end_ns, loop.fetch_ends_ns, side="right")
    return int((had - np.arange(1, len(had) + 1)).max(initial=0))


def _rising(seen: Observation, rank: RankReads, data: DataFiles, samples: Samples) -> float:
    """Share of a rank's samples that lie behind the previous one, by file or by place in the file."""
    places, _, _ = runs_of(rank, data.train)
    if samples.batch.one_file_each:
        places = np.argsort(np.argsort(seen.paths))[places >> 44]
    steps = np.diff(places)
    steps = steps[steps != 0]
    return float((steps > 0).mean()) if len(steps) else 1.0


PAUSE, MOST_PAUSES = 20.0, 0.05
"""A step that is so many times as long as the median holds a pause, which is idle, if at most this share do."""


def computation(by_rank: list[np.ndarray]) -> tuple[Any, str]:
    """A time per step from the times of each rank (ns), the first step left out: constant, or a mean and deviation."""
    kept = [times[1:] if len(times) > 2 else times for times in by_rank]
    seconds = np.concatenate(kept) / NS_PER_S
    if not seconds.any():
        return 0.0, "the steps show no time of their own"
    middle, steps = float(np.median(seconds)), f"{len(seconds)} steps, without the first of each rank"
    pauses = seconds > PAUSE * middle
    if 0 < pauses.mean() <= MOST_PAUSES:
        steps += f", and without {format_counted(int(pauses.sum()), 'pause')} of {seconds[pauses].sum():.3g} s in all"
        seconds = seconds[~pauses]
    if (np.abs(seconds - middle) <= CONSTANT_SHARE * middle).mean() >= MOST_CONSTANT:
        return float(f"{middle:.5g}"), f"median of {steps}"
    value = {"mean": float(f"{seconds.mean():.5g}"), "stdev": float(f"{seconds.std():.5g}")}
    return value, f"mean and deviation of {steps}"


def compute_ns(rank: RankReads, *, waits_for_input: bool) -> np.ndarray:
    """float64 (training steps,): time that the training thread was busy in each step, ns.

    It is the step minus its batch fetches, checkpoints, evaluations and waits for other ranks in collectives. The own
    cost of each collective stays: DLIO's barrier costs nothing.
    `waits_for_input`: whether DLIO waits for the reads of a step. If so, only the part of a fetch after its batch was
    ready is busy time; else the whole fetch.
    """
    loop = rank.loop
    begin, end = loop.step_begin_ns, loop.step_end_ns
    until = np.append(np.minimum(begin[1:], end[:-1] + (end[:-1] - begin[:-1])), end[-1])
    kinds = [CHECKPOINT, EVALUATION, COLLECTIVE, *([FETCH] if waits_for_input else [])]
    events = np.union1d(np.flatnonzero(np.isin(loop.kind, kinds)), loop.fetches[~rank.is_training])
    away = Intervals.union_of(loop.begin_ns[events], loop.end_ns[events])
    busy = (until - begin - away.covered_within(begin, until)).astype(float)
    stays = [(loop.begin_ns[loop.kind == COLLECTIVE], rank.cost_ns)]
    if waits_for_input and not rank.synchronous:
        fetches = loop.fetches[rank.is_training]
        stays.append((loop.begin_ns[fetches], rank.model.residual_ns[fetches]))
    for begins, amount in stays:
        step = np.searchsorted(begin, begins, side="right") - 1
        np.add.at(busy, step[step >= 0], amount[step >= 0])
    return np.maximum(busy, 0)[rank.training_steps]


def preparation_ns(rank: RankReads, files: np.ndarray) -> float:
    """Nanoseconds that the reader of a batch needs in addition to its operations: the median over the training steps.

    If the training thread reads, the rest of the fetch; else the time between the reads of a batch, plus the time from
    the last read until the batch is ready. 0 if nothing is read.
    """
    reads, loop, model = rank.trained_on(files), rank.loop, rank.model
    if not len(reads):
        return 0.0
    numbers, place = np.unique(reads["fetch"], return_inverse=True)
    events = loop.fetches[numbers]
    reading = np.bincount(place, weights=reads["end_ns"] - reads["start_ns"]) + rank.other_ns[numbers]
    if rank.synchronous and model.dealing is None:
        return float(np.median(np.maximum(loop.end_ns[events] - loop.begin_ns[events] - reading, 0)))
    first, last = np.full(len(numbers), np.iinfo(np.int64).max), np.zeros(len(numbers), dtype=np.int64)
    np.minimum.at(first, place, reads["start_ns"])
    np.maximum.at(last, place, reads["end_ns"])
    between = np.maximum(last - first - reading, 0)
    if model.known is not None:
        return float(np.median(between)) + (model.known.median if model.known.count else 0.0)
    ready = model.ready_ns[events].astype(float)
    if model.dealing is not None:
        for deal in model.dealing.lanes.values():
            mine = np.isin(deal.event, events)
            ready[np.searchsorted(events, deal.event[mine])] = deal.ready_ns[mine]
    return float(np.median(between + ready))


def evaluations(seen: Observation, data: DataFiles, samples: Samples) -> Found:
    """The evaluation: its batches, its times, and how often it runs."""
    by_rank = []
    for rank in seen.looked:
        reads = rank.of(data.evaluation)
        by_rank.append((rank, np.unique(reads["fetch"][reads["fetch"] >= 0])))
    number = round(float(np.mean([_evaluations_of(rank, fetches) for rank, fetches in by_rank])))
    if not number:
        yield "workflow.evaluation", (False, "no step waits for files that no training step reads")
        return
    between = max(round(samples.epochs / number), 1)
    found = f"{number} evaluations in {samples.epochs} epochs read files that no training step reads"
    yield "workflow.evaluation", (True, found)
    taken = np.concatenate([_taken(rank, fetches, data, samples) for rank, fetches in by_rank])
    yield "reader.batch_size_eval", (max(modal(taken)[0], 1), "samples of most batches")
    yield "evaluation.eval_time", computation([_times(rank, fetches) for rank, fetches in by_rank])
    yield "evaluation.eval_after_epoch", (between, found)
    yield "evaluation.epochs_between_evals", (between, found)


def _evaluations_of(rank: RankReads, fetches: np.ndarray) -> int:
    """Number of evaluations: a training step lies before each."""
    return len(np.unique(rank.steps_begun(rank.loop.begin_ns[rank.loop.fetches[fetches]])))


def _taken(rank: RankReads, fetches: np.ndarray, data: DataFiles, samples: Samples) -> np.ndarray:
    """int64: samples of each of these fetches: files, or bytes / bytes of a sample."""
    reads = rank.of(data.evaluation)
    reads = reads[reads["fetch"] >= 0]
    fetch = np.searchsorted(fetches, reads["fetch"])
    if samples.batch.one_file_each:
        return np.bincount(distinct_rows(fetch, reads["file"]).values[:, 0])
    return np.round(np.bincount(fetch, weights=reads["length"]) / samples.batch.sample_bytes).astype(np.int64)


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
    until = np.where(in_step, loop.step_end_ns[step], np.append(loop.begin_ns[events[1:]], 0))
    return (until - got)[in_step | follows].astype(float)
