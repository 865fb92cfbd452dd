"""Applies the changes to one rank, one after the other, and collects their assumptions. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np

from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.compression import Compression, with_compression
from dxt_replay.replay.transform.hdf5_chunks import with_chunks
from dxt_replay.replay.transform.loop_schedule import with_batches_in_order, with_ready
from dxt_replay.replay.transform.rank_work import NOTHING, RankLoop, RankState, RankWork
from dxt_replay.replay.transform.read_data import DataSet
from dxt_replay.replay.transform.readers import BY_FILE, with_read_ahead, with_readers
from dxt_replay.replay.transform.transfer_size import with_transfer_size
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import WRITE

DEFAULT_PREFETCH = 2
"""Batches that each reader has ahead, where the training thread read itself and --prefetch is not given: PyTorch's."""


def changed(state: RankState, changes: Changes, data: DataSet) -> tuple[RankState, tuple[str, ...], bool]:
    """Apply the changes of requests and input pipeline, not those of compute and of the number of ranks.

    Returns the rank, the assumptions as sentences, and whether nothing changed.
    Raises: UsageError if a change has no meaning for this capture.
    """
    recorded = state
    notes: tuple[str, ...] = ()
    state = dataclasses.replace(state, work=_requested(state.work, changes, data))
    if changes.readers is not None or changes.prefetch is not None:
        state, notes = _piped(state, changes)
    is_same = state.loop is recorded.loop and state.work.same_requests(recorded.work)
    work = with_ready(with_batches_in_order(state.work), state.loop.ready_ns)
    return dataclasses.replace(state, work=work), notes, is_same


def _requested(work: RankWork, changes: Changes, data: DataSet) -> RankWork:
    """Apply the changes of the requests."""
    if changes.chunk_bytes is not None:
        for file_id, recorded_bytes in data.chunk_bytes.items():
            work = with_chunks(work, file_id, recorded_bytes, changes.chunk_bytes, data.cost)
    if changes.compression is not None:
        work = _compressed(work, changes.compression, changes.chunk_bytes, data)
    if changes.transfer_bytes is not None:
        work = with_transfer_size(work, data.streams[work.file_id], changes.transfer_bytes, data.cost)
    return work


def _compressed(work: RankWork, compression: Compression, chunk_bytes: int | None, data: DataSet) -> RankWork:
    """Compress the data. A stream of one request size keeps that size, with fewer requests."""
    # In an HDF5 file, requests of this length or more are chunks, shorter ones metadata.
    least = np.zeros(len(data.files), dtype=np.int64)
    for file_id, recorded_bytes in data.chunk_bytes.items():
        least[file_id] = chunk_bytes or recorded_bytes
    mine = data.files[work.file_id] & (work.length >= least[work.file_id])
    work, decode_ns = with_compression(work, mine, compression, data.cost)
    work = dataclasses.replace(work, busy_ns=work.busy_ns + decode_ns)
    streamed = np.where(data.streams, data.request_bytes, 0)
    for size in np.unique(streamed[streamed > 0]).tolist():
        work = with_transfer_size(work, streamed[work.file_id] == size, size, data.cost)
    return work


def _of_loop(state: RankState) -> np.ndarray:
    """bool (n,): operations on the data that the loop reads."""
    work = state.work
    mine = state.model.loop_files[work.file_id] & (work.blocks == NOTHING) & (work.op != WRITE)
    found: np.ndarray = mine & (work.start_ns < state.loop.loop.exit_ns)
    return found


def _read_by(state: RankState, readers: int) -> RankState:
    dealing = state.model.dealing
    if dealing is not None and any(deal.others for deal in dealing.lanes.values()):
        raise UsageError(
            "the workers of this capture read with several threads each, and how their threads would share other "
            "batches is not known: change the requests alone, or record the job with other workers"
        )
    work = with_readers(state.work, _of_loop(state), readers, state.deal)
    return dataclasses.replace(state, work=work, readers=readers)


def _read_ahead(state: RankState, ahead: int) -> RankState:
    work, making = state.work, state.loop.making
    if making is not None:
        loop = dataclasses.replace(state.loop, making=making.with_ahead(ahead))
        if not ahead:
            work = dataclasses.replace(work, made=np.where(work.feeds == NOTHING, work.made, 2 * work.feeds))
        return dataclasses.replace(state, work=work, loop=loop, ahead=ahead)
    return _ahead_of_loop(state, ahead)


def _ahead_of_loop(state: RankState, ahead: int) -> RankState:
    """Reads that wait for the loop alone, not for the making of the batches before theirs."""
    work = with_read_ahead(state.work, _of_loop(state), ahead, state.loop, state.pass_first)
    return dataclasses.replace(state, work=work, ahead=ahead)


def _piped(state: RankState, changes: Changes) -> tuple[RankState, tuple[str, ...]]:
    """Change readers and read-ahead, and list the assumptions."""
    before = state
    readers = before.readers if changes.readers is None else changes.readers
    if not (before.work.feeds != NOTHING).any():
        raise UsageError(
            "--readers and --prefetch change how batches are read for the training loop, and no read of this capture "
            "feeds a step: its data are loaded before the first one"
        )
    if not readers and changes.prefetch is not None:
        raise UsageError(
            "--prefetch needs readers beside the training thread, and in this capture that thread itself reads: give "
            "--readers, too"
        )
    ahead = _ahead(before, changes, readers)
    if readers == before.readers and changes.prefetch in (None, before.ahead):
        return dataclasses.replace(before, ahead=ahead), ()
    if not before.readers:
        state = dataclasses.replace(state, loop=_handed_over(state.work, state.loop))
    if readers != before.readers:
        state = _read_by(state, readers)
    note = (
        f"readers: {before.readers} -> {readers}, batches read ahead: {before.ahead} -> {ahead}; each batch keeps "
        "its requests, and each reader its own think times; a file that several readers use is opened as before"
    )
    state = _read_ahead(state, ahead)
    if before.loop.making is None or readers <= before.readers:
        return state, (note,)
    mixed = (
        "readers of tf.data that are added read whole files ahead of the making of the batches, which processes as "
        "much as before; an interleave of more files would also mix their records, which is not predicted"
    )
    return _ahead_of_loop(state, ahead), (note, mixed)


def _ahead(recorded: RankState, changes: Changes, readers: int) -> int:
    """Number of batches that are read ahead; with readers that take turns, a multiple of their number."""
    if not readers:
        return 0
    ahead = recorded.ahead
    if recorded.deal == BY_FILE:
        # A loop that waited for its reads does not show the depth of its buffer. Each reader has one batch in progress.
        return changes.prefetch or (ahead if readers == recorded.readers else max(ahead, readers))
    each = ahead // recorded.readers if recorded.readers else DEFAULT_PREFETCH
    return readers * (each if changes.prefetch is None else -(-changes.prefetch // readers))


def _handed_over(work: RankWork, loop: RankLoop) -> RankLoop:
    """Move the training thread's work after the last read of each batch to the reader that made the batch."""
    events = loop.loop.fetches
    fed = np.unique(work.feeds[work.feeds != NOTHING])
    left, ready = loop.residual_ns.copy(), loop.ready_ns.copy()
    ready[fed] += left[events[fed]]
    left[events[fed]] = 0
    return dataclasses.replace(loop, residual_ns=left, ready_ns=ready)
