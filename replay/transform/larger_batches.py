"""Joins several batches into one, and their steps into one step. Pure.

The requests stay. The new step computes as long as its old steps together, and has one batch fetch and one collective.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dxt_replay.replay.causal.training_loop import COLLECTIVE, FETCH, TrainingLoop
from dxt_replay.replay.transform.rank_work import NOTHING, BatchMaking, RankLoop, RankWork


def with_larger_batches(
    work: RankWork, loop: RankLoop, takes_batch: np.ndarray, times: int
) -> tuple[RankWork, RankLoop, np.ndarray]:
    """Operations and loop with batches of `times` as many samples; the last batch may be smaller. Also int64
    (fetches,), the new number of each old fetch.

    takes_batch: bool (fetches,), the fetches that take a batch of the data set; others stay.
    Operations follow the begin or the end of the new fetch that contains their old fetch.
    """
    old = loop.loop
    kept, group = _kept_events(old, takes_batch, times)
    lost_ns = np.where(kept, 0, old.end_ns - old.begin_ns)
    earlier = np.concatenate(([0], np.cumsum(lost_ns)))

    def moved(at: np.ndarray) -> np.ndarray:
        # A removed event removes its time too.
        place = np.searchsorted(old.end_ns, at, side="right")
        inside = np.minimum(place, len(kept) - 1)
        partly = np.clip(at - old.begin_ns[inside], 0, lost_ns[inside])
        result: np.ndarray = at - earlier[place] - np.where(place < len(kept), partly, 0)
        return result

    is_fetch = old.kind == FETCH
    new_number = np.cumsum(kept & is_fetch) - 1
    fetch_of = new_number[is_fetch]
    steps = _kept_steps(old, kept & is_fetch, is_fetch)
    new = dataclasses.replace(
        old,
        kind=old.kind[kept],
        loader=old.loader[kept],
        begin_ns=moved(old.begin_ns)[kept],
        end_ns=(moved(old.begin_ns) + (old.end_ns - old.begin_ns))[kept],
        step_number=old.step_number[: len(steps)],
        step_begin_ns=moved(old.step_begin_ns)[steps],
        step_end_ns=moved(old.step_end_ns)[np.append(steps[1:], len(old.step_end_ns)) - 1],
        exit_ns=int(moved(np.array([old.exit_ns]))[0]),
    )
    event = np.cumsum(kept) - 1
    residual = np.bincount(event[group], weights=np.where(kept | is_fetch, loop.residual_ns, 0))
    ready = np.bincount(fetch_of, weights=loop.ready_ns)
    feeds = np.where(work.feeds == NOTHING, NOTHING, fetch_of[work.feeds])
    made = np.where(work.made == NOTHING, NOTHING, 2 * fetch_of[work.made // 2] + work.made % 2)
    think_ns = work.think_ns
    if loop.making is not None:
        think_ns = think_ns + _processed_before(work, loop.making, fetch_of)
    changed = dataclasses.replace(
        work,
        feeds=feeds,
        # What waited for an earlier part of its batch waits for the begin of the batch.
        made=np.where(feeds == NOTHING, made, np.minimum(made, 2 * feeds)),
        think_ns=think_ns,
        follows=np.where(work.follows < 0, work.follows, 2 * fetch_of[work.follows // 2] + work.follows % 2),
        blocks=np.where(work.blocks == NOTHING, NOTHING, event[work.blocks]),
        start_ns=moved(work.start_ns),
    )
    return (
        changed,
        RankLoop(
            loop=new,
            residual_ns=residual.astype(np.int64),
            ready_ns=ready.astype(np.int64),
            making=None if loop.making is None else _made(loop.making, fetch_of),
        ),
        fetch_of,
    )


def _made(making: BatchMaking, fetch_of: np.ndarray) -> BatchMaking:
    """The making of larger batches: all processing but that behind the last read is in front of it."""
    first = np.flatnonzero(np.diff(fetch_of, prepend=-1))
    last = np.append(first[1:], len(fetch_of)) - 1
    room = making.room[first]
    tail = making.tail_ns[last]
    return BatchMaking(
        room=np.where(room < 0, room, 2 * fetch_of[room // 2] + room % 2),
        delay_ns=making.delay_ns[first],
        head_ns=np.add.reduceat(making.head_ns + making.tail_ns, first) - tail,
        tail_ns=tail,
    )


def _processed_before(work: RankWork, making: BatchMaking, fetch_of: np.ndarray) -> np.ndarray:
    """int64 (n,): what is processed between a lane's previous operation and each one because batches that were made
    one after the other are now one. The processing in front of a batch's reads is in their think times."""
    behind = making.tail_ns + np.where(making.tail_ns == 0, making.head_ns, 0)
    until = np.concatenate(([0], np.cumsum(behind)))
    first = np.searchsorted(fetch_of, fetch_of)
    added = np.zeros(len(work), dtype=np.int64)
    inside = (work.made != NOTHING) & (work.feeds != NOTHING)
    inside[inside] = fetch_of[work.made[inside] // 2] == fetch_of[work.feeds[inside]]
    for lane in np.unique(work.lane[inside]).tolist():
        mine = np.flatnonzero(inside & (work.lane == lane))
        now = until[(work.made[mine] + 1) // 2]
        before = np.maximum.accumulate(np.concatenate(([0], now[:-1])))
        added[mine] = np.maximum(now - np.maximum(before, until[first[work.feeds[mine]]]), 0)
    return added


def _kept_events(loop: TrainingLoop, takes_batch: np.ndarray, times: int) -> tuple[np.ndarray, np.ndarray]:
    """bool (events,): the events that stay; and int64 (events,): the new event that contains each old one."""
    slots = loop.fetches[takes_batch]
    first = slots[::times]
    kept = np.ones(len(loop.kind), dtype=bool)
    kept[np.setdiff1d(slots, first)] = False
    # Between two fetches that stay, only the collectives after the last fetch of the batch stay.
    last = np.append(slots[times - 1 :: times], slots[-1:]) if len(slots) % times else slots[times - 1 :: times]
    collective = np.flatnonzero(loop.kind == COLLECTIVE)
    of_first = np.searchsorted(first, collective, side="right") - 1
    inside = of_first >= 0
    kept[collective[inside]] = collective[inside] > last[of_first[inside]]
    group = np.arange(len(kept))
    group[slots] = first[np.arange(len(slots)) // times]
    return kept, group


def _kept_steps(loop: TrainingLoop, kept_fetch: np.ndarray, is_fetch: np.ndarray) -> np.ndarray:
    """Rows of the steps that begin a step of the new loop: those with a fetch that stays, or without a fetch."""
    step = np.searchsorted(loop.step_begin_ns, loop.begin_ns, side="right") - 1
    starts = np.zeros(len(loop.step_begin_ns), dtype=bool)
    fetches = np.zeros(len(starts), dtype=np.int64)
    np.add.at(fetches, step[is_fetch & (step >= 0)], 1)
    starts[step[kept_fetch & (step >= 0)]] = True
    starts[fetches == 0] = True
    starts[:1] = True
    return np.flatnonzero(starts)
