"""The order in which each rank reads its samples, batch by batch: DLIO's loaders. Pure.

An order has `batches` that are read, `samples(rank, first, last)` of these batches (BATCH_SAMPLE), `reader(batch)`,
which of the readers of a rank makes each batch, and `alike(ranks)`: ranks with the same number open and close files at
the same places of their batches.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.generate.plan import Share
from dxt_replay.workloads.generate.requests import numbered, rows_of

BATCH_SAMPLE = np.dtype(
    [("fetch", np.int64), ("file", np.int64), ("index", np.int64), ("opens", np.bool_), ("closes", np.bool_)]
)
"""A sample of a batch (`fetch`, its number in the pass): place of its file in reading order, and its place in the file;
whether the reader opens the file for it, and closes it afterwards."""

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def scattered(value: np.ndarray, size: int, seed: int) -> np.ndarray:
    """A random permutation of 0 ... size - 1 at some places, without holding all of it.

    A Feistel network of four rounds permutes the smallest power of four that is at least `size`; values beyond `size`
    are permuted again."""
    half = max((max(size - 1, 1).bit_length() + 1) // 2, 1)
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    found, beyond = value.astype(np.uint64), np.ones(len(value), dtype=bool)
    while beyond.any():
        left, right = found[beyond] >> shift, found[beyond] & mask
        for turn in range(4):
            key = np.uint64(((seed + 1) * _MIX[0] + turn * _MIX[1]) & _MASK)
            mixed = (right + key) * np.uint64(_MIX[1])
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_MIX[2])
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        found[beyond] = (left << shift) | right
        beyond = found >= np.uint64(size)
    return found.astype(np.int64)


class _Shuffled:
    """The samples of an epoch, counted from 1, in the order of its shuffles. That of the list of files is cumulative
    and alike on all ranks, with NumPy's legacy generator."""

    def __init__(self, workload: Workload, shared: Share, epoch: int) -> None:
        reader, seed, changes = workload.reader, workload.train.seed, workload.train.seed_change_epoch
        self.share, self.files, self.seed = shared, np.arange(shared.files), None
        if reader.file_shuffle != "off":
            for past in range(1, epoch + 1):
                np.random.RandomState((seed + past * changes) % (1 << 32)).shuffle(self.files)
        if reader.sample_shuffle != "off":
            self.seed = seed + epoch * changes

    def place(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """File and place in it of each sample, which is given by its place in the pass."""
        per_file = self.share.samples_per_file
        if self.seed is not None:
            sample = scattered(sample, max(self.share.files * per_file, 1), self.seed)
        return self.files[sample // per_file], sample % per_file


def dealt_files(workload: Workload, shared: Share, epoch: int) -> np.ndarray:
    """int64 (ranks, files of a rank): the files of each rank in its order, as PyTorch's loader deals them: file i to
    rank i mod R.

    Files are listed sub-folder by sub-folder, or by number where they are not listed. A shuffle deals them anew in each
    epoch, counted from 1: each rank shuffles what it has, gives its files to the ranks in turn, itself first, and
    shuffles what it was given, all with NumPy's legacy generator.
    """
    ranks, each = shared.ranks, shared.files // shared.ranks
    listed = np.arange(shared.files)
    if shared.subfolders > 1 and not workload.dataset.skip_listing:
        listed = np.argsort(listed % shared.subfolders, kind="stable")
    files = listed[: each * ranks].reshape(each, ranks).T
    if workload.reader.file_shuffle == "off":
        return files
    owner = np.argsort(((np.arange(each) + np.arange(ranks)[:, None]) % ranks).reshape(-1), kind="stable")
    for past in range(1, epoch + 1):
        seed, order = workload.train.seed + past * workload.train.seed_change_epoch, np.arange(each)
        np.random.RandomState(seed % (1 << 32)).shuffle(order)
        files = files[:, order].reshape(-1)[owner].reshape(ranks, each)
        for number, mine in enumerate(files):
            np.random.RandomState((seed + 31 * number) % (1 << 32)).shuffle(mine)
    return files


class IndexedOrder:
    """Loaders that deal whole batches to their readers in turn: PyTorch and DALI. A rank has its files (`dealt_files`);
    where files are not dealt, rank r has the samples from r `per_rank` on.

    `keeps`: in the first pass, readers keep each file open after its first sample; in later ones it is open already.
    """

    def __init__(
        self, workload: Workload, shared: Share, epoch: int, readers: int, batches: int, *, first_pass: bool
    ) -> None:
        self._share, self._first, self._readers, self.batches = shared, first_pass, readers, batches
        self._keeps = workload.reader.read_type == "memory"
        self._dealt = dealt_files(workload, shared, epoch) if shared.dealt else None
        self._shuffled = _Shuffled(workload, shared, epoch)

    def samples(self, rank: int, first: int, last: int) -> np.ndarray:
        """Each sample opens and closes its file, unless the readers keep it."""
        shared = self._share
        # Which samples are the first of their file for their reader is known from the begin of the pass on.
        begin = 0 if self._keeps and self._first else first
        own = np.arange(begin * shared.batch, last * shared.batch)
        if self._dealt is None:
            samples = max(shared.files * shared.samples_per_file, 1)
            file, index = self._shuffled.place((rank * shared.per_rank + own) % samples)
        else:
            place, index = own // shared.samples_per_file, own % shared.samples_per_file
            file = self._dealt[rank][place % max(self._dealt.shape[1], 1)]
        opens = np.full(len(own), not self._keeps)
        if self._keeps and self._first:
            opens[np.unique(file * self._readers + self.reader(own // shared.batch), return_index=True)[1]] = True
        closes = not self._keeps
        found = rows_of(BATCH_SAMPLE, fetch=own // shared.batch, file=file, index=index, opens=opens, closes=closes)
        return found[(first - begin) * shared.batch :]

    def reader(self, batch: np.ndarray) -> np.ndarray:
        """In turn."""
        return batch % self._readers

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """All ranks, unless what is open depends on their files."""
        return ranks if self._keeps else np.zeros(len(ranks), dtype=np.int64)


class StreamOrder:
    """tf.data with a format other than TFRecord: each reader is a stream over a block of the rank's samples, which are
    those from r `per_rank` on for rank r. The streams yield their batches in turn; `most`: largest number of batches.

    Whole batches go to the streams, and a stream opens a file that is not the one of its sample before. (DLIO's main
    gives every rank the same samples after the first one; MLPerf's line of it does not.)
    """

    def __init__(self, workload: Workload, shared: Share, epoch: int, readers: int, most: int) -> None:
        self._share, self._shuffled, numbers = shared, _Shuffled(workload, shared, epoch), np.arange(readers)
        self._lengths = -(-(shared.steps - numbers) // readers) * shared.batch
        self._begins = np.cumsum(self._lengths) - self._lengths
        stream, number = numbered(self._lengths // shared.batch)
        turn = np.lexsort((stream, number))[:most]
        self._streams, self._numbers, self.batches = stream[turn], number[turn], len(turn)
        self._ends = np.bincount(self._streams, minlength=readers) * shared.batch - 1

    def samples(self, rank: int, first: int, last: int) -> np.ndarray:
        """The samples of each batch in the order of its stream."""
        shared, streams = self._share, self._streams[first:last]
        row, item = numbered(np.full(len(streams), shared.batch))
        stream, inside = streams[row], self._numbers[first:last][row] * shared.batch + item

        def located(place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self._shuffled.place(rank * shared.per_rank + self._begins[stream] + place)

        file, index = located(inside)
        before, _ = located(np.maximum(inside - 1, 0))
        after, _ = located(np.minimum(inside + 1, self._ends[stream]))
        opens = (inside == 0) | (file != before)
        closes = (inside == self._ends[stream]) | (file != after)
        return rows_of(BATCH_SAMPLE, fetch=first + row, file=file, index=index, opens=opens, closes=closes)

    def reader(self, batch: np.ndarray) -> np.ndarray:
        """The stream of each batch."""
        found: np.ndarray = self._streams[batch]
        return found

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """Ranks that begin at the same place of a file."""
        shared = self._share
        shuffled = self._shuffled.seed is not None and shared.samples_per_file > 1
        return ranks if shuffled else ranks * shared.per_rank % shared.samples_per_file


def sample_order(
    workload: Workload, shared: Share, *, epoch: int, first_pass: bool, readers: int, fetches: int
) -> IndexedOrder | StreamOrder:
    """The order of one epoch, counted from 1, for all formats but TFRecord under tf.data. first_pass: no earlier epoch
    read these files. fetches: of the loop."""
    if workload.reader.data_loader == "tensorflow":
        return StreamOrder(workload, shared, epoch, max(readers, 1), fetches)
    return IndexedOrder(workload, shared, epoch, max(readers, 1), fetches, first_pass=first_pass)
