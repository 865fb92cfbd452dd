"""The samples: how large, how many in a batch and in a file, how many passes over them, and the record of each. Pure.

The bytes that a step reads show only batch size times record length. The first evidence that splits them counts;
without any, a batch is one sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dxt_replay.replay.causal.training_loop import PIPELINE
from dxt_replay.traces.schema import codes
from dxt_replay.workloads.data_set_files import data_set_files
from dxt_replay.workloads.description import Dataset, Format, Workload
from dxt_replay.workloads.fit.data_files import DataFiles
from dxt_replay.workloads.fit.observation import Observation, RankReads
from dxt_replay.workloads.fit.workload_text import Estimates

IMAGES = ("jpeg", "png")
"""DLIO's formats with one sample per file."""

WHOLE_FILE = 0.98
"""Share of a file that is read between two reads of its beginning, from which it counts as read whole."""

MODAL_SHARE = 0.5
"""Least share of the samples that must agree in size, or in number per step."""

LIBRARY_GAP = 4096
"""Largest gap in bytes within a sample that an HDF5 library may have caused with the nodes of its index."""

REPEATED_SHARE = 0.8
"""Share of a batch's pieces that must be as long as those of the previous sample."""

ELEMENTS_OFF = 0.06
"""Largest deviation of the elements per step of an input pipeline from a whole number."""

MIN_STEPS = 40
"""Least number of steps for counting elements per step: in fewer, the filling of buffers dominates."""

PRODUCERS = ("ParallelInterleaveProduce", "InterleaveProduce")
"""Spans of tf.data that end once per element of a stage that reads files, and once per file."""

LOADED_AT_ONCE = 0.1
"""If all reads lie within this share of the steps, the data set counts as loaded before training."""

PASSES_OFF = 0.15
"""Largest deviation of a number of passes from a whole number that is rounded away."""

SEEN_PASSES = 1.5
"""Passes over the seen samples from which these count as all samples."""

_MOST_RECORD_BYTES = 1 << 50


class Batch(NamedTuple):
    """How many samples of how many bytes a step reads, and how that was found. `distinct`: different samples; 0:
    unknown."""

    size: int
    sample_bytes: float
    found: str
    one_file_each: bool = False
    distinct: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of the data set as DLIO counts them.

    epochs, steps_per_epoch: of the description. steps: of a rank in the capture. limit: total_training_steps, None
    where whole epochs were run. at_once: whether all is loaded within a few steps.
    """

    batch: Batch
    epochs: int
    steps_per_epoch: int
    steps: int
    limit: int | None
    at_once: bool
    estimates: Estimates

    @property
    def run_steps(self) -> int:
        """Steps of a rank that the description comes to."""
        return self.limit if self.limit is not None else self.epochs * self.steps_per_epoch


def samples(seen: Observation, data: DataFiles, batch_size: int | None) -> Samples:
    """The samples of a capture. `batch_size`: where the caller knows it."""
    steps = round(float(np.mean([rank.training_steps.sum() for rank in seen.looked])))
    at_once = all(
        len(np.unique(rank.trained_on(data.train)["fetch"])) <= LOADED_AT_ONCE * max(int(rank.is_training.sum()), 1)
        for rank in seen.looked
    )
    if at_once:
        return _loaded(seen, data, steps)
    files, step_bytes = len(data.train), _step_bytes(seen, data, steps)
    overhead = _overhead_bytes(data.format, max(int(seen.looked[0].model.step_bytes), 1))
    batch = _batch(seen, data, step_bytes, overhead, batch_size)
    held, how = _held(seen, data, batch, overhead)
    passes = steps * batch.size * seen.ranks / (held * files)
    epochs, per_file, limit = _epochs(passes, held, files, batch, steps, seen.ranks)
    estimates = {
        "reader.batch_size": (batch.size, batch.found),
        "dataset.num_samples_per_file": (per_file, f"{held:.4g}, {how}"),
        "train.epochs": (epochs, f"{passes:.3g} passes: {steps} steps of {step_bytes:.6g} B on each rank"),
        **_record(seen, data, batch, per_file, of_files=batch.one_file_each, may_vary=per_file == 1),
    }
    if limit is not None:
        estimates["train.total_training_steps"] = limit, "steps of the capture, which end before all samples were read"
    return Samples(
        batch=batch,
        epochs=epochs,
        steps_per_epoch=per_file * files // (batch.size * seen.ranks),
        steps=steps,
        limit=limit,
        at_once=False,
        estimates=estimates,
    )


def _loaded(seen: Observation, data: DataFiles, steps: int) -> Samples:
    """A data set that every rank loads whole: files of its own for each rank, as DLIO reads no file on two."""
    files = len(data.train)
    per_file = max(steps // files, 1)
    how = "all files are loaded before training: what a step takes is not known"
    batch = Batch(1, float(data.sizes.mean()) / per_file, how)
    return Samples(
        batch=batch,
        epochs=1,
        steps_per_epoch=per_file * files,
        steps=steps,
        limit=None,
        at_once=True,
        estimates={
            "dataset.num_files_train": (files * seen.ranks, "each rank loads all files; DLIO shares files out"),
            "reader.batch_size": (1, how),
            "dataset.num_samples_per_file": (per_file, f"{steps} steps shared by the files of a rank"),
            "train.epochs": (1, "the files are read once"),
            **_record(seen, data, batch, per_file, of_files=True, may_vary=False),
        },
    )


def _step_bytes(seen: Observation, data: DataFiles, steps: int) -> float:
    """Bytes that a step of a rank consumes of the data set.

    Readers that run ahead fill buffers first, so the first quarter of the steps does not count; of streams, whole
    passes over the files are believed before what the reads of single steps show.
    """
    synchronous, each = seen.looked[0].synchronous, []
    for rank in seen.looked:
        reads = rank.trained_on(data.train)
        by_fetch = np.bincount(reads["fetch"], weights=reads["length"], minlength=len(rank.is_training))
        of_steps = by_fetch[rank.is_training]
        first = 0 if synchronous else len(of_steps) // 4
        each.append(float(of_steps[first:].sum()) / max(len(of_steps) - first if first else steps, 1))
    found = float(np.mean(each))
    whole = float(data.sizes.sum()) / (steps * seen.ranks)
    nearest = round(found / whole)
    if data.stream and not synchronous and nearest and abs(found / whole - nearest) <= PASSES_OFF * nearest:
        return whole * nearest
    return found


def _batch(seen: Observation, data: DataFiles, step_bytes: float, overhead: int, size: int | None) -> Batch:
    """Sample and batch, from the first evidence that exists. `overhead`: bytes that the format adds to a sample."""
    if size is not None:
        return Batch(size, max(step_bytes / size - overhead, 1), "given with --batch")
    return (
        _whole_files(seen, data)
        or _images(seen, data)
        or (None if data.stream else _repeated_runs(seen, data))
        or _elements(seen, data, step_bytes, overhead)
        or Batch(1, max(step_bytes - overhead, 1), "not known, a step's bytes are taken for one sample: give --batch")
    )


def _whole_files(seen: Observation, data: DataFiles) -> Batch | None:
    """One file per sample: most fetches read the same number of files, each completely."""
    numbers, whole, read = [np.empty(0, dtype=np.int64)], 0, 0
    for rank in seen.looked:
        reads = rank.trained_on(data.train)
        pair, place = np.unique(reads["fetch"] * len(seen.paths) + reads["file"], return_inverse=True)
        moved = np.bincount(place, weights=reads["length"], minlength=len(pair))
        fetch, file = np.divmod(pair, len(seen.paths))
        numbers.append(np.unique(fetch, return_counts=True)[1])
        whole += int((moved >= WHOLE_FILE * seen.sizes[file]).sum())
        read += len(pair)
    most, share = modal(np.concatenate(numbers))
    if not read or whole < MODAL_SHARE * read or share < MODAL_SHARE:
        return None
    how = f"{100 * share:.3g} % of the batches read {most} whole files each"
    return Batch(most, float(data.sizes.mean()), how, one_file_each=True)


def _images(seen: Observation, data: DataFiles) -> Batch | None:
    """An image is one sample. With readers that run ahead, a batch is the mean number of images read per step."""
    if data.format not in IMAGES:
        return None
    images, steps = 0.0, sum(int(rank.training_steps.sum()) for rank in seen.looked)
    for rank in seen.looked:
        reads = rank.reads[~rank.waited(training=False) & np.isin(rank.reads["file"], data.train)]
        reads = reads[reads["length"] > 0]
        images += float((reads["length"] / seen.sizes[reads["file"]]).sum())
    size = round(images / max(steps, 1))
    how = f"{images:.0f} images were read for {steps} steps; whether some batches are smaller is not known"
    return Batch(size, float(data.sizes.mean()), how, one_file_each=True) if size else None


def _repeated_runs(seen: Observation, data: DataFiles) -> Batch | None:
    """Runs of reads without a gap, one or several per sample: their lengths repeat within a batch.

    If they do not repeat, a batch is one sample, provided that most batches are equally large.
    """
    parts = [runs_of(rank, data.train) for rank in seen.looked]
    _, moved, fetch = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if not len(moved):
        return None
    rank = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    first = np.flatnonzero(np.append(True, (np.diff(fetch) != 0) | (np.diff(rank) != 0)))
    count = np.diff(np.append(first, len(fetch)))
    most, share = modal(count)
    table = np.stack([moved[first[count == most] + column] for column in range(most)], axis=1)
    period = next(
        width
        for width in range(1, most + 1)
        if width == most or (most % width == 0 and (table[:, width:] == table[:, :-width]).mean() >= REPEATED_SHARE)
    )
    sizes = table.reshape(-1, period).sum(axis=1)
    size, agree = modal(sizes, weights=sizes)
    if agree < MODAL_SHARE:
        return None
    data_reads = [_data_reads(rank, data.train) for rank in seen.looked]
    places = np.concatenate([reads["file"] << 44 | reads["offset"] for reads in data_reads])
    lengths = np.concatenate([reads["length"] for reads in data_reads])
    return Batch(
        most // period,
        float(size),
        f"{most // period} times {size} B in {100 * share:.3g} % of the steps, each in {period} pieces without a gap",
        distinct=round(int(lengths[np.unique(places, return_index=True)[1]].sum()) / size),
    )


def runs_of(rank: RankReads, files: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs of data reads of one batch without a gap: place (file and offset in one number), bytes and fetch of each."""
    reads = _data_reads(rank, files)
    reads = reads[np.lexsort((reads["start_ns"], reads["lane"], reads["fetch"]))]
    gap = reads["offset"][1:] - reads["offset"][:-1] - reads["length"][:-1]
    joined = (gap >= 0) & (gap <= LIBRARY_GAP)
    for name in ("file", "fetch", "lane"):
        joined &= reads[name][1:] == reads[name][:-1]
    first = np.flatnonzero(np.concatenate(([True], ~joined))[: len(reads)])
    moved = np.add.reduceat(reads["length"], first) if len(first) else reads["length"]
    return reads["file"][first] << 44 | reads["offset"][first], moved, reads["fetch"][first]


def _data_reads(rank: RankReads, files: np.ndarray) -> np.ndarray:
    """The reads of training steps that are data. An HDF5 library's own reads have other lengths."""
    reads = rank.trained_on(files)
    reads = reads[reads["length"] > 0]
    return reads[_is_data(reads["length"])]


def _is_data(length: np.ndarray) -> np.ndarray:
    """bool (n,): reads of a length that carries at least 2 % of the bytes; all reads if there are many lengths."""
    values, place = np.unique(length, return_inverse=True)
    moved = np.bincount(place, weights=length, minlength=len(values))
    carrying = moved >= 0.02 * moved.sum()
    return carrying[place] if moved[carrying].sum() >= 0.8 * moved.sum() else np.ones(len(length), dtype=bool)


def _elements(seen: Observation, data: DataFiles, step_bytes: float, overhead: int) -> Batch | None:
    """Elements that a stage of tf.data made per step, in the middle half of the steps, if their number is whole."""
    rank = seen.looked[0]
    ends = rank.loop.fetch_ends_ns
    if len(ends) < MIN_STEPS:
        return None
    # The last span of a file makes no element.
    begun = int((rank.of(data.train)["offset"] == 0).sum()) / max(len(rank.is_training), 1)
    pipeline, end_ns = codes(rank.spans, "kind") == PIPELINE, rank.spans["end_ns"].to_numpy()
    names = np.array(rank.spans["name"].to_pylist(), dtype=object)
    first, last = len(ends) // 4, 3 * len(ends) // 4
    for name in PRODUCERS:
        had = np.searchsorted(np.sort(end_ns[pipeline & (names == name)]), ends[[first, last]], side="right")
        number = float(had[1] - had[0]) / (last - first) - begun
        nearest = round(number)
        if nearest >= 1 and abs(number - nearest) <= ELEMENTS_OFF * nearest:
            sample_bytes = max(step_bytes / nearest - overhead, 1)
            return Batch(nearest, sample_bytes, f"{number:.3g} spans {name} for each step")
    return None


def _held(seen: Observation, data: DataFiles, batch: Batch, overhead: int) -> tuple[float, str]:
    """Samples that a file seems to hold, and how that was found."""
    if batch.one_file_each:
        return 1.0, "each sample is a file"
    stored = sum(seen.datasets.get(file, 0) for file in data.train.tolist())
    if stored:
        return stored / batch.sample_bytes / len(data.train), "from the elements of the largest HDF5 dataset"
    taken = int(seen.looked[0].training_steps.sum()) * batch.size * seen.ranks
    if batch.distinct and taken >= SEEN_PASSES * batch.distinct and seen.ranks == len(seen.looked):
        return batch.distinct / len(data.train), "from the different places that were read"
    return max(float(data.sizes.mean()) / (batch.sample_bytes + overhead), 1.0), "from the size of a file"


def _epochs(
    passes: float, held: float, files: int, batch: Batch, steps: int, ranks: int
) -> tuple[int, int, int | None]:
    """Epochs, samples per file, and the limit of steps.

    Epochs are whole. Where a file holds several samples it may hold fewer or more than it seems to, so that the steps
    come out right: steps weigh double.
    """
    at_a_time, nearest = batch.size * ranks, max(round(held), 1)
    if passes <= 1 - PASSES_OFF:
        return 1, nearest, steps
    candidates = []
    for epochs in {max(int(passes), 1), math.ceil(passes)}:
        fitting = math.ceil(round(steps / epochs) * at_a_time / files)
        for per_file in {nearest} if batch.one_file_each else {nearest, max(fitting, 1)}:
            run = epochs * (per_file * files // at_a_time)
            candidates.append((abs(per_file / held - 1) + 2 * abs(run / steps - 1), epochs, per_file))
    _, epochs, per_file = min(candidates)
    return epochs, per_file, steps if epochs == 1 and per_file * files // at_a_time > steps else None


def _record(
    seen: Observation, data: DataFiles, batch: Batch, per_file: int, *, of_files: bool, may_vary: bool
) -> dict[str, tuple[Any, str]]:
    """The keys of the record, and of the requests. `of_files`: the length follows from the size of a file; `may_vary`:
    its deviation follows from the sizes of the files."""
    mean, deviation = float(data.sizes.mean()), float(data.sizes.std()) if may_vary else 0.0
    length, found = max(round(batch.sample_bytes), 1), "bytes of a sample"
    if of_files:
        length = _record_of_file(data.format, mean, per_file)
        found = f"mean size of the files, {mean:,.0f} B, without what the format adds"
    estimates: dict[str, tuple[Any, str]] = {"dataset.record_length_bytes": (length, found)}
    lengths = np.concatenate([rank.of(data.train)["length"] for rank in seen.looked])
    lengths = lengths[lengths > 0]
    carrying = lengths[_is_data(lengths)]
    request, _ = modal(carrying, weights=carrying)
    found = f"most bytes are read in requests of {request} B"
    # DLIO draws both dimensions of a record, so that lengths deviate by this over sqrt(2).
    varies = deviation > 1e-3 * mean
    if varies:
        stdev = float(f"{math.sqrt(2) * deviation / mean * length:.6g}")
        how = f"sqrt(2) times the deviation of the sizes, {deviation:,.0f} B"
        estimates["dataset.record_length_bytes_stdev"] = stdev, how
    elif data.format == "hdf5" and 0 < request < length and length % request == 0:
        estimates["dataset.record_dims"] = [length // request, request], found
        estimates["dataset.hdf5.chunk_dims"] = [1, 1, request], found
    elif data.format == "hdf5" and request > length and request % length == 0 and per_file >= request // length:
        estimates["dataset.record_dims"] = [1, length], found
        estimates["dataset.hdf5.chunk_dims"] = [request // length, 1, length], found
    elif data.format not in (*IMAGES, "csv") and math.isqrt(length) ** 2 != length:
        dims = [1, length] if data.format == "hdf5" else [length]
        estimates["dataset.record_dims"] = dims, "DLIO makes squares of lengths; these it keeps"
    if data.format == "tfrecord" and request:
        estimates["reader.transfer_size"] = request, found
    return estimates


def _overhead_bytes(name: Format, record: int) -> int:
    """Bytes that TFRecord adds to a record of `record` bytes; 0 for formats that only have headers per file."""
    return _file_bytes(name, record, 1) - record if name == "tfrecord" else 0


def _record_of_file(name: Format, file_bytes: float, per_file: int) -> int:
    """Largest record length for which a file of `per_file` samples is at most `file_bytes` long."""
    low, high = 1, 2
    while _file_bytes(name, high, per_file) <= file_bytes and high < _MOST_RECORD_BYTES:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _file_bytes(name, middle, per_file) <= file_bytes else (low, middle)
    return low


def _file_bytes(name: Format, record: int, per_file: int) -> int:
    """Size of a file of DLIO with `per_file` records of this length."""
    dims = (1, record) if name in (*IMAGES, "hdf5") else (record,)
    data = Dataset(format=name, num_files_train=1, num_samples_per_file=per_file, record_dims=dims)
    return int(data_set_files(Workload(dataset=data)).train.sizes[0])


def modal(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[int, float]:
    """The most frequent value, and its share; with `weights`, the value of the largest weight."""
    found, place = np.unique(values, return_inverse=True)
    if not len(found):
        return 0, 0.0
    weight = np.bincount(place, weights=weights)
    best = int(weight.argmax())
    return int(found[best]), float(weight[best] / weight.sum())
