"""Fits a workload description to a capture: each key of DLIO with its value, and how that was found.

The bytes that a step reads show only batch size times record length. The first evidence that splits them counts;
without any, a batch is one sample.
"""

from __future__ import annotations

import math
import posixpath
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import yaml

from dxt_replay.replay.causal.loop import CHECKPOINT, COLLECTIVE, EVALUATION, FETCH, PIPELINE
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import FORMATS, WRITE, codes
from dxt_replay.traces.units import NS_PER_S, format_counted
from dxt_replay.workloads.description import Dataset, Format, Framework, Model, Workload
from dxt_replay.workloads.files import data_set_files
from dxt_replay.workloads.fit.observation import Observation, RankReads
from dxt_replay.workloads.generate.checkpoints import saving, shards_of_rank
from dxt_replay.workloads.source import overridden
from dxt_replay.workloads.values import KEYS, workload_from_values

Estimates = Mapping[str, tuple[Any, str]]
"""Key, such as `reader.batch_size` -> its value as YAML gives it, and how that was found; what is not known of the
value stands there too."""

SUFFIXES: Mapping[str, Format] = {".npy": "npy", ".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png"}
"""Suffix of a file name -> DLIO's format, for files whose format the capture does not know."""

IMAGES = ("jpeg", "png")
"""DLIO's formats with one sample per file."""

MIN_FILE_SHARE = 0.02
"""Least share of the bytes of the most-read file that a file of the data set carries, and of the bytes of all reads
that reads of one length carry which are data: an HDF5 library's own reads have other lengths."""

STREAM_SHARE = 0.9
"""Share of a file's reads that continue the previous one, from which the file counts as a stream; and of the samples
that lie behind the previous one, from which their order counts as sequential."""

WHOLE_FILE = 0.98
"""Share of a file that a batch reads, from which it counts as read whole."""

MODAL_SHARE = 0.5
"""Least share of the samples that must agree in size, or in number per step; of opens per sample from which the
application opens a file for every sample; and of the times that must be equal for a constant time, below 1 because the
first steps of epochs are longer."""

LIBRARY_GAP = 4096
"""Largest gap in bytes within a sample that an HDF5 library may have caused with the nodes of its index."""

REPEATED_SHARE = 0.8
"""Share of a batch's pieces that must be as long as those of the previous sample."""

ELEMENTS_OFF, MIN_STEPS = 0.06, 40
"""Largest deviation of the elements per step of an input pipeline from a whole number, and least number of steps for
counting them: in fewer, the filling of buffers dominates."""

LOADED_AT_ONCE = 0.1
"""If all reads lie within this share of the steps, the data set counts as loaded before training."""

PASSES_OFF, SEEN_PASSES = 0.15, 1.5
"""Largest deviation of a number of passes from a whole number that is rounded away, and passes over the seen samples
from which these count as all samples."""

PAUSE, MOST_PAUSES = 20.0, 0.05
"""A step that is so many times as long as the median holds a pause, which is idle, if at most this share do."""

RESULT_SHARE, MIN_BYTES = 0.05, 1024
"""Share of a capture's bytes from which a file that is written outside of the loop counts as a result; bytes of a save
below which a rank does not count as a writer of the model."""

AHEAD_FILES = 3
"""Files that DLIO's TFRecord reader has open for each of its threads: one is read, two are opened ahead."""


def fit(seen: Observation, *, batch: int | None = None) -> Estimates:
    """The estimates of a description, in the order of DLIO's keys. `batch`: the batch size, if it is known.

    Raises: CaptureError where the loop neither reads nor saves anything.
    """
    found = _Fit(seen, batch).keys
    if found["dataset.format"][0] == "synthetic" and not found["workflow.checkpoint"][0]:
        raise CaptureError(
            "no training step waits for a read and none writes a checkpoint: there is nothing to describe; "
            "`dxt-replay summary` shows what the capture has"
        )
    return {key: found[key] for key in KEYS if key in found}


def workload_of(estimates: Estimates) -> Workload:
    """The description. Raises: UsageError where its values contradict each other."""
    values: dict[str, Any] = {}
    for key, (value, _) in estimates.items():
        values = overridden(values, key.split("."), value)
    return workload_from_values(values)[0]


class _Batch(NamedTuple):
    """How many samples of how many bytes a step reads, and how that was found. `distinct`: different samples; 0:
    unknown."""

    size: int
    sample_bytes: float
    found: str
    one_file_each: bool = False
    distinct: int = 0


class _Fit:
    """The estimates of one capture, `keys`. Each method that sets some says of what."""

    def __init__(self, seen: Observation, batch: int | None) -> None:
        self.seen, self.looked = seen, seen.looked
        self.keys: dict[str, tuple[Any, str]] = {"workflow.train": (True, "the capture has training steps")}
        self.steps = round(float(np.mean([rank.training_steps.sum() for rank in seen.looked])))
        self.reads_files = self._data_files()
        self.at_once, self.epochs, self.per_epoch = False, 1, 0
        self.limit: int | None = None
        if self.reads_files:
            self._samples(batch)
        framework, how = self._framework()
        self.keys |= {"framework": (framework, how), "reader.data_loader": (framework, how)}
        if self.reads_files:
            self._loader(framework)
            self._evaluations()
        waits = self.reads_files and not self.at_once
        computed = [_compute_ns(rank, waits_for_input=waits) for rank in self.looked]
        self.keys["train.computation_time"] = _times_of(computed)
        self._saves(framework)

    # The files of the data set.

    def _data_files(self) -> bool:
        """Training files, evaluation files, their format and folders; False if no step waits for a read.

        Files are grouped by folder and suffix. If there are several suffixes, the one with the most bytes is the data
        set."""
        seen = self.seen
        training, evaluating = np.zeros((2, len(seen.paths)), dtype=np.int64)
        for rank in self.looked:
            for moved, is_training in ((training, True), (evaluating, False)):
                reads = rank.reads[rank.waited(training=is_training)]
                np.add.at(moved, reads["file"], reads["length"])
        if not training.any():
            steps = int(self.looked[0].training_steps.sum())
            self.keys["dataset.format"] = "synthetic", "no training step waits for a read"
            self.keys["dataset.num_files_train"] = steps * seen.ranks, "a sample for each step and rank"
            return False
        kinds = [(posixpath.dirname(path), posixpath.splitext(path)[1].lower()) for path in seen.paths]
        by_suffix: Counter[str] = Counter()
        for file in np.flatnonzero(training).tolist():
            by_suffix[kinds[file][1]] += int(training[file])
        suffix = by_suffix.most_common(1)[0][0]
        was_read = seen.uses["read"] > 0
        mine = np.array([kind[1] == suffix for kind in kinds], dtype=bool) & was_read
        large = training >= MIN_FILE_SHARE * training[mine].max(initial=0)
        train_kinds = {kinds[file] for file in np.flatnonzero(mine & large & (training > 0)).tolist()}
        other_kinds = {kinds[file] for file in np.flatnonzero(mine & (evaluating > 0) & (training == 0)).tolist()}
        in_train, in_evaluation = (
            np.array([kind in chosen for kind in kinds], dtype=bool) & was_read
            for chosen in (train_kinds, other_kinds - train_kinds)
        )
        # Files that no examined rank read are assigned to the data set by folder and suffix alone.
        self.train = np.flatnonzero(in_train & (large | ((training == 0) & (evaluating == 0))))
        self.evaluation, self.sizes = np.flatnonzero(in_evaluation), seen.sizes[self.train].astype(float)
        self.stream = suffix not in (".h5", ".hdf5", ".npz", ".npy") and self._is_stream()  # a library seeks in these
        self.format, how = self._format(suffix)
        folders = [{kinds[file][0] for file in files.tolist()} for files in (self.train, self.evaluation)]
        common = posixpath.commonpath(folders[0]) if folders[0] else "."
        head, tail = posixpath.split(common)  # DLIO puts its folder `train` below the data folder
        number = "distinct files that were read; unread files are not known"
        self.keys |= {
            "dataset.format": (self.format, how),
            "dataset.data_folder": (head if tail == "train" and head else common, "where the files lie"),
            "dataset.num_files_train": (len(self.train), number),
            "dataset.num_files_eval": (
                len(self.evaluation), number if len(self.evaluation) else "no files of evaluations alone"
            ),
        }  # fmt: skip
        for which, of in zip(("train", "eval"), folders, strict=True):
            if len(of) > 1:
                self.keys[f"dataset.num_subfolders_{which}"] = len(of), "distinct folders of the files"
        return True

    def _is_stream(self) -> bool:
        """Whether most reads continue the previous one in the same file, and a file takes several reads."""
        continued = total = files = 0
        for rank in self.looked:
            reads = rank.of(self.train)
            reads = reads[reads["length"] > 0]
            reads = reads[np.argsort(reads["file"], kind="stable")]
            ends = reads["offset"] + reads["length"]
            follows = (reads["file"][1:] == reads["file"][:-1]) & (reads["offset"][1:] == ends[:-1])
            begins = int((reads["offset"] == 0).sum())
            continued, total, files = continued + int(follows.sum()) + begins, total + len(reads), files + begins
        return total > 0 and continued >= STREAM_SHARE * total and total >= 2 * max(files, 1)

    def _format(self, suffix: str) -> tuple[Format, str]:
        own = FORMATS[int(np.bincount(self.seen.formats[self.train]).argmax())]
        if own in ("tfrecord", "hdf5", "npz", "csv"):
            return own, f"format of the files that training steps read ({own})"  # type: ignore[return-value]
        if suffix in SUFFIXES:
            return SUFFIXES[suffix], f"suffix {suffix} of the files that training steps read"
        named = f"the suffix {suffix}, which DLIO does not know," if suffix else "no suffix"
        if self.stream:
            return "tfrecord", f"files with {named} are read as streams from end to end"
        return "indexed_binary", f"files with {named} are read in records at offsets"

    # The samples: how large, how many in a batch and in a file, how many passes over them.

    def _samples(self, size: int | None) -> None:
        files, ranks = len(self.train), self.seen.ranks
        self.at_once = all(
            len(np.unique(rank.trained_on(self.train)["fetch"])) <= LOADED_AT_ONCE * max(int(rank.is_training.sum()), 1)
            for rank in self.looked
        )
        if self.at_once:  # every rank loads all files whole; DLIO reads no file on two ranks
            per_file, how = (
                max(self.steps // files, 1),
                "all files are loaded before training: what a step takes is not known",
            )
            self.batch, self.per_epoch = _Batch(1, float(self.sizes.mean()) / per_file, how), per_file * files
            self.keys |= {
                "dataset.num_files_train": (files * ranks, "each rank loads all files; DLIO shares files out"),
                "reader.batch_size": (1, how),
                "dataset.num_samples_per_file": (per_file, f"{self.steps} steps shared by the files of a rank"),
                "train.epochs": (1, "the files are read once"),
            }
            self._record(per_file, of_files=True, may_vary=False)
            return
        step_bytes = self._step_bytes()
        # Bytes that TFRecord adds to a record; other formats only have headers per file.
        record = max(int(self.looked[0].model.feed.step_bytes), 1)
        overhead = _file_bytes("tfrecord", record, 1) - record if self.format == "tfrecord" else 0
        unknown = "not known, a step's bytes are taken for one sample: give --batch"
        if size is not None:
            self.batch = _Batch(size, max(step_bytes / size - overhead, 1), "given with --batch")
        else:
            self.batch = (
                self._whole_files()
                or self._images()
                or (None if self.stream else self._repeated_runs())
                or self._elements(step_bytes, overhead)
                or _Batch(1, max(step_bytes - overhead, 1), unknown)
            )
        batch, held, how = self.batch, *self._held(overhead)
        passes = self.steps * batch.size * ranks / (held * files)
        self.epochs, per_file, self.limit = self._epochs(passes, held)
        self.per_epoch = per_file * files // (batch.size * ranks)
        self.keys |= {
            "reader.batch_size": (batch.size, batch.found),
            "dataset.num_samples_per_file": (per_file, f"{held:.4g}, {how}"),
            "train.epochs": (
                self.epochs, f"{passes:.3g} passes: {self.steps} steps of {step_bytes:.6g} B on each rank"
            ),
        }  # fmt: skip
        if self.limit is not None:
            how = "steps of the capture, which end before all samples were read"
            self.keys["train.total_training_steps"] = self.limit, how
        self._record(per_file, of_files=batch.one_file_each, may_vary=per_file == 1)

    def _step_bytes(self) -> float:
        """Bytes that a step of a rank consumes of the data set.

        Readers that run ahead fill buffers first, so the first quarter of the steps does not count; of streams, whole
        passes over the files are believed before what the reads of single steps show."""
        synchronous, each = self.looked[0].synchronous, []
        for rank in self.looked:
            reads = rank.trained_on(self.train)
            by_fetch = np.bincount(reads["fetch"], weights=reads["length"], minlength=len(rank.is_training))
            of_steps = by_fetch[rank.is_training]
            first = 0 if synchronous else len(of_steps) // 4
            each.append(float(of_steps[first:].sum()) / max(len(of_steps) - first if first else self.steps, 1))
        found = float(np.mean(each))
        whole = float(self.sizes.sum()) / (self.steps * self.seen.ranks)
        nearest = round(found / whole)
        if self.stream and not synchronous and nearest and abs(found / whole - nearest) <= PASSES_OFF * nearest:
            return whole * nearest
        return found

    def _whole_files(self) -> _Batch | None:
        """One file per sample: most fetches read the same number of files, each completely."""
        numbers, whole, read, files = [np.empty(0, dtype=np.int64)], 0, 0, len(self.seen.paths)
        for rank in self.looked:
            reads = rank.trained_on(self.train)
            pair, place = np.unique(reads["fetch"] * files + reads["file"], return_inverse=True)
            moved = np.bincount(place, weights=reads["length"], minlength=len(pair))
            fetch, file = np.divmod(pair, files)
            numbers.append(np.unique(fetch, return_counts=True)[1])
            whole, read = whole + int((moved >= WHOLE_FILE * self.seen.sizes[file]).sum()), read + len(pair)
        most, share = modal(np.concatenate(numbers))
        if not read or whole < MODAL_SHARE * read or share < MODAL_SHARE:
            return None
        how = f"{100 * share:.3g} % of the batches read {most} whole files each"
        return _Batch(most, float(self.sizes.mean()), how, one_file_each=True)

    def _images(self) -> _Batch | None:
        """An image is one sample. With readers that run ahead, a batch is the mean number of images read per step."""
        if self.format not in IMAGES:
            return None
        images, steps = 0.0, sum(int(rank.training_steps.sum()) for rank in self.looked)
        for rank in self.looked:
            reads = rank.reads[~rank.waited(training=False) & np.isin(rank.reads["file"], self.train)]
            reads = reads[reads["length"] > 0]
            images += float((reads["length"] / self.seen.sizes[reads["file"]]).sum())
        size = round(images / max(steps, 1))
        how = f"{images:.0f} images were read for {steps} steps; whether some batches are smaller is not known"
        return _Batch(size, float(self.sizes.mean()), how, one_file_each=True) if size else None

    def _repeated_runs(self) -> _Batch | None:
        """Runs of reads without a gap, one or several per sample: their lengths repeat within a batch.

        If they do not repeat, a batch is one sample, provided that most batches are equally large."""
        parts = [_runs_of(rank, self.train) for rank in self.looked]
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
        data = np.concatenate([_data_reads(rank, self.train) for rank in self.looked])
        different = np.unique(data["file"] << 44 | data["offset"], return_index=True)[1]
        return _Batch(
            most // period,
            float(size),
            f"{most // period} times {size} B in {100 * share:.3g} % of the steps, each in {period} pieces without a "
            "gap",
            distinct=round(int(data["length"][different].sum()) / size),
        )

    def _elements(self, step_bytes: float, overhead: int) -> _Batch | None:
        """Elements that a stage of tf.data made per step, in the middle half of the steps, if their number is whole."""
        rank = self.looked[0]
        ends = rank.loop.fetch_ends_ns
        if len(ends) < MIN_STEPS:
            return None
        # Spans end once per element of a stage that reads files, and once per file: the last one makes no element.
        begun = int((rank.of(self.train)["offset"] == 0).sum()) / max(len(rank.is_training), 1)
        pipeline, end_ns = codes(rank.spans, "kind") == PIPELINE, rank.spans["end_ns"].to_numpy()
        names = np.array(rank.spans["name"].to_pylist(), dtype=object)
        first, last = len(ends) // 4, 3 * len(ends) // 4
        for name in ("ParallelInterleaveProduce", "InterleaveProduce"):
            had = np.searchsorted(np.sort(end_ns[pipeline & (names == name)]), ends[[first, last]], side="right")
            number = float(had[1] - had[0]) / (last - first) - begun
            nearest = round(number)
            if nearest >= 1 and abs(number - nearest) <= ELEMENTS_OFF * nearest:
                sample_bytes = max(step_bytes / nearest - overhead, 1)
                return _Batch(nearest, sample_bytes, f"{number:.3g} spans {name} for each step")
        return None

    def _held(self, overhead: int) -> tuple[float, str]:
        """Samples that a file seems to hold, and how that was found."""
        batch, files = self.batch, len(self.train)
        if batch.one_file_each:
            return 1.0, "each sample is a file"
        stored = sum(self.seen.datasets.get(file, 0) for file in self.train.tolist())
        if stored:
            return stored / batch.sample_bytes / files, "from the elements of the largest HDF5 dataset"
        taken = int(self.looked[0].training_steps.sum()) * batch.size * self.seen.ranks
        if batch.distinct and taken >= SEEN_PASSES * batch.distinct and self.seen.ranks == len(self.looked):
            return batch.distinct / files, "from the different places that were read"
        return max(float(self.sizes.mean()) / (batch.sample_bytes + overhead), 1.0), "from the size of a file"

    def _epochs(self, passes: float, held: float) -> tuple[int, int, int | None]:
        """Epochs, samples per file, and the limit of steps.

        Epochs are whole. Where a file holds several samples it may hold fewer or more than it seems to, so that the
        steps come out right: steps weigh double."""
        files, steps, at_a_time = len(self.train), self.steps, self.batch.size * self.seen.ranks
        nearest, candidates = max(round(held), 1), []
        if passes <= 1 - PASSES_OFF:
            return 1, nearest, steps
        for epochs in {max(int(passes), 1), math.ceil(passes)}:
            fitting = math.ceil(round(steps / epochs) * at_a_time / files)
            for per_file in {nearest} if self.batch.one_file_each else {nearest, max(fitting, 1)}:
                run = epochs * (per_file * files // at_a_time)
                candidates.append((abs(per_file / held - 1) + 2 * abs(run / steps - 1), epochs, per_file))
        _, epochs, per_file = min(candidates)
        return epochs, per_file, steps if epochs == 1 and per_file * files // at_a_time > steps else None

    def _record(self, per_file: int, *, of_files: bool, may_vary: bool) -> None:
        """The record and the requests. `of_files`: its length follows from the size of a file; `may_vary`: its
        deviation follows from the sizes of the files."""
        name, mean = self.format, float(self.sizes.mean())
        deviation = float(self.sizes.std()) if may_vary else 0.0
        length, found = max(round(self.batch.sample_bytes), 1), "bytes of a sample"
        if of_files:
            length = _record_of_file(name, mean, per_file)
            found = f"mean size of the files, {mean:,.0f} B, without what the format adds"
        self.keys["dataset.record_length_bytes"] = length, found
        lengths = np.concatenate([rank.of(self.train)["length"] for rank in self.looked])
        lengths = lengths[lengths > 0]
        carrying = lengths[_is_data(lengths)]
        request, _ = modal(carrying, weights=carrying)
        found = f"most bytes are read in requests of {request} B"
        dims, chunk = None, None
        if deviation > 1e-3 * mean:
            # DLIO draws both dimensions of a record, so that lengths deviate by this over sqrt(2).
            stdev = float(f"{math.sqrt(2) * deviation / mean * length:.6g}")
            how = f"sqrt(2) times the deviation of the sizes, {deviation:,.0f} B"
            self.keys["dataset.record_length_bytes_stdev"] = stdev, how
        elif name == "hdf5" and 0 < request < length and length % request == 0:
            dims, chunk = [length // request, request], [1, 1, request]
        elif name == "hdf5" and request > length and request % length == 0 and per_file >= request // length:
            dims, chunk = [1, length], [request // length, 1, length]
        elif name not in (*IMAGES, "csv") and math.isqrt(length) ** 2 != length:
            dims = [1, length] if name == "hdf5" else [length]
        if dims:
            self.keys["dataset.record_dims"] = dims, found if chunk else "DLIO makes squares of lengths; these it keeps"
        if chunk:
            self.keys["dataset.hdf5.chunk_dims"] = chunk, found
        if name == "tfrecord" and request:
            self.keys["reader.transfer_size"] = request, found

    # The loader, the times, and the evaluations.

    def _framework(self) -> tuple[Framework, str]:
        """The framework of DLIO whose loader reads most like the capture, and how that was found."""
        if not self.reads_files:
            if "kineto" in self.seen.sources:
                return "pytorch", "a PyTorch profile"
            if "xplane" in self.seen.sources:
                return "tensorflow", "a TensorFlow profile"
            return "pytorch", "no profile names one, and nothing is read"
        if self.format == "tfrecord":
            return "tensorflow", "the one that DLIO has for TFRecord"
        dealing = self.looked[0].model.dealing
        if dealing is not None:
            return "pytorch", f"worker processes make whole batches in turn, {100 * dealing.consistent:.3g} % in time"
        if self.at_once:
            return "tensorflow", "it alone loads a file once for all of its samples"
        # PyTorch's loader opens a file for each sample, TensorFlow's keeps it open while it reads on in it.
        opened = sum(int(np.isin(rank.opens, self.train).sum()) for rank in self.looked)
        taken = max(self.batch.size * sum(int(rank.is_training.sum()) for rank in self.looked), 1)
        said = f"{opened / taken:.2g} opens for each sample"
        if opened >= MODAL_SHARE * taken or self.format not in ("hdf5", "npz", "npy", "csv"):
            return "pytorch", said
        return "tensorflow", f"{said}: files are kept open, which DLIO's PyTorch loader never does"

    def _loader(self, framework: Framework) -> None:
        """Readers, how far they run ahead, the order of samples, and the preparation of each."""
        looked, tfrecord, dealing = self.looked, self.format == "tfrecord", self.looked[0].model.dealing
        synchronous = dealing is None and all(rank.synchronous for rank in looked)
        lanes = round(float(np.median([len(np.unique(rank.of(self.train)["lane"])) for rank in looked])))
        if dealing is not None and framework == "pytorch":
            self.keys["reader.read_threads"] = dealing.workers, "worker processes in turn"
            ahead = dealing.prefetch * dealing.workers, f"{dealing.prefetch} batches for a worker"
        else:
            if tfrecord:
                flight = float(np.median(np.concatenate([_files_in_flight(rank, self.train) for rank in looked])))
                flight = max(flight, lanes) if self.seen.lanes_are_threads else flight
                how = f"{flight:.3g} files are read at the same time, DLIO has {AHEAD_FILES} for each thread"
                threads = max(round(flight / AHEAD_FILES), 1), how
            elif synchronous:
                threads = int(framework == "tensorflow"), "the training thread reads"
            else:
                inferred = "" if self.seen.lanes_are_threads else ", inferred from reads that overlap"
                threads = max(lanes, 1), f"threads that read the data set{inferred}"
            self.keys["reader.read_threads"] = threads
            made = [each for each in map(_batches_ahead, looked) if each is not None]
            if synchronous:
                ahead = 0, "reads never run ahead of the loop"
            elif made:
                ahead = max(made), "made batches that wait for the loop at most"
            else:
                ahead = 2, "not known: DLIO's default"
        self.keys["reader.prefetch_size"] = ahead
        # DLIO's TFRecord reader shuffles in memory alone.
        in_order = float(np.mean([self._rising(rank) for rank in looked]))
        if not (tfrecord or self.stream or self.at_once or in_order >= STREAM_SHARE):
            how = f"{100 * in_order:.3g} % of the samples lie behind the one before"
            self.keys["reader.sample_shuffle"] = "random", how
        if not (tfrecord or self.at_once):
            spent = float(np.median([_preparation_ns(rank, self.train) for rank in looked])) / NS_PER_S
            each = float(f"{spent / self.batch.size:.5g}")
            if each >= 1e-6:
                how = f"{spent:.3g} s beside the reads of each batch, the median"
                self.keys["reader.preprocess_time"] = each, how

    def _rising(self, rank: RankReads) -> float:
        """Share of a rank's samples that lie behind the previous one, by file or by place in the file."""
        places, _, _ = _runs_of(rank, self.train)
        if self.batch.one_file_each:
            places = np.argsort(np.argsort(self.seen.paths))[places >> 44]
        steps = np.diff(places)
        steps = steps[steps != 0]
        return float((steps > 0).mean()) if len(steps) else 1.0

    def _evaluations(self) -> None:
        """Batches, times and interval of the evaluations; a training step lies before each."""
        numbers, taken, times = [], [], []
        for rank in self.looked:
            reads = rank.of(self.evaluation)
            reads = reads[reads["fetch"] >= 0]
            fetches, fetch = np.unique(reads["fetch"], return_inverse=True)
            numbers.append(len(np.unique(rank.steps_begun(rank.loop.begin_ns[rank.loop.fetches[fetches]]))))
            if self.batch.one_file_each:
                taken.append(np.bincount(distinct_rows(fetch, reads["file"]).values[:, 0]))
            else:
                read = np.bincount(fetch, weights=reads["length"])
                taken.append(np.round(read / self.batch.sample_bytes).astype(np.int64))
            times.append(_evaluation_ns(rank, fetches))
        number = round(float(np.mean(numbers)))
        if not number:
            self.keys["workflow.evaluation"] = False, "no step waits for files that no training step reads"
            return
        between = max(round(self.epochs / number), 1)
        found = f"{number} evaluations in {self.epochs} epochs read files that no training step reads"
        self.keys |= {
            "workflow.evaluation": (True, found),
            "reader.batch_size_eval": (max(modal(np.concatenate(taken))[0], 1), "samples of most batches"),
            "evaluation.eval_time": _times_of(times),
            "evaluation.eval_after_epoch": (between, found),
            "evaluation.epochs_between_evals": (between, found),
        }

    # The checkpoints: who writes how much, and how often.

    def _saves(self, framework: Framework) -> None:
        """Checkpoints and the model. If nothing is written inside checkpoints, results written outside of the loop are
        expressed as one checkpoint at its end."""
        seen, sizes = self.seen, [rank.saved[rank.saved > 0] for rank in self.looked]
        pairs = zip(self.looked, sizes, strict=True)
        writers = [(rank, each) for rank, each in pairs if len(each) and np.median(each) >= MIN_BYTES]
        written = seen.uses["written"]
        results = np.flatnonzero((written >= RESULT_SHARE * seen.moved) & (written >= MIN_BYTES))
        if writers:
            rank, of_rank = writers[0]
            self.keys["workflow.checkpoint"] = True, f"{len(of_rank)} checkpoints on rank {rank.rank}"
            self._interval(rank)
            folder, tail = posixpath.split(posixpath.dirname(seen.paths[int(seen.uses["saved"].argmax())]))
            # DLIO makes a folder for each checkpoint.
            folder = folder if re.fullmatch(r"global_epoch\d+_step\d+", tail) else posixpath.join(folder, tail)
            where, size = (
                "where the checkpoints were written",
                int(np.median(np.concatenate([each for _, each in writers]))),
            )
            found = f"median of what a rank writes for a checkpoint, {size:,} B"
            # In DLIO every rank writes if more than one does.
            share = f"{len(writers)} of {len(sizes)} examined ranks write a share" if len(writers) > 1 else ""
        elif len(results) and self.reads_files:
            why = (
                f"the capture has no checkpoints: {len(results)} files written beside the loop stand for one at its end"
            )
            writing = min(int(seen.uses["writers"][results].sum()), seen.ranks)
            self.keys["workflow.checkpoint"] = True, why
            self.keys["checkpoint.checkpoint_after_epoch"] = self.epochs, "at the end"
            self.keys["checkpoint.epochs_between_checkpoints"] = self.epochs, "once"
            folder, where = posixpath.dirname(seen.paths[int(results[0])]), "where the results were written"
            size = int(written[results].sum()) // writing
            found, share = f"what a rank writes, {size:,} B", "every rank writes" if writing > 1 else ""
        else:
            self.keys["workflow.checkpoint"] = False, "no bytes are written inside checkpoints"
            return
        workload = Workload(framework=framework, model=Model(model_size_bytes=size))
        files = [file.rows for shard in shards_of_rank(workload.model, 1, 0) for file in saving(workload, shard)]
        headers = int(sum(rows["length"][rows["op"] == WRITE].sum() for rows in files)) - size
        self.keys["checkpoint.checkpoint_folder"] = folder or ".", where
        self.keys["model.model_size_bytes"] = max(size - headers, 1), f"{found}, without the framework's headers"
        if share:
            self.keys["model.parallelism.zero_stage"] = 1, share

    def _interval(self, rank: RankReads) -> None:
        """The interval of checkpoints in steps, from the number of steps completed before each.

        Checkpoints at the end of each whole epoch follow epochs, not steps. An interval that would lose the last
        checkpoint is shortened."""
        done = rank.steps_begun(rank.loop.begin_ns[np.flatnonzero(rank.saved)])
        every = max(int(np.median(np.diff(done, prepend=0))), 1)
        found = f"checkpoints after steps {', '.join(map(str, done[:4].tolist()))}{' ...' if len(done) > 4 else ''}"
        if self.reads_files:
            if self.limit is None and self.per_epoch and every % self.per_epoch == 0:
                after = max(int(done[0]) // self.per_epoch, 1)
                self.keys["checkpoint.checkpoint_after_epoch"] = after, found
                self.keys["checkpoint.epochs_between_checkpoints"] = every // self.per_epoch, found
                return
            run = self.limit if self.limit is not None else self.epochs * self.per_epoch
            if len(done) * every > run >= len(done):
                every = run // len(done)
                found += f"; the description comes to {run} steps instead of {self.steps}"
        self.keys["checkpoint.steps_between_checkpoints"] = every, found


def _runs_of(rank: RankReads, files: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
    """The reads of training steps that are data."""
    reads = rank.trained_on(files)
    reads = reads[reads["length"] > 0]
    return reads[_is_data(reads["length"])]


def _is_data(length: np.ndarray) -> np.ndarray:
    """bool (n,): reads of a length that carries a share of the bytes; all reads if there are many lengths."""
    values, place = np.unique(length, return_inverse=True)
    moved = np.bincount(place, weights=length, minlength=len(values))
    carrying = moved >= MIN_FILE_SHARE * moved.sum()
    return carrying[place] if moved[carrying].sum() >= 0.8 * moved.sum() else np.ones(len(length), dtype=bool)


def _record_of_file(name: Format, file_bytes: float, per_file: int) -> int:
    """Largest record length for which a file of `per_file` samples is at most `file_bytes` long."""
    low, high = 1, 2
    while _file_bytes(name, high, per_file) <= file_bytes and high < 1 << 50:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _file_bytes(name, middle, per_file) <= file_bytes else (low, middle)
    return low


def _file_bytes(name: Format, record: int, per_file: int) -> int:
    """Size of a file of DLIO with `per_file` records of this length."""
    dims = (1, record) if name in (*IMAGES, "hdf5") else (record,)
    data = Dataset(format=name, num_files_train=1, num_samples_per_file=per_file, record_dims=dims)
    return int(data_set_files(Workload(dataset=data))[0].sizes[0])


def modal(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[int, float]:
    """The most frequent value, and its share; with `weights`, the value of the largest weight."""
    found, place = np.unique(values, return_inverse=True)
    if not len(found):
        return 0, 0.0
    weight = np.bincount(place, weights=weights)
    best = int(weight.argmax())
    return int(found[best]), float(weight[best] / weight.sum())


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


def _times_of(by_rank: list[np.ndarray]) -> tuple[Any, str]:
    """A time per step from the times of each rank (ns), the first step left out: constant, or a mean and deviation."""
    seconds = np.concatenate([times[1:] if len(times) > 2 else times for times in by_rank]) / NS_PER_S
    if not seconds.any():
        return 0.0, "the steps show no time of their own"
    middle, steps = float(np.median(seconds)), f"{len(seconds)} steps, without the first of each rank"
    pauses = seconds > PAUSE * middle
    if 0 < pauses.mean() <= MOST_PAUSES:
        steps += f", and without {format_counted(int(pauses.sum()), 'pause')} of {seconds[pauses].sum():.3g} s in all"
        seconds = seconds[~pauses]
    if (np.abs(seconds - middle) <= 1e-4 * middle).mean() >= MODAL_SHARE:
        return float(f"{middle:.5g}"), f"median of {steps}"
    value = {"mean": float(f"{seconds.mean():.5g}"), "stdev": float(f"{seconds.std():.5g}")}
    return value, f"mean and deviation of {steps}"


def _compute_ns(rank: RankReads, *, waits_for_input: bool) -> np.ndarray:
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


def _preparation_ns(rank: RankReads, files: np.ndarray) -> float:
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
            mine = np.isin(deal["event"], events)
            ready[np.searchsorted(events, deal["event"][mine])] = deal["ready_ns"][mine]
    return float(np.median(between + ready))


def _evaluation_ns(rank: RankReads, fetches: np.ndarray) -> np.ndarray:
    """float64: ns from the end of each evaluation fetch until its step ends, or until the next fetch of that
    evaluation. The last fetch of an evaluation is left out if neither is known."""
    loop = rank.loop
    events = loop.fetches[fetches]
    got = loop.end_ns[events]
    step = np.searchsorted(loop.step_begin_ns, loop.begin_ns[events], side="right") - 1
    in_step = (step >= 0) & (got <= loop.step_end_ns[step]) & ~rank.training_steps[step]
    follows = np.diff(fetches, append=-1) == 1
    until = np.where(in_step, loop.step_end_ns[step], np.append(loop.begin_ns[events[1:]], 0))
    return (until - got)[in_step | follows].astype(float)


def workload_text(estimates: Estimates, head: Iterable[str]) -> str:
    """The keys as YAML, with the evidence of each as a comment behind it. `estimates`: those of a section in a row.
    `head`: paragraphs for the top, as comments."""
    lines = [
        f"# {line}".rstrip()
        for paragraph in head
        for line in textwrap.wrap(_one_line(paragraph), 118, break_on_hyphens=False) or [""]
    ]
    assigned = {
        key: f"{'  ' * key.count('.')}{key.split('.')[-1]}: {scalar(value)}" for key, (value, _) in estimates.items()
    }
    width = max(map(len, assigned.values()))
    opened: list[str] = []
    for key, (_, found) in estimates.items():
        sections = key.split(".")[:-1]
        for depth in range(1, len(sections) + 1):
            if opened[:depth] != sections[:depth]:
                lines += [*([""] if depth == 1 else []), f"{'  ' * (depth - 1)}{sections[depth - 1]}:"]
        opened = sections
        lines.append(f"{assigned[key].ljust(width)}  # {_one_line(found)}")
    return "\n".join(lines) + "\n"


def scalar(value: Any) -> str:
    """A value as one line of YAML. Text that YAML or OmegaConf could take for something else is quoted."""
    plain = not isinstance(value, str) or re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", value)
    style = None if plain else '"'
    text = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=math.inf, sort_keys=False)
    return text.removesuffix("...\n").rstrip("\n")


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
