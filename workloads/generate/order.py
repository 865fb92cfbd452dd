"""The order in which each rank reads its samples, batch by batch: DLIO's loaders under each reading. Pure.

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
    """The samples of an epoch, counted from 1, in the order of its shuffles.

    documented: as the keys say. head and v2.0: only tf.data with formats other than TFRecord shuffles, and only the
    list of files: cumulatively, alike on all ranks, with NumPy's legacy generator.
    """

    def __init__(self, workload: Workload, shared: Share, epoch: int) -> None:
        reader, seed, changes = workload.reader, workload.train.seed, workload.train.seed_change_epoch
        code, tfrecord = workload.reading != "documented", workload.dataset.format == "tfrecord"
        self.share, self.files, self.seed = shared, np.arange(shared.files), None
        if reader.file_shuffle != "off" and not (code and (reader.data_loader != "tensorflow" or tfrecord)):
            for past in range(1, epoch + 1):
                np.random.RandomState(seed + past * changes).shuffle(self.files)
        if reader.sample_shuffle != "off" and not code and not tfrecord:
            self.seed = seed + epoch * changes

    def place(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """File and place in it of each sample, which is given by its place in the pass."""
        per_file = self.share.samples_per_file
        if self.seed is not None:
            sample = scattered(sample, max(self.share.files * per_file, 1), self.seed)
        return self.files[sample // per_file], sample % per_file


def dealt_files(workload: Workload, shared: Share, epoch: int) -> np.ndarray:
    """int64 (ranks, files of a rank): the files of each rank in its order, as v3.0 deals them: file i to rank i mod R.

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
    """Loaders that deal whole batches to their readers in turn: PyTorch and DALI. Rank r has the samples from
    r `per_rank` on, under v3.0 those of its files (`dealt_files`); in DLIO's code every rank of DALI's own readers has
    those of rank 0.

    `keeps`: in the first epoch, readers keep each file open after its first sample; in later ones it is open already.
    """

    def __init__(self, workload: Workload, shared: Share, epoch: int, readers: int, batches: int) -> None:
        self._share, self._epoch, self._readers, self.batches = shared, epoch, max(readers, 1), batches
        self._shuffled = _Shuffled(workload, shared, epoch)
        self._keeps = workload.reader.read_type == "memory"
        one_shard = workload.reading != "documented" and workload.reader.data_loader == "native_dali"
        self._per_rank = 0 if one_shard else shared.per_rank
        self._dealt = dealt_files(workload, shared, epoch) if workload.reading == "v3.0" else None

    def samples(self, rank: int, first: int, last: int) -> np.ndarray:
        """Each sample opens and closes its file, unless the readers keep it."""
        shared = self._share
        # Which samples are the first of their file for their reader is known from the begin of the pass on.
        begin = 0 if self._keeps and self._epoch == 1 else first
        own = np.arange(begin * shared.batch, last * shared.batch)
        if self._dealt is None:
            samples = max(shared.files * shared.samples_per_file, 1)
            file, index = self._shuffled.place((rank * self._per_rank + own) % samples)
        else:
            place, index = own // shared.samples_per_file, own % shared.samples_per_file
            file = self._dealt[rank][place % max(self._dealt.shape[1], 1)]
        opens = np.full(len(own), not self._keeps)
        if self._keeps and self._epoch == 1:
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
    """tf.data with a format other than TFRecord: each reader is a stream over a block of the rank's samples. The
    streams yield batches in turn; `most`: largest number of batches that are read.

    documented: rank r has the samples from r `per_rank` on. DLIO's code: after its first sample every rank reads the
    same samples of the set, a stream closes its current file after each `samples_per_file` samples, and the blocks
    leave samples over, which streams get in further blocks.
    """

    def __init__(self, workload: Workload, shared: Share, epoch: int, readers: int, most: int) -> None:
        self._share, self._code = shared, workload.reading != "documented"
        self._shuffled, numbers = _Shuffled(workload, shared, epoch), np.arange(readers)
        if self._code:
            block = max(shared.per_rank // readers, 1)
            self._begins = numbers * block
            self._lengths = np.clip(shared.per_rank - self._begins, 0, block)
            more = np.clip(shared.per_rank - readers * block - self._begins, 0, block)
        else:
            self._lengths = -(-(shared.steps - numbers) // readers) * shared.batch
            self._begins, more = np.cumsum(self._lengths) - self._lengths, np.zeros_like(numbers)
        self._total = self._lengths + more
        stream, number = numbered(-(-self._total // shared.batch))
        turn = np.lexsort((stream, number))[:most]
        self._streams, self._numbers, self.batches = stream[turn], number[turn], len(turn)
        self._ends = np.minimum(np.bincount(self._streams, minlength=readers) * shared.batch, self._total) - 1

    def _located(self, rank: int, stream: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """File and place in it of samples of the streams, which are given by their places in them."""
        shared, lengths = self._share, self._lengths
        further = int(lengths.sum()) - lengths[stream]
        place = self._begins[stream] + inside + np.where(inside >= lengths[stream], further, 0)
        if not self._code:
            return self._shuffled.place(rank * shared.per_rank + place)
        file = (place // shared.samples_per_file) % shared.files
        file = np.where(place == 0, rank * ((shared.files // shared.ranks) % shared.files) % shared.files, file)
        return self._shuffled.files[file], place % shared.samples_per_file

    def samples(self, rank: int, first: int, last: int) -> np.ndarray:
        """A file that DLIO's code leaves open is closed after the stream's last sample of it."""
        batch, per_file = self._share.batch, self._share.samples_per_file
        streams, numbers = self._streams[first:last], self._numbers[first:last]
        row, item = numbered(np.minimum(batch, self._total[streams] - numbers * batch))
        stream, inside = streams[row], numbers[row] * batch + item
        file, index = self._located(rank, stream, inside)
        before, _ = self._located(rank, stream, np.maximum(inside - 1, 0))
        after, _ = self._located(rank, stream, np.minimum(inside + 1, self._ends[stream]))
        opens = (inside == 0) | (file != before)
        closes = (inside == self._ends[stream]) | (file != after)
        if self._code:
            # The file of a rank's first sample is still open when the list reaches it again, if it has more samples.
            whole = np.arange(self._ends[0] + 1)
            of_first, _ = self._located(rank, np.zeros_like(whole), whole)
            own = (stream == 0) & (file == of_first[0])
            again = own & (inside > 0) & (per_file > 1)
            stays = own & (inside == 0) & bool(np.any(of_first[1:] == of_first[0]))
            opens = np.where(opens, ~again, inside % per_file == 0)
            closes = (closes & ~stays) | ((inside + 1) % per_file == 0)
        return rows_of(BATCH_SAMPLE, fetch=first + row, file=file, index=index, opens=opens, closes=closes)

    def reader(self, batch: np.ndarray) -> np.ndarray:
        """The stream of each batch."""
        found: np.ndarray = self._streams[batch]
        return found

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """Ranks that begin at the same place of a file."""
        shared = self._share
        if self._code:
            return (ranks > 0).astype(np.int64) if shared.samples_per_file == 1 else ranks
        shuffled = self._shuffled.seed is not None and shared.samples_per_file > 1
        return ranks if shuffled else ranks * shared.per_rank % shared.samples_per_file


def sample_order(
    workload: Workload, shared: Share, *, epoch: int, readers: int, fetches: int, ahead: int
) -> IndexedOrder | StreamOrder:
    """The order of one epoch, counted from 1, for all formats but TFRecord under tf.data.

    fetches: batches that the loop fetches. ahead: further batches that fit the buffers when the loop fetches the last
    one.
    """
    if workload.reader.data_loader == "tensorflow":
        most = fetches if workload.reading == "documented" else fetches + ahead
        return StreamOrder(workload, shared, epoch, max(readers, 1), most)
    return IndexedOrder(workload, shared, epoch, readers, fetches)
