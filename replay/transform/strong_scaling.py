"""Shares the recorded work among another number of ranks, by batches or by whole files. Pure.

If each file was read by one rank as a stream, whole files go to the ranks in turn, by name: file i to rank i mod R, as
in DLIO. Otherwise the batches of all ranks, in the order in which the loops took them, go to the ranks in turn. The
private work of a rank is not shared: before the first step every rank opens shared files and reads their headers. If
data are not read batch by batch, every rank loads all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.training_loop import FETCH
from dxt_replay.replay.transform.loop_pieces import PiecedLoop, pieced
from dxt_replay.replay.transform.rank_work import NOTHING, TRANSFORMED, RankState, RankWork, joined
from dxt_replay.replay.transform.readers import batches_of, with_read_ahead, with_readers
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import RECONSTRUCTED

LOADED_SHARE = 0.1
"""Share of the fetches that must read anything, and more than one: else each rank loads the data at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """A rank of the capture, split into shared and private work.

    state: the rank. of_data: bool (n,), operations on its batches. batch: int64 (n,), the fetch of each of these.
    takes_batch: bool (fetches,), the fetches that take a batch; all if the data are loaded at once.
    """

    state: RankState
    of_data: np.ndarray
    batch: np.ndarray
    takes_batch: np.ndarray

    @classmethod
    def of(cls, state: RankState) -> _Source:
        work = state.work
        of_data = state.model.loop_files[work.file_id] & (work.blocks == NOTHING)
        of_data &= work.start_ns < state.loop.loop.exit_ns
        batch = batches_of(work, of_data)
        takes = np.zeros(len(state.loop.ready_ns), dtype=bool)
        takes[work.feeds[of_data & (work.feeds != NOTHING)]] = True
        if takes.sum() <= max(LOADED_SHARE * len(takes), 1) and not takes.all():
            of_data, takes = np.zeros_like(of_data), np.ones_like(takes)
        return cls(state=state, of_data=of_data, batch=batch, takes_batch=takes)

    @property
    def loads(self) -> bool:
        """Whether the rank loads all of its data itself."""
        return not self.of_data.any()

    @property
    def batches(self) -> int:
        return int(self.takes_batch.sum())


def shared_out(
    states: Mapping[int, RankState], ranks: int, names: Sequence[str]
) -> tuple[dict[int, RankState], tuple[str, ...]]:
    """Share the work of all ranks among `ranks` ranks; also the assumptions. `names`: paths of the files by file id.

    Raises: UsageError for more ranks than files or batches.
    """
    sources = [_Source.of(state) for state in states.values()]
    total = sum(source.batches for source in sources)
    if ranks > total:
        raise UsageError(
            f"--ranks {ranks}: the capture has {total} batches to share out, fewer than ranks; with --weak each rank "
            "has as much to do as before"
        )
    each = total // ranks
    by_file = _files_of_one_rank(sources)
    data = _files_in_turn(sources, ranks, each, names) if by_file else _batches_in_turn(sources, ranks, each)
    found = {}
    for rank in range(ranks):
        source = _template(sources, rank)
        loop = pieced(source.state.loop, source.takes_batch, each, checkpoints=rank < len(sources))
        found[rank] = _assembled(source, loop, data[rank], is_copy=rank >= len(sources))
    dealt = "whole files go to the ranks in turn, by name" if by_file else "batches go to the ranks in turn"
    notes = [
        f"{dealt}; each rank takes {each} of {total} batches, and computes for a step as long as before",
        "each rank opens files and reads their headers before the first step; ranks beyond the recorded ones write no "
        "checkpoints and repeat nothing else that a rank did outside of the training data",
    ]
    if total % ranks:
        notes.append(f"{total % ranks} batches are left out, so that all ranks take equally many steps")
    return found, tuple(notes)


def _files_of_one_rank(sources: Sequence[_Source]) -> bool:
    """Whether no file of the training data is read by two ranks, and a file holds more batches than a batch files."""
    users = np.zeros(len(sources[0].state.model.loop_files), dtype=np.int64)
    batches_of_files = files_of_batches = 0.0
    for source in sources:
        work = source.state.work
        read = np.flatnonzero(source.of_data & work.data_reads)
        if not len(read):
            return False
        names, batches = work.file_id[read], source.batch[read]
        pairs = np.unique(np.stack((names, batches)), axis=1).shape[1]
        users[np.unique(names)] += 1
        batches_of_files += pairs / len(np.unique(names))
        files_of_batches += pairs / len(np.unique(batches))
    return bool(users.max(initial=0) <= 1 and batches_of_files > files_of_batches)


def _template(sources: Sequence[_Source], rank: int) -> _Source:
    """The rank of the capture whose loop a new rank copies: the same number, or the ranks in turn."""
    if rank < len(sources) or len(sources) == 1:
        return sources[rank % len(sources)]
    return sources[1 + (rank - 1) % (len(sources) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Data:
    """Operations on the training data for one rank.

    slot: int64 (n,), the number of its batch, from 0.
    at_ns: int64 (n,), time from the begin of its fetch in the capture to its own begin.
    """

    work: RankWork
    slot: np.ndarray
    at_ns: np.ndarray


def _batches_in_turn(sources: Sequence[_Source], ranks: int, each: int) -> list[_Data]:
    """Deal batch k of all ranks, in the order in which they took them, as batch k div R to rank k mod R."""
    works, place, at_ns = [], [], []
    of_all = [np.flatnonzero(source.takes_batch) for source in sources]
    of_rank = np.concatenate([np.full(len(mine), rank) for rank, mine in enumerate(of_all)])
    order = np.lexsort((of_rank, np.concatenate([np.arange(len(mine)) for mine in of_all])))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    first = 0
    for source, mine in zip(sources, of_all, strict=True):
        of_fetch = np.full(len(source.takes_batch), NOTHING, dtype=np.int64)
        of_fetch[mine] = number[first : first + len(mine)]
        first += len(mine)
        chosen = np.flatnonzero(source.of_data & (of_fetch[source.batch] != NOTHING))
        works.append(source.state.work.rows(chosen))
        place.append(of_fetch[source.batch[chosen]])
        at_ns.append(_since_fetch(source, chosen))
    return _dealt(joined(works), np.concatenate(place), np.concatenate(at_ns), ranks, each)


def _since_fetch(source: _Source, chosen: np.ndarray) -> np.ndarray:
    loop = source.state.loop.loop
    since: np.ndarray = source.state.work.start_ns[chosen] - loop.begin_ns[loop.fetches[source.batch[chosen]]]
    return since


def _dealt(work: RankWork, number: np.ndarray, at_ns: np.ndarray, ranks: int, each: int) -> list[_Data]:
    """Rank -> operations of its batches; `number`: of the batch among all."""
    order = np.lexsort((number, number % ranks))
    order = order[number[order] < each * ranks]
    borders = np.searchsorted(number[order] % ranks, np.arange(ranks + 1))
    found = []
    for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        mine = order[begin:end]
        found.append(_Data(work=work.rows(mine), slot=number[mine] // ranks, at_ns=at_ns[mine]))
    return found


def _files_in_turn(sources: Sequence[_Source], ranks: int, each: int, names: Sequence[str]) -> list[_Data]:
    """Deal file i, in the order of names, to rank i mod R. A rank's batches follow from the bytes that it reads."""
    work = joined([source.state.work.rows(np.flatnonzero(source.of_data)) for source in sources])
    at_ns = np.concatenate([_since_fetch(source, np.flatnonzero(source.of_data)) for source in sources])
    progress = np.concatenate([source.batch[source.of_data] / len(source.takes_batch) for source in sources])
    files = sorted(np.unique(work.file_id).tolist(), key=names.__getitem__)
    if ranks > len(files):
        raise UsageError(
            f"--ranks {ranks}: the training data are {len(files)} files, each read by one rank, and cannot be shared "
            "out among more ranks; with --weak each rank has as much to do as before"
        )
    rank_of = np.zeros(len(names), dtype=np.int64)
    rank_of[files] = np.arange(len(files)) % ranks
    found = []
    for rank in range(ranks):
        mine = np.flatnonzero(rank_of[work.file_id] == rank)
        mine = mine[np.argsort(progress[mine], kind="stable")]
        part = work.rows(mine)
        moved = np.where(part.data_reads, part.length, 0)
        of_batch = max(int(moved.sum()), 1) / each
        slot = np.minimum(((np.cumsum(moved) - moved) / of_batch).astype(np.int64), each - 1)
        found.append(_Data(work=part, slot=slot, at_ns=at_ns[mine]))
    return found


def _assembled(source: _Source, loop: PiecedLoop, data: _Data, *, is_copy: bool) -> RankState:
    """Assemble a rank from its batches and the private work of its source."""
    fetch = loop.slots[data.slot]
    new = loop.loop.loop
    reads = dataclasses.replace(
        _marked(data.work),
        feeds=np.where(data.work.feeds == NOTHING, NOTHING, fetch),
        follows=np.full(len(data.work), NOTHING),
        made=_made(data.work, fetch),
        start_ns=new.begin_ns[new.fetches[fetch]] + data.at_ns,
    )
    own = _own(source, loop, is_copy=is_copy)
    work = joined([own, reads])
    of_data = np.arange(len(work)) >= len(own)
    order = np.argsort(work.start_ns, kind="stable")
    work, of_data = work.rows(order), of_data[order]
    state = source.state
    work = with_readers(work, of_data, state.readers, state.deal)
    fed = np.isin(work.feeds, loop.slots) & state.model.loop_files[work.file_id]
    if loop.loop.making is None:
        work = with_read_ahead(work, fed, state.ahead, loop.loop.moments_ns)
    return dataclasses.replace(state, work=work, loop=loop.loop, spans=None)


def _made(work: RankWork, fetch: np.ndarray) -> np.ndarray:
    """`RankWork.made` of operations on the batches of other fetches: as many batches before their own as it was."""
    waits = (work.made != NOTHING) & (work.feeds != NOTHING)
    return np.where(waits, np.maximum(work.made + 2 * (fetch - work.feeds), NOTHING), NOTHING)


def _own(source: _Source, loop: PiecedLoop, *, is_copy: bool) -> RankWork:
    """The private work of a rank: before the first step, and, unless it `is_copy`, in the checkpoints and evaluations
    of the new loop and after the loop."""
    work, old = source.state.work, source.state.loop.loop
    work = dataclasses.replace(work, made=np.full(len(work), NOTHING))
    new = loop.loop.loop
    mine = ~source.of_data
    entry = mine & (work.blocks == 0)
    if is_copy:
        loaded = mine & (work.feeds != NOTHING) & source.loads
        return _marked(work.rows(np.flatnonzero(entry | loaded)))
    event = np.where(work.feeds == NOTHING, work.blocks, old.fetches[work.feeds])
    parts = [work.rows(np.flatnonzero(entry))]
    own = np.flatnonzero(mine & (event > 0))
    own = own[np.argsort(event[own], kind="stable")]
    limits = np.searchsorted(event[own], np.stack((loop.event_of, loop.event_of + 1)))
    # A repeated step does not repeat a load that happens once.
    again = (loop.shift_ns > 0) & (new.kind == FETCH) & source.loads
    for number in np.flatnonzero((limits[1] > limits[0]) & ~again).tolist():
        rows, shift_ns = np.sort(own[limits[0, number] : limits[1, number]]), int(loop.shift_ns[number])
        fetch = int(np.searchsorted(new.fetches, number))
        part, feeds = work.rows(rows), work.feeds[rows] != NOTHING
        parts.append(
            dataclasses.replace(
                part,
                start_ns=part.start_ns + shift_ns,
                blocks=np.where(feeds, NOTHING, number),
                feeds=np.where(feeds, fetch, NOTHING),
                follows=np.where(feeds, 2 * fetch, NOTHING),
            )
        )
    free = np.flatnonzero(mine & (event == NOTHING))
    last, later = 2 * len(new.fetches) - 1, work.start_ns[free] >= old.exit_ns
    moved = np.where(later, new.exit_ns - old.exit_ns, 0)
    rest = dataclasses.replace(
        work.rows(free),
        start_ns=np.where(later, work.start_ns[free] + moved, work.start_ns[free]),
        follows=np.where(later, last, np.minimum(work.follows[free], last)),
    )
    return joined([*parts, rest])


def _marked(work: RankWork) -> RankWork:
    """Operations of a rank that the capture does not have."""
    origin = np.where(work.origin == RECONSTRUCTED, work.origin, np.maximum(work.origin, TRANSFORMED))
    return dataclasses.replace(work, origin=origin.astype(work.origin.dtype))
