"""The changes to the operations of one rank, one after the other, and what had to be assumed for them. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.training_loop import EVALUATION, FETCH
from dxt_replay.replay.plan.chosen_layers import LayerChoice
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.compression import with_compression
from dxt_replay.replay.transform.hdf5_chunks import ChunkedFile, with_chunks
from dxt_replay.replay.transform.larger_batches import with_larger_batches
from dxt_replay.replay.transform.loop_schedule import with_ready
from dxt_replay.replay.transform.rank_work import NOTHING, RankWork
from dxt_replay.replay.transform.read_data import DataSet
from dxt_replay.replay.transform.readers import BY_BATCH, BY_FILE, with_read_ahead, with_readers
from dxt_replay.replay.transform.request_cost import RequestCost
from dxt_replay.replay.transform.source_work import RankLoop
from dxt_replay.replay.transform.transfer_size import with_transfer_size
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import WRITE

DEFAULT_PREFETCH = 2
"""Batches that each reader has ahead, where the training thread read itself and --prefetch is not given: PyTorch's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pipeline:
    """How the batches of a rank came to its training loop.

    readers: lanes that read them, 0 for the training thread. ahead: batches that they were read ahead at most.
    deal: what readers take turns with, BY_BATCH or BY_FILE.
    loop_files: bool by file, those that the loop reads.
    pass_first: see `replay.transform.readers.with_read_ahead`.
    """

    readers: int
    ahead: int
    deal: str
    loop_files: np.ndarray
    pass_first: np.ndarray | None

    @classmethod
    def of(cls, model: LoopModel, work: RankWork) -> Pipeline:
        """As the causal model of the capture has it."""
        dealing = model.dealing
        if dealing is not None:
            return cls(
                readers=dealing.workers,
                ahead=dealing.workers * dealing.prefetch,
                deal=BY_BATCH,
                loop_files=model.loop_files,
                pass_first=_pass_first(model),
            )
        feeding = work.data_reads & (work.feeds != NOTHING)
        # A loop that always waits for its readers looks like one that reads itself, unless the capture knows better.
        own = model.synchronous and (model.known is None or bool((work.follows == 2 * work.feeds)[feeding].all()))
        return cls(
            readers=0 if own else len(np.unique(work.lane[feeding])),
            ahead=0 if own else model.lead + 1 if model.known is None else _known_ahead(work, feeding),
            deal=BY_BATCH if own or _whole_batches(work, feeding) else BY_FILE,
            loop_files=model.loop_files,
            pass_first=None if own or model.known is None else _known_pass_first(work, model),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the changes need to know of the whole capture.

    data: its data set. chunked: its files of HDF5 chunks. cost: of a read. layers: which rows count.
    """

    data: DataSet
    chunked: tuple[ChunkedFile, ...]
    cost: RequestCost
    layers: LayerChoice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changed:
    """A rank after the changes. readers: lanes that read its batches. ahead: batches that they read ahead.
    assumptions: sentences. is_same: whether nothing changed."""

    work: RankWork
    loop: RankLoop
    readers: int
    ahead: int
    assumptions: tuple[str, ...]
    is_same: bool


def changed(work: RankWork, loop: RankLoop, pipeline: Pipeline, changes: Changes, facts: Facts) -> Changed:
    """The changes of the requests and of the input pipeline; not those of compute, and of the number of ranks.

    Raises: UsageError where a change has no meaning for this capture.
    """
    original, recorded = work, loop
    notes: list[str] = []
    for file in facts.chunked:
        if changes.chunk_bytes is not None:
            work = with_chunks(work, file, changes.chunk_bytes, facts.cost)
    if changes.compression is not None:
        work = _compressed(work, changes, facts)
    if changes.transfer_bytes is not None:
        work = with_transfer_size(work, facts.data.streams()[work.file_id], changes.transfer_bytes, facts.cost)
    if changes.batch_times not in (None, 1):
        work, loop, pipeline = _batched(work, loop, pipeline, changes.batch_times or 1)
    if changes.readers is not None or changes.prefetch is not None:
        work, loop = _piped(work, loop, pipeline, changes, notes)
    if changes.preprocess_speed != 1.0:
        work, loop = _prepared(work, loop, changes.preprocess_speed)
    readers = pipeline.readers if changes.readers is None else changes.readers
    is_same = loop is recorded and work.same_requests(original)
    work = with_ready(work, loop.ready_ns)
    piped = (changes.readers, changes.prefetch) != (None, None)
    ahead = _ahead(pipeline, changes, readers) if piped else pipeline.ahead
    return Changed(work=work, loop=loop, readers=readers, ahead=ahead, assumptions=tuple(notes), is_same=is_same)


def _compressed(work: RankWork, changes: Changes, facts: Facts) -> RankWork:
    """Compressed requests; streams of one request size are read in requests of that size, fewer of them."""
    assert changes.compression is not None
    data = facts.data
    mine = data.files[work.file_id]
    sizes = {file.file_id: changes.chunk_bytes or file.chunk_bytes for file in facts.chunked}
    in_chunks = np.isin(work.file_id, list(sizes))
    mine &= ~data.hdf5[work.file_id] | ~in_chunks | (work.length >= _least(work, sizes))
    work, decode_ns = with_compression(work, mine, changes.compression, facts.cost)
    work = dataclasses.replace(work, busy_ns=work.busy_ns + decode_ns)
    streamed = np.where(data.hdf5 | ~data.files, 0, data.request_bytes)
    for size in np.unique(streamed[streamed > 0]).tolist():
        work = with_transfer_size(work, streamed[work.file_id] == size, size, facts.cost)
    return work


def _least(work: RankWork, sizes: dict[int, int]) -> np.ndarray:
    """int64 (n,): the length from which on a request of an HDF5 file holds a chunk, not metadata."""
    found = np.zeros(len(work), dtype=np.int64)
    for name, size in sizes.items():
        found[work.file_id == name] = size
    return found


def _batched(work: RankWork, loop: RankLoop, pipeline: Pipeline, times: int) -> tuple[RankWork, RankLoop, Pipeline]:
    """Larger batches, read as many ahead as the smaller ones were."""
    takes = np.zeros(len(loop.ready_ns), dtype=bool)
    takes[work.feeds[(work.feeds != NOTHING) & pipeline.loop_files[work.file_id]]] = True
    if takes.sum() < times:
        raise UsageError(f"--batch {times}: only {takes.sum()} steps of a rank read a batch")
    work, loop, number = with_larger_batches(work, loop, takes, times)
    first = (
        None if pipeline.pass_first is None else number[pipeline.pass_first][np.unique(number, return_index=True)[1]]
    )
    pipeline = dataclasses.replace(pipeline, pass_first=first)
    of_loop = _of_loop(work, loop, pipeline)
    # Lanes of their own, since a lane that also writes checkpoints would do that amid a batch.
    work = with_readers(work, of_loop, pipeline.readers, _deal(work, of_loop, pipeline, pipeline.readers))
    of_loop = _of_loop(work, loop, pipeline)
    return with_read_ahead(work, of_loop, pipeline.ahead, _moments_ns(loop), first), loop, pipeline


def _deal(work: RankWork, of_loop: np.ndarray, pipeline: Pipeline, readers: int) -> str:
    """What readers take turns with: with batches where they would be more than the files."""
    return BY_BATCH if len(np.unique(work.file_id[of_loop])) < readers else pipeline.deal


def _of_loop(work: RankWork, loop: RankLoop, pipeline: Pipeline) -> np.ndarray:
    """bool (n,): operations on the data that the loop reads."""
    mine = pipeline.loop_files[work.file_id] & (work.blocks == NOTHING) & (work.op != WRITE)
    found: np.ndarray = mine & (work.start_ns < loop.loop.exit_ns)
    return found


def _moments_ns(loop: RankLoop) -> np.ndarray:
    """int64 (2 fetches,): when each batch fetch began, and when it ended."""
    fetches = loop.loop.fetches
    return np.stack((loop.loop.begin_ns[fetches], loop.loop.end_ns[fetches]), axis=1).ravel()


def _piped(
    work: RankWork, loop: RankLoop, pipeline: Pipeline, changes: Changes, notes: list[str]
) -> tuple[RankWork, RankLoop]:
    """Other readers and another read-ahead."""
    readers = pipeline.readers if changes.readers is None else changes.readers
    if not (work.feeds != NOTHING).any():
        raise UsageError(
            "--readers and --prefetch change how batches are read for the training loop, and no read of this capture "
            "feeds a step: its data are loaded before the first one"
        )
    if not readers and changes.prefetch is not None:
        raise UsageError(
            "--prefetch needs readers beside the training thread, and in this capture that thread itself reads: give "
            "--readers, too"
        )
    if readers == pipeline.readers and changes.prefetch in (None, pipeline.ahead):
        return work, loop
    if not pipeline.readers:
        loop = _handed_over(work, loop)
    of_loop = _of_loop(work, loop, pipeline)
    if readers != pipeline.readers:
        work = with_readers(work, of_loop, readers, _deal(work, of_loop, pipeline, readers))
    ahead = _ahead(pipeline, changes, readers)
    notes.append(
        f"readers: {pipeline.readers} -> {readers}, batches read ahead: {pipeline.ahead} -> {ahead}; each batch keeps "
        "its requests, and each reader its own think times; a file that several readers use is opened as before"
    )
    return with_read_ahead(work, _of_loop(work, loop, pipeline), ahead, _moments_ns(loop), pipeline.pass_first), loop


def _ahead(pipeline: Pipeline, changes: Changes, readers: int) -> int:
    """Batches that are read ahead; readers that take turns with batches have equally many each."""
    if not readers:
        return 0
    if pipeline.deal == BY_FILE:
        # A loop that waited for its reads does not show how deep its buffer is; each reader has a batch under way.
        return changes.prefetch or (pipeline.ahead if readers == pipeline.readers else max(pipeline.ahead, readers))
    each = pipeline.ahead // pipeline.readers if pipeline.readers else DEFAULT_PREFETCH
    return readers * (each if changes.prefetch is None else -(-changes.prefetch // readers))


def _handed_over(work: RankWork, loop: RankLoop) -> RankLoop:
    """The loop, in which the reader that made a batch does what the training thread did after the batch's last read."""
    events = loop.loop.fetches
    fed = np.unique(work.feeds[work.feeds != NOTHING])
    left, ready = loop.residual_ns.copy(), loop.ready_ns.copy()
    ready[fed] += left[events[fed]]
    left[events[fed]] = 0
    return dataclasses.replace(loop, residual_ns=left, ready_ns=ready)


def _prepared(work: RankWork, loop: RankLoop, speed: float) -> tuple[RankWork, RankLoop]:
    """The think times of what feeds a fetch, and how long batches are made ready, at another speed."""
    feeding = work.feeds != NOTHING
    quicker = dataclasses.replace(
        work,
        think_ns=np.where(feeding, np.rint(work.think_ns / speed), work.think_ns).astype(np.int64),
        busy_ns=np.where(feeding, np.rint(work.busy_ns / speed), work.busy_ns).astype(np.int64),
    )
    return quicker, dataclasses.replace(loop, ready_ns=np.rint(loop.ready_ns / speed).astype(np.int64))


def _whole_batches(work: RankWork, feeding: np.ndarray) -> bool:
    """Whether each batch is read in one lane."""
    pairs = np.unique(np.stack((work.feeds[feeding], work.lane[feeding])), axis=1)
    return len(np.unique(pairs[0])) == pairs.shape[1]


def _known_ahead(work: RankWork, feeding: np.ndarray) -> int:
    """How many batches ahead of the loop the capture lets its readers be."""
    gated = feeding & (work.follows != NOTHING)
    # The begin of fetch n comes after the end of the one before it.
    ahead = work.feeds[gated] - (work.follows[gated] - 1) // 2
    return max(int(ahead.max(initial=1)), 1)


def _known_pass_first(work: RankWork, model: LoopModel) -> np.ndarray:
    """As `_pass_first`, where the capture says what operations wait for: reads of a pass wait for its first fetch."""
    begins = (work.feeds != NOTHING) & (work.follows != NOTHING) & (work.follows % 2 == 0)
    return _last_of(work.follows[begins] // 2, len(model.loop.fetches))


def _last_of(starts: np.ndarray, fetches: int) -> np.ndarray:
    """int64 (fetches,): the last of `starts` up to each fetch; 0 is always one."""
    starts = np.unique(np.append(starts, 0))
    found: np.ndarray = starts[np.searchsorted(starts, np.arange(fetches), side="right") - 1]
    return found


def _pass_first(model: LoopModel) -> np.ndarray:
    """int64 (fetches,): the first fetch of the pass over the data that each fetch is of."""
    loop = model.loop
    number = np.cumsum(np.isin(loop.kind, (FETCH, EVALUATION))) - 1
    assert model.dealing is not None
    begins = [number[deal.after_event[deal.is_early]] for deal in model.dealing.lanes.values()]
    return _last_of(np.concatenate(begins), int(number[-1]) + 1)
