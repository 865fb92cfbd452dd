"""Which samples each rank reads, in which order, batch by batch: DLIO's loaders under each reading. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from profiler_merge.workloads.description import Workload
from profiler_merge.workloads.request_templates import numbered

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How a data set is divided over the ranks in one pass over it.

    files: files that are used, the first ones in reading order. samples_per_file: samples in each.
    ranks, batch: ranks of the job, and samples that a rank fetches at a time.
    steps: steps of each rank. per_rank: samples that are meant for a rank.
    """

    files: int
    samples_per_file: int
    ranks: int
    batch: int
    steps: int
    per_rank: int


def share(workload: Workload, ranks: int, *, evaluation: bool) -> Share:
    """The share of the training set, or of the set for evaluation.

    documented: samples are trimmed so that all ranks have equally many steps. head: files are trimmed instead, to a
    multiple of samples per step. v2.0: nothing is trimmed, and the last rank may have fewer samples; then all ranks
    have as many steps as that one, where DLIO would wait forever.
    """
    data, reader = workload.dataset, workload.reader
    files = data.num_files_eval if evaluation else data.num_files_train
    batch = reader.batch_size_eval if evaluation else reader.batch_size
    per_file = data.num_samples_per_file
    step_samples = per_file * batch * ranks
    if workload.reading == "head":
        files = files // step_samples * step_samples
    steps = files * per_file // batch // ranks
    per_rank = steps * batch if workload.reading == "documented" else -(-files * per_file // ranks)
    if workload.reading == "v2.0" and reader.data_loader != "tensorflow":
        steps = min(steps, max(files * per_file - (ranks - 1) * per_rank, 0) // batch)
    return Share(
        files=files, samples_per_file=per_file, ranks=ranks, batch=batch, steps=steps, per_rank=max(per_rank, 0)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchSamples:
    """The samples of some batches of one rank, arrays (k,), batch after batch.

    fetch: number of the batch in its pass. file: place of the file in reading order. index: place in the file.
    opens, closes: bool, whether the reader opens the file for the sample, and closes it afterwards.
    """

    fetch: np.ndarray
    file: np.ndarray
    index: np.ndarray
    opens: np.ndarray
    closes: np.ndarray


class SampleOrder(Protocol):
    """The batches of a pass over the data, as the readers of a rank are given them."""

    def samples(self, rank: int, first: int, last: int) -> BatchSamples:
        """The samples of the batches first to last - 1 of a rank."""

    def reader(self, fetch: np.ndarray) -> np.ndarray:
        """int64: which of the readers of a rank makes each batch, from 0."""

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """int64 per rank: ranks with the same number open and close files at the same places of their batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffles:
    """Permutations of one pass: of the files in reading order, int64 (files,), and of all samples by a seed; None for
    none."""

    files: np.ndarray | None = None
    seed: int | None = None

    def place(self, sample: np.ndarray, samples: int, per_file: int) -> tuple[np.ndarray, np.ndarray]:
        """File and place in it of each sample, which is given by its place in the pass."""
        shuffled = sample if self.seed is None else scattered(sample, samples, self.seed)
        file, index = shuffled // per_file, shuffled % per_file
        return (file if self.files is None else self.files[file]), index


def shuffles(workload: Workload, shared: Share, epoch: int) -> Shuffles:
    """The permutations of an epoch, counted from 1.

    documented: as the keys say. head and v2.0: only tf.data with formats other than TFRecord shuffles, and only the
    list of files: cumulatively, alike on all ranks, with NumPy's legacy generator.
    """
    reader, seed = workload.reader, workload.train.seed
    of_epoch = seed + epoch if workload.train.seed_change_epoch else seed
    by_generator = reader.data_loader == "tensorflow" and workload.dataset.format != "tfrecord"
    literal = workload.reading != "documented"
    files = None
    if reader.file_shuffle != "off" and shared.files and (by_generator or not literal):
        files = np.arange(shared.files)
        for past in range(1, epoch + 1):
            past_seed = seed + past if workload.train.seed_change_epoch else seed
            np.random.RandomState(past_seed).shuffle(files)
    sampled = reader.sample_shuffle != "off" and not literal and workload.dataset.format != "tfrecord"
    return Shuffles(files=files, seed=of_epoch if sampled else None)


def scattered(value: np.ndarray, size: int, seed: int) -> np.ndarray:
    """A permutation of 0 ... size - 1 at some places, without holding it: four rounds of a Feistel network over the
    least power of four that is not below `size`, repeated where they lead beyond it."""
    half = max((max(size - 1, 1).bit_length() + 1) // 2, 1)
    found = value.astype(np.uint64)
    beyond = np.ones(len(found), dtype=bool)
    while beyond.any():
        found[beyond] = _feistel(found[beyond], half, seed)
        beyond = found >= np.uint64(size)
    return found.astype(np.int64)


def _feistel(value: np.ndarray, half: int, seed: int) -> np.ndarray:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = value >> shift, value & mask
    for turn in range(4):
        key = np.uint64(((seed + 1) * _MIX[0] + turn * _MIX[1]) & _MASK)
        mixed = (right + key) * np.uint64(_MIX[1])
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_MIX[2])
        left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
    return (left << shift) | right


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedOrder:
    """Loaders that deal whole batches to their readers in turn: PyTorch and DALI. Rank r has the samples from
    r `per_rank` on.

    keeps: in the first epoch, readers keep each file open after its first sample; in later ones they have it.
    one_shard: every rank reads what rank 0 reads, as DALI's own readers do at head.
    """

    share: Share
    readers: int
    shuffles: Shuffles
    epoch: int
    keeps: bool = False
    one_shard: bool = False

    def samples(self, rank: int, first: int, last: int) -> BatchSamples:
        """See SampleOrder. Each sample opens and closes its file, unless the readers keep it."""
        shared = self.share
        own = np.arange(first * shared.batch, last * shared.batch)
        start = 0 if self.one_shard else rank * shared.per_rank
        samples = max(shared.files * shared.samples_per_file, 1)
        file, index = self.shuffles.place((start + own) % samples, samples, shared.samples_per_file)
        opens, closes = np.ones(len(own), dtype=bool), np.ones(len(own), dtype=bool)
        if self.keeps:
            opens, closes = self._first_of_reader(rank, first, last), ~closes
        return BatchSamples(fetch=own // shared.batch, file=file, index=index, opens=opens, closes=closes)

    def _first_of_reader(self, rank: int, first: int, last: int) -> np.ndarray:
        """Which samples of these batches are the first of their file for their reader in the run."""
        if self.epoch > 1:
            return np.zeros((last - first) * self.share.batch, dtype=bool)
        before = dataclasses.replace(self, keeps=False).samples(rank, 0, last)
        keys = before.file * max(self.readers, 1) + self.reader(before.fetch)
        opens = np.zeros(len(keys), dtype=bool)
        opens[np.unique(keys, return_index=True)[1]] = True
        return opens[first * self.share.batch :]

    def reader(self, fetch: np.ndarray) -> np.ndarray:
        """See SampleOrder: in turn."""
        return fetch % max(self.readers, 1)

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """See SampleOrder."""
        return ranks if self.keeps else np.zeros(len(ranks), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOrder:
    """tf.data with a format other than TFRecord: each reader is a stream over a block of the rank's samples, and the
    streams give their batches in turn.

    literal: as the code of DLIO runs: after its first sample every rank reads the same samples of the set, and a stream
    closes its file after each `samples_per_file` samples. Else rank r has the samples from r `per_rank` on.
    """

    share: Share
    readers: int
    shuffles: Shuffles
    literal: bool

    def _blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """First sample and number of samples of each stream's block."""
        shared, numbers = self.share, np.arange(self.readers)
        if self.literal:
            block = max(shared.per_rank // self.readers, 1)
            lengths = np.clip(shared.per_rank - numbers * block, 0, block)
            return numbers * block, lengths
        lengths = -(-(shared.steps - numbers) // self.readers) * shared.batch
        return np.cumsum(lengths) - lengths, lengths

    def _places(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of the samples of these batches: the batch, the place in the rank's samples, the place in the block, and
        whether it is the block's last. What the streams do not divide evenly, the first one reads at its end."""
        shared, (begins, lengths) = self.share, self._blocks()
        rest = shared.per_rank - int(lengths.sum()) if self.literal else 0
        lengths = lengths + np.where(np.arange(self.readers) == 0, max(rest, 0), 0)
        batches = -(-lengths // shared.batch)
        stream, number = numbered(batches)
        turn = np.lexsort((stream, number))[first:last]
        stream, number = stream[turn], number[turn]
        counts = np.minimum(shared.batch, lengths[stream] - number * shared.batch)
        row, item = numbered(counts)
        inside = number[row] * shared.batch + item
        block = lengths[0] - max(rest, 0)
        beyond = (stream[row] == 0) & (inside >= block)
        place = np.where(beyond, shared.per_rank - max(rest, 0) + inside - block, begins[stream[row]] + inside)
        return first + row, place, inside, inside == lengths[stream[row]] - 1

    def samples(self, rank: int, first: int, last: int) -> BatchSamples:
        """See SampleOrder."""
        shared = self.share
        fetch, place, inside, is_last = self._places(first, last)
        file, index = self._located(rank, place)
        before, _ = self._located(rank, np.maximum(place - 1, 0))
        opens = (inside == 0) | (file != before)
        if self.literal:
            opens |= inside % shared.samples_per_file == 0
            closes = (inside + 1) % shared.samples_per_file == 0
        else:
            after, _ = self._located(rank, np.minimum(place + 1, max(shared.per_rank - 1, 0)))
            closes = is_last | (file != after)
        return BatchSamples(fetch=fetch, file=file, index=index, opens=opens, closes=closes)

    def _located(self, rank: int, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shared = self.share
        if not self.literal:
            samples = max(shared.files * shared.samples_per_file, 1)
            return self.shuffles.place(rank * shared.per_rank + place, samples, shared.samples_per_file)
        file = (place // shared.samples_per_file) % shared.files
        file = np.where(place == 0, rank * ((shared.files // shared.ranks) % shared.files) % shared.files, file)
        return (file if self.shuffles.files is None else self.shuffles.files[file]), place % shared.samples_per_file

    def reader(self, fetch: np.ndarray) -> np.ndarray:
        """See SampleOrder."""
        shared, (_, lengths) = self.share, self._blocks()
        rest = max(shared.per_rank - int(lengths.sum()), 0) if self.literal else 0
        lengths = lengths + np.where(np.arange(self.readers) == 0, rest, 0)
        stream, number = numbered(-(-lengths // shared.batch))
        found: np.ndarray = stream[np.lexsort((stream, number))][fetch]
        return found

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """See SampleOrder."""
        shared = self.share
        if self.literal:
            return (ranks > 0).astype(np.int64)
        if self.shuffles.seed is not None and shared.samples_per_file > 1:
            return ranks
        return ranks * shared.per_rank % shared.samples_per_file


def sample_order(workload: Workload, shared: Share, *, epoch: int, readers: int) -> SampleOrder:
    """The order of one epoch, counted from 1, for all formats but TFRecord under tf.data."""
    permuted = shuffles(workload, shared, epoch)
    literal = workload.reading != "documented"
    if workload.reader.data_loader == "tensorflow":
        return StreamOrder(share=shared, readers=max(readers, 1), shuffles=permuted, literal=literal)
    return IndexedOrder(
        share=shared,
        readers=readers,
        shuffles=permuted,
        epoch=epoch,
        keeps=workload.reader.read_type == "memory",
        one_shard=literal and workload.reader.data_loader == "native_dali",
    )
