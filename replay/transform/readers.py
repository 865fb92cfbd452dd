"""Changes readers and read-ahead: the lane of each read, and how far it may run ahead of the loop. Pure.

The requests stay, and so does the batch fetch that each feeds. Read-ahead is a number of batches: the read of batch n
begins when batch n - ahead has been fetched.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dxt_replay.replay.causal.loop import NO_FETCH, NO_MOMENT, TrainingLoop
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.operations import rows_by_lane
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.rank_state import (
    BY_BATCH,
    BY_FILE,
    RankState,
    Work,
    fed_by,
    of_fetch,
    rows_of,
    with_made_ahead,
)
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import WRITE

DEFAULT_PREFETCH = 2
"""Batches that each reader has ahead, where the training thread read itself and --prefetch is not given: PyTorch's."""


def with_pipeline(state: RankState, changes: Changes) -> tuple[RankState, tuple[str, ...]]:
    """Change readers and read-ahead, and list the assumptions."""
    before = state
    readers = before.readers if changes.readers is None else changes.readers
    if not (before.fed != NO_FETCH).any():
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
        state = _handed_over(state)
    if readers != before.readers:
        state = _read_by(state, readers)
    note = (
        f"readers: {before.readers} -> {readers}, batches read ahead: {before.ahead} -> {ahead}; each batch keeps "
        "its requests, and each reader its own think times; a file that several readers use is opened as before"
    )
    state = _read_ahead(state, ahead)
    if before.model.production is None or readers <= before.readers:
        return state, (note,)
    mixed = (
        "readers of tf.data that are added read whole files ahead of the making of the batches, which processes as "
        "much as before; an interleave of more files would also mix their records, which is not predicted"
    )
    return _ahead_of_loop(state, ahead), (note, mixed)


def _of_loop(state: RankState) -> np.ndarray:
    """bool (n,): operations on the data that the loop reads."""
    work = state.work
    mine = state.model.loop_files[work["file_id"]] & (work["op"] != WRITE)
    found: np.ndarray = mine & ((work["need"] == NO_EVENT) | (state.fed != NO_FETCH))
    return found & (work["start_ns"] < state.model.loop.exit_ns)


def _read_by(state: RankState, readers: int) -> RankState:
    dealing = state.model.dealing
    if dealing is not None and any(dealing.others.values()):
        raise UsageError(
            "the workers of this capture read with several threads each, and how their threads would share other "
            "batches is not known: change the requests alone, or record the job with other workers"
        )
    work = with_readers(state.work, state.fed, _of_loop(state), readers, state.deal)
    return dataclasses.replace(state, work=work, readers=readers)


def _read_ahead(state: RankState, ahead: int) -> RankState:
    work, made, loop, fed = state.work, state.model.production, state.model.loop, state.fed
    if made is None:
        return _ahead_of_loop(state, ahead)
    made = with_made_ahead(made, loop, ahead, made.follows == 2 * loop.fetches)
    if not ahead:
        own = 2 * len(loop.kind) + 1 + 2 * fed
        work = work | {"follows": np.where(fed == NO_FETCH, work["follows"], own)}
    return dataclasses.replace(state, work=work, model=dataclasses.replace(state.model, production=made), ahead=ahead)


def _ahead_of_loop(state: RankState, ahead: int) -> RankState:
    """Reads that wait for the loop alone, not for the making of the batches before theirs."""
    work = with_read_ahead(state.work, _of_loop(state), ahead, state.model.loop, state.pass_first)
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


def _handed_over(state: RankState) -> RankState:
    """Move the training thread's work after the last read of each batch to the reader that made the batch."""
    fed = np.unique(state.work["need"][state.fed != NO_FETCH])
    left, ready = state.model.residual_ns.copy(), state.model.ready_ns.copy()
    ready[fed] += left[fed]
    left[fed] = 0
    return dataclasses.replace(state, model=dataclasses.replace(state.model, residual_ns=left, ready_ns=ready))


def with_readers(work: Work, fed: np.ndarray, of_loop: np.ndarray, readers: int, deal: str) -> Work:
    """Deal the operations of the training loop (bool `of_loop`) to `readers` new lanes after all others.

    `fed`: as of `RankState`. `deal`: BY_BATCH or BY_FILE (only with at least as many files as readers). Unit k goes to
    reader k mod `readers`. Each reader keeps the order of the batches. 0 readers: the training thread itself reads, in
    one lane.
    """
    if not of_loop.any():
        return work
    batch = batches_of(work, fed, of_loop)
    files, first, unit = np.unique(work["file_id"][of_loop], return_index=True, return_inverse=True)
    # Files in the order of first use.
    unit = batch[of_loop] if deal == BY_BATCH or len(files) < readers else np.argsort(np.argsort(first))[unit]
    lane = work["lane"].copy()
    lane[of_loop] = int(work["lane"][~of_loop].max(initial=0)) + 1 + unit % max(readers, 1)
    order, mine = np.arange(len(lane)), np.flatnonzero(of_loop)
    order[mine] = mine[np.argsort(batch[mine], kind="stable")]
    # What feeds nothing (a close) comes when its new lane has done what was before it.
    follows = np.where(of_loop & (fed == NO_FETCH), NO_MOMENT, work["follows"])
    return rows_of(work | {"lane": lane, "follows": follows}, order)


def with_read_ahead(
    work: Work, of_loop: np.ndarray, ahead: int, loop: TrainingLoop, pass_first: np.ndarray | None = None
) -> Work:
    """Let the operations of the loop wait for the end of the fetch `ahead` batches before the one that they feed.

    With `ahead` 0 they begin when the fetch itself does. None waits for a fetch behind an event for which its lane has
    operations to come, such as a checkpoint: lane and loop would wait for each other.
    pass_first: int64 (fetches,), the first fetch of the pass over the data that contains each fetch: no batch of a
    pass is read before that fetch begins. None: one pass, whose reads need not wait for its first fetch.
    """
    fed, events = fed_by(work, loop), len(loop.kind)
    feeding = of_loop & (fed != NO_FETCH)
    fed = np.where(feeding, fed, 0)
    if ahead:
        first = np.zeros(len(fed), dtype=np.int64) if pass_first is None else pass_first[fed]
        begin = NO_MOMENT if pass_first is None else 2 * first
        moment = np.where(fed - ahead >= first, 2 * (fed - ahead) + 1, begin)
    else:
        moment = 2 * fed
    # The last border of a batch fetch before the first event that needs the operation or a later one of its lane.
    event, fetches = np.where(work["need"] == NO_EVENT, events, work["need"]), np.append(loop.fetches, events)
    for _, mine in rows_by_lane(work["lane"]):
        event[mine] = np.minimum.accumulate(event[mine][::-1])[::-1]
    before = np.searchsorted(fetches, event)
    moment = of_fetch(loop, np.minimum(moment, 2 * before - (fetches[before] != event)))
    # An operation that waited only for its lane hides its think time; it is at most the time since that moment.
    by_lane = (work["follows"] == NO_MOMENT) | (work["follows"] > 2 * events)
    times_ns = np.stack((loop.begin_ns, loop.end_ns), axis=1).ravel()
    since = np.maximum(work["start_ns"] - times_ns[np.maximum(moment, 0)], 0)
    held = feeding & by_lane & (moment != NO_MOMENT)
    return work | {
        "follows": np.where(feeding, moment, work["follows"]),
        "think_ns": np.where(held, np.minimum(work["think_ns"], since), work["think_ns"]),
    }


def batches_of(work: Work, fed: np.ndarray, of_loop: np.ndarray) -> np.ndarray:
    """int64 (n,): the batch of each operation. One that feeds none (a close) joins the batch before in its lane."""
    batch, chosen = np.zeros(len(fed), dtype=np.int64), np.flatnonzero(of_loop)
    for _, place in rows_by_lane(work["lane"][chosen]):
        mine = chosen[place]
        feeds = fed[mine]
        known = np.maximum.accumulate(np.where(feeds != NO_FETCH, np.arange(len(mine)), -1))
        first = feeds[feeds != NO_FETCH][:1]
        batch[mine] = np.where(known >= 0, feeds[np.maximum(known, 0)], first[0] if len(first) else 0)
    return batch
