"""Changes readers and read-ahead: the lane of each read, and how far it may run ahead of the loop. Pure.

The requests stay, and so does the batch fetch that each feeds. Read-ahead is a number of batches: the read of batch n
begins when batch n - ahead has been fetched.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.rank_work import BY_BATCH, BY_FILE, NOTHING, RankLoop, RankState, RankWork
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import WRITE

DEFAULT_PREFETCH = 2
"""Batches that each reader has ahead, where the training thread read itself and --prefetch is not given: PyTorch's."""


def with_pipeline(state: RankState, changes: Changes) -> tuple[RankState, tuple[str, ...]]:
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


def with_readers(work: RankWork, of_loop: np.ndarray, readers: int, deal: str) -> RankWork:
    """Deal the operations of the training loop (bool `of_loop`) to `readers` new lanes after all others.

    `deal`: BY_BATCH or BY_FILE (only with at least as many files as readers). Unit k goes to reader k mod `readers`.
    Each reader keeps the order of the batches. 0 readers: the training thread itself reads, in one lane.
    """
    if not of_loop.any():
        return work
    files = len(np.unique(work.file_id[of_loop]))
    unit = batches_of(work, of_loop) if deal == BY_BATCH or files < readers else _file_units(work, of_loop)
    others = work.lane[~of_loop]
    lane = work.lane.copy()
    lane[of_loop] = int(others.max(initial=0)) + 1 + unit[of_loop] % max(readers, 1)
    order, mine = np.arange(len(work)), np.flatnonzero(of_loop)
    order[mine] = mine[np.argsort(batches_of(work, of_loop)[mine], kind="stable")]
    # What feeds nothing (a close) comes when its new lane has done what was before it.
    free = of_loop & (work.feeds == NOTHING)
    follows, made = np.where(free, NOTHING, work.follows), np.where(free, NOTHING, work.made)
    return dataclasses.replace(work, lane=lane, follows=follows, made=made).rows(order)


def with_read_ahead(
    work: RankWork, of_loop: np.ndarray, ahead: int, loop: RankLoop, pass_first: np.ndarray | None = None
) -> RankWork:
    """Let the operations of the loop wait for the end of the fetch `ahead` batches before the one that they feed.

    With `ahead` 0 they begin when the fetch itself does. None waits for a fetch behind an event for which its lane has
    operations to come, such as a checkpoint: lane and loop would wait for each other.
    pass_first: int64 (fetches,), the first fetch of the pass over the data that contains each fetch: no batch of a
    pass is read before that fetch begins. None: one pass, whose reads need not wait for its first fetch.
    """
    feeding = of_loop & (work.feeds != NOTHING)
    fed = np.where(feeding, work.feeds, 0)
    if ahead:
        first = np.zeros(len(work), dtype=np.int64) if pass_first is None else pass_first[fed]
        begin = NOTHING if pass_first is None else 2 * first
        moment = np.where(fed - ahead >= first, 2 * (fed - ahead) + 1, begin)
    else:
        moment = 2 * fed
    moment = np.minimum(moment, _latest_moments(work, loop))
    # An operation that waited only for its lane hides its think time; it is at most the time since that moment.
    held = feeding & (work.follows == NOTHING) & (moment != NOTHING)
    since = np.maximum(work.start_ns - loop.moments_ns[np.maximum(moment, 0)], 0)
    return dataclasses.replace(
        work,
        follows=np.where(feeding, moment, work.follows),
        made=np.where(feeding, NOTHING, work.made),
        think_ns=np.where(held, np.minimum(work.think_ns, since), work.think_ns),
    )


def _latest_moments(work: RankWork, loop: RankLoop) -> np.ndarray:
    """int64 (n,): the last moment, as in `RankWork.follows`, before the first event that waits for the operation or a
    later one of its lane; of a batch fetch that is its begin."""
    fetches = np.append(loop.loop.fetches, len(loop.loop.kind))
    event = np.where(work.feeds == NOTHING, work.blocks, fetches[work.feeds])
    event[event == NOTHING] = len(loop.loop.kind)
    for lane in np.unique(work.lane).tolist():
        mine = np.flatnonzero(work.lane == lane)
        event[mine] = np.minimum.accumulate(event[mine][::-1])[::-1]
    before = np.searchsorted(fetches, event)
    found: np.ndarray = 2 * before - (fetches[before] != event)
    return found


def _file_units(work: RankWork, of_loop: np.ndarray) -> np.ndarray:
    """int64 (n,): the file of each operation of the loop, as a number in the order of first use."""
    unit = np.zeros(len(work), dtype=np.int64)
    _, first, inverse = np.unique(work.file_id[of_loop], return_index=True, return_inverse=True)
    rank_of = np.empty(len(first), dtype=np.int64)
    rank_of[np.argsort(first, kind="stable")] = np.arange(len(first))
    unit[of_loop] = rank_of[inverse]
    return unit


def batches_of(work: RankWork, of_loop: np.ndarray) -> np.ndarray:
    """int64 (n,): the batch of each operation. One that feeds none (a close) joins the batch before in its lane."""
    batch = np.zeros(len(work), dtype=np.int64)
    for lane in np.unique(work.lane[of_loop]).tolist():
        mine = np.flatnonzero(of_loop & (work.lane == lane))
        feeds = work.feeds[mine]
        known = np.maximum.accumulate(np.where(feeds != NOTHING, np.arange(len(mine)), -1))
        first = feeds[feeds != NOTHING][:1]
        batch[mine] = np.where(known >= 0, feeds[np.maximum(known, 0)], first[0] if len(first) else 0)
    return batch
