"""The order in which each rank reads its samples, batch by batch: DLIO's loaders under each reading. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.generate.columns import Columns
from dxt_replay.workloads.generate.request_templates import numbered

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The division of a data set over the ranks in one pass over it.

    files: files that are used, the first ones in reading order. samples_per_file: samples in each.
    ranks, batch: ranks of the job, and samples that a rank fetches at a time.
    steps: steps of each rank. per_rank: samples assigned to a rank.
    subfolders: number over which the files are spread.
    """

    files: int
    samples_per_file: int
    ranks: int
    batch: int
    steps: int
    per_rank: int
    subfolders: int = 0


def share(workload: Workload, ranks: int, *, evaluation: bool) -> Share:
    """The share of the training set, or of the set for evaluation.

    documented: samples are trimmed so that all ranks have equally many steps. head: files are trimmed instead, to a
    multiple of samples per step. v2.0: nothing is trimmed, and the last rank may have fewer samples; then all ranks
    have as many steps as that one, where DLIO would wait forever. v3.0: whole files are dealt to the ranks, as many to
    each, and the samples of a rank are trimmed.
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
    if workload.reading == "v3.0":
        per_rank = files // ranks * per_file
        steps = per_rank // batch
    if workload.reading == "v2.0" and reader.data_loader != "tensorflow":
        steps = min(steps, max(files * per_file - (ranks - 1) * per_rank, 0) // batch)
    return Share(
        files=files,
        samples_per_file=per_file,
        ranks=ranks,
        batch=batch,
        steps=steps,
        per_rank=max(per_rank, 0),
        subfolders=data.num_subfolders_eval if evaluation else data.num_subfolders_train,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchSamples(Columns):
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

    @property
    def batches(self) -> int:
        """Batches that are read: those that the loop fetches, and those that are read in vain."""

    def samples(self, rank: int, first: int, last: int) -> BatchSamples:
        """The samples of the batches [first, last) of a rank."""

    def reader(self, fetch: np.ndarray) -> np.ndarray:
        """int64: which of the readers of a rank makes each batch, from 0."""

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """int64 per rank: ranks with the same number open and close files at the same places of their batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffles:
    """Permutations of one pass; None for no shuffle.

    The files in reading order, int64 (files,), and all samples by a seed."""

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
    """A random permutation of 0 ... size - 1 at some places, without holding all of it.

    A Feistel network of four rounds permutes the smallest power of four that is at least `size`; values beyond `size`
    are permuted again."""
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


def dealt_files(workload: Workload, shared: Share, epoch: int) -> np.ndarray:
    """int64 (ranks, files of a rank): the files of each rank in its order, as v3.0 deals them: file i to rank i mod R.

    Files are listed sub-folder by sub-folder, or by number where they are not listed. A shuffle deals them anew in each
    epoch, counted from 1: each rank shuffles what it has, gives its files to the ranks in turn, itself first, and
    shuffles what it was given, all with NumPy's legacy generator.
    """
    ranks = shared.ranks
    each = shared.files // ranks
    listed = np.arange(shared.files)
    if shared.subfolders > 1 and not workload.dataset.skip_listing:
        listed = np.argsort(listed % shared.subfolders, kind="stable")
    files = listed[: each * ranks].reshape(each, ranks).T
    if workload.reader.file_shuffle == "off":
        return files
    rank = np.arange(ranks)[:, None]
    owner = np.argsort(((np.arange(each) + rank) % ranks).reshape(-1), kind="stable")
    seed, changes = workload.train.seed, workload.train.seed_change_epoch
    for past in range(1, epoch + 1):
        order = np.arange(each)
        np.random.RandomState((seed + past * changes) % (1 << 32)).shuffle(order)
        files = files[:, order].reshape(-1)[owner].reshape(ranks, each)
        for number, mine in enumerate(files):
            np.random.RandomState((seed + past + 31 * number) % (1 << 32)).shuffle(mine)
    return files


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexedOrder:
    """Loaders that deal whole batches to their readers in turn: PyTorch and DALI. Rank r has the samples from
    r `per_rank` on, or those of its row of `dealt` (see `dealt_files`).

    keeps: in the first epoch, readers keep each file open after its first sample; in later epochs it is open already.
    one_shard: every rank reads what rank 0 reads, as DALI's own readers do at head.
    """

    share: Share
    readers: int
    shuffles: Shuffles
    epoch: int
    batches: int
    keeps: bool = False
    one_shard: bool = False
    dealt: np.ndarray | None = None

    def samples(self, rank: int, first: int, last: int) -> BatchSamples:
        """See SampleOrder. Each sample opens and closes its file, unless the readers keep it."""
        shared = self.share
        own = np.arange(first * shared.batch, last * shared.batch)
        if self.dealt is None:
            start = 0 if self.one_shard else rank * shared.per_rank
            samples = max(shared.files * shared.samples_per_file, 1)
            file, index = self.shuffles.place((start + own) % samples, samples, shared.samples_per_file)
        else:
            place, index = own // shared.samples_per_file, own % shared.samples_per_file
            file = self.dealt[rank][place % max(self.dealt.shape[1], 1)]
        opens, closes = np.ones(len(own), dtype=bool), np.ones(len(own), dtype=bool)
        if self.keeps:
            opens, closes = self._first_of_reader(rank, first, last), ~closes
        return BatchSamples(fetch=own // shared.batch, file=file, index=index, opens=opens, closes=closes)

    def _first_of_reader(self, rank: int, first: int, last: int) -> np.ndarray:
        """Which samples of these batches are the first of their file for their reader in the whole run."""
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
    """tf.data with a format other than TFRecord: each reader is a stream over a block of the rank's samples. The
    streams yield batches in turn.

    literal: follow DLIO's code: after its first sample every rank reads the same samples of the set, and a stream
    closes its current file after each `samples_per_file` samples. Else rank r has the samples from r `per_rank` on.
    most: largest number of batches that are read.
    """

    share: Share
    readers: int
    shuffles: Shuffles
    literal: bool
    most: int

    @property
    def batches(self) -> int:
        """See SampleOrder."""
        return len(self._turns()[0])

    def _blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First sample and length of each stream's block, and the number of samples left over by the blocks that it
        gets in further blocks."""
        shared, numbers = self.share, np.arange(self.readers)
        if self.literal:
            block = max(shared.per_rank // self.readers, 1)
            begins = numbers * block
            left = shared.per_rank - self.readers * block
            return begins, np.clip(shared.per_rank - begins, 0, block), np.clip(left - begins, 0, block)
        lengths = -(-(shared.steps - numbers) // self.readers) * shared.batch
        return np.cumsum(lengths) - lengths, lengths, np.zeros_like(lengths)

    def _lengths(self) -> np.ndarray:
        """Samples of each stream."""
        _, lengths, more = self._blocks()
        return lengths + more

    def _turns(self) -> tuple[np.ndarray, np.ndarray]:
        """The stream of each batch that is read, and the number of the batch in its stream."""
        stream, number = numbered(-(-self._lengths() // self.share.batch))
        turn = np.lexsort((stream, number))[: self.most]
        return stream[turn], number[turn]

    def _place(self, stream: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """Index in the rank's samples of a stream's samples."""
        begins, lengths, _ = self._blocks()
        further = int(lengths.sum()) - lengths[stream]
        return begins[stream] + inside + np.where(inside >= lengths[stream], further, 0)

    def samples(self, rank: int, first: int, last: int) -> BatchSamples:
        """See SampleOrder. A file that DLIO's code leaves open is closed after the stream's last sample of it."""
        batch, lengths, (streams, numbers) = self.share.batch, self._lengths(), self._turns()
        row, item = numbered(np.minimum(batch, lengths[streams] - numbers * batch)[first:last])
        stream, inside = streams[first:last][row], numbers[first:last][row] * batch + item
        ends = np.minimum(np.bincount(streams, minlength=self.readers) * batch, lengths) - 1
        file, index = self._located(rank, self._place(stream, inside))
        before, _ = self._located(rank, self._place(stream, np.maximum(inside - 1, 0)))
        after, _ = self._located(rank, self._place(stream, np.minimum(inside + 1, ends[stream])))
        opens = (inside == 0) | (file != before)
        closes = (inside == ends[stream]) | (file != after)
        if self.literal:
            per_file = self.share.samples_per_file
            own = (stream == 0) & (file == self._located(rank, np.zeros(1, dtype=np.int64))[0])
            # The file of a rank's first sample is still open when the list reaches it again, if files have more
            # samples.
            again = own & (inside > 0) & (per_file > 1)
            opens = np.where(opens, ~again, inside % per_file == 0)
            stays = own & (inside == 0) & self._comes_again(rank, int(ends[0]))
            closes = (closes & ~stays) | ((inside + 1) % per_file == 0)
        return BatchSamples(fetch=first + row, file=file, index=index, opens=opens, closes=closes)

    def _comes_again(self, rank: int, end: int) -> bool:
        """Whether the first stream reads the file of its first sample again, up to its sample `end`."""
        inside = np.arange(end + 1)
        file, _ = self._located(rank, self._place(np.zeros_like(inside), inside))
        return bool(np.any(file[1:] == file[0]))

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
        found: np.ndarray = self._turns()[0][fetch]
        return found

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """See SampleOrder."""
        shared = self.share
        if self.literal:
            return (ranks > 0).astype(np.int64) if shared.samples_per_file == 1 else ranks
        if self.shuffles.seed is not None and shared.samples_per_file > 1:
            return ranks
        return ranks * shared.per_rank % shared.samples_per_file


def sample_order(
    workload: Workload, shared: Share, *, epoch: int, readers: int, fetches: int, ahead: int
) -> SampleOrder:
    """The order of one epoch, counted from 1, for all formats but TFRecord under tf.data.

    fetches: batches that the loop fetches. ahead: further batches that fit the buffers when the loop fetches the last
    one.
    """
    permuted = shuffles(workload, shared, epoch)
    literal = workload.reading != "documented"
    if workload.reader.data_loader == "tensorflow":
        most = fetches + ahead if literal else fetches
        return StreamOrder(share=shared, readers=max(readers, 1), shuffles=permuted, literal=literal, most=most)
    return IndexedOrder(
        share=shared,
        readers=readers,
        shuffles=permuted,
        epoch=epoch,
        batches=fetches,
        keeps=workload.reader.read_type == "memory",
        one_shard=literal and workload.reader.data_loader == "native_dali",
        dealt=dealt_files(workload, shared, epoch) if workload.reading == "v3.0" else None,
    )
