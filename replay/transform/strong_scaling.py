"""Shares the recorded work among another number of ranks, by batches or by whole files.

If each file was read by one rank as a stream, whole files go to the ranks in turn, by name: file i to rank i mod R, as
in DLIO. Otherwise the batches of all ranks, in the order in which the loops took them, go to the ranks in turn. The
private work of a rank is not shared: before the first step every rank opens shared files and reads their headers. If
data are not read batch by batch, every rank loads all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.training_loop import CHECKPOINT, FETCH
from dxt_replay.replay.transform.rank_work import (
    EXITED,
    NOTHING,
    TRANSFORMED,
    BatchMaking,
    RankLoop,
    RankState,
    RankWork,
    fetch_numbers,
    joined,
)
from dxt_replay.replay.transform.readers import batches_of, with_read_ahead, with_readers
from dxt_replay.replay.transform.spill_file import Kept, SpillFile
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import RECONSTRUCTED

LOADED_SHARE = 0.1
"""Share of the fetches that must read anything, and more than one: else each rank loads the data at once."""

Columns = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedSource:
    """A rank of the capture, split into shared and private work, whose operations are in a spill file.

    state: the rank without its operations.
    own: its private operations, `RankWork`.
    data: the operations on its batches, `RankWork` and columns `batch`, the fetch of each, and `at_ns`, the time
    from the begin of that fetch to its own begin.
    files: int64, ids of the files of `data`, ascending; none if the data are loaded at once.
    read_files: int64, those that are read.
    parts: how many pairs of a file and a batch are read. read_batches: how many batches.
    takes_batch: bool (fetches,), the fetches that take a batch; all if the data are loaded at once.
    """

    state: RankState
    own: Kept
    data: Kept
    files: np.ndarray
    read_files: np.ndarray
    parts: int
    read_batches: int
    takes_batch: np.ndarray

    @classmethod
    def of(cls, state: RankState, spill: SpillFile) -> SharedSource:
        """The rank; its operations go to the spill file."""
        work, loop = state.work, state.loop.loop
        of_data = state.model.loop_files[work.file_id] & (work.blocks == NOTHING)
        of_data &= work.start_ns < loop.exit_ns
        batch = batches_of(work, of_data)
        takes = np.zeros(len(state.loop.ready_ns), dtype=bool)
        takes[work.feeds[of_data & (work.feeds != NOTHING)]] = True
        if takes.sum() <= max(LOADED_SHARE * len(takes), 1) and not takes.all():
            of_data, takes = np.zeros_like(of_data), np.ones_like(takes)
        data, batch = work.rows(of_data), batch[of_data]
        since_ns = data.start_ns - loop.begin_ns[loop.fetches[batch]]
        read = data.data_reads
        pairs = distinct_rows(data.file_id[read], batch[read]).values
        return cls(
            state=dataclasses.replace(state, work=work.rows(np.empty(0, dtype=np.int64))),
            own=spill.put(work.rows(~of_data).columns()),
            data=spill.put({**data.columns(), "batch": batch, "at_ns": since_ns}),
            files=np.unique(data.file_id),
            read_files=np.unique(pairs[:, 0]),
            parts=len(pairs),
            read_batches=len(np.unique(pairs[:, 1])),
            takes_batch=takes,
        )

    @property
    def loads(self) -> bool:
        """Whether the rank loads all of its data itself."""
        return not self.data.rows

    @property
    def batches(self) -> int:
        return int(self.takes_batch.sum())


def shared_out(
    sources: Sequence[SharedSource], ranks: int, names: Sequence[str], spill: SpillFile
) -> tuple[Iterator[RankState], tuple[str, ...]]:
    """Share the work of all ranks among `ranks` ranks, which are made one by one; also the assumptions.

    names: paths of the files by file id. spill: that of the sources.
    Raises: UsageError for more ranks than files or batches.
    """
    total = sum(source.batches for source in sources)
    if ranks > total:
        raise UsageError(
            f"--ranks {ranks}: the capture has {total} batches to share out, fewer than ranks; with --weak each rank "
            "has as much to do as before"
        )
    each = total // ranks
    by_file = _files_of_one_rank(sources)
    dealt = _files_in_turn(sources, ranks, names, spill) if by_file else _batches_in_turn(sources, ranks, each, spill)
    in_turn = "whole files go to the ranks in turn, by name" if by_file else "batches go to the ranks in turn"
    notes = [
        f"{in_turn}; each rank takes {each} of {total} batches, and computes for a step as long as before",
        "each rank opens files and reads their headers before the first step; ranks beyond the recorded ones write no "
        "checkpoints and repeat nothing else that a rank did outside of the training data",
    ]
    if total % ranks:
        notes.append(f"{total % ranks} batches are left out, so that all ranks take equally many steps")

    def made(rank: int, columns: Columns) -> RankState:
        source, is_copy = _template(sources, rank), rank >= len(sources)
        loop, event_of, shift_ns, slots = _pieced(source.state.loop, source.takes_batch, each, checkpoints=not is_copy)
        own = RankWork(**spill.take(source.own))
        own = _own_of_copy(source, own) if is_copy else _own(source, own, loop, event_of, shift_ns)
        work, slot, at_ns = _data_of(columns, each, by_file=by_file)
        return _assembled(source, loop, own, work, slots, slot, at_ns)

    # `map` holds on to no rank while the next one is made; a generator's frame would.
    return map(made, range(ranks), _by_rank(dealt, ranks, spill)), tuple(notes)


def _files_of_one_rank(sources: Sequence[SharedSource]) -> bool:
    """Whether no file of the training data is read by two ranks, and a file holds more batches than a batch files."""
    users = np.zeros(len(sources[0].state.model.loop_files), dtype=np.int64)
    batches_of_files = files_of_batches = 0.0
    for source in sources:
        if not source.parts:
            return False
        users[source.read_files] += 1
        batches_of_files += source.parts / len(source.read_files)
        files_of_batches += source.parts / source.read_batches
    return bool(users.max(initial=0) <= 1 and batches_of_files > files_of_batches)


def _template(sources: Sequence[SharedSource], rank: int) -> SharedSource:
    """The rank of the capture whose loop a new rank copies: the same number, or the ranks in turn."""
    if rank < len(sources) or len(sources) == 1:
        return sources[rank % len(sources)]
    return sources[1 + (rank - 1) % (len(sources) - 1)]


def _batches_in_turn(
    sources: Sequence[SharedSource], ranks: int, each: int, spill: SpillFile
) -> Iterator[tuple[Columns, np.ndarray]]:
    """Deal batch k of all ranks, in the order in which they took them, as batch k div R to rank k mod R.

    Yields the operations of each source with `key`, the number of the batch of the new rank, and int64 (n,), the new
    rank, NOTHING for batches that are left over."""
    of_all = [np.flatnonzero(source.takes_batch) for source in sources]
    of_rank = np.concatenate([np.full(len(mine), rank) for rank, mine in enumerate(of_all)])
    order = np.lexsort((of_rank, np.concatenate([np.arange(len(mine)) for mine in of_all])))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    number[number >= each * ranks] = NOTHING
    first = 0
    for source, mine in zip(sources, of_all, strict=True):
        of_fetch = np.full(len(source.takes_batch), NOTHING, dtype=np.int64)
        of_fetch[mine] = number[first : first + len(mine)]
        first += len(mine)
        columns = spill.take(source.data)
        of_operation = of_fetch[columns.pop("batch")]
        to = np.where(of_operation == NOTHING, NOTHING, of_operation % ranks)
        columns["key"] = of_operation // ranks
        yield columns, to


def _files_in_turn(
    sources: Sequence[SharedSource], ranks: int, names: Sequence[str], spill: SpillFile
) -> Iterator[tuple[Columns, np.ndarray]]:
    """Deal file i, in the order of names, to rank i mod R.

    Yields the operations of each source with `key`, the share of the loop before their batch, and the new rank."""
    files = sorted(np.unique(np.concatenate([source.files for source in sources])).tolist(), key=names.__getitem__)
    if ranks > len(files):
        raise UsageError(
            f"--ranks {ranks}: the training data are {len(files)} files, each read by one rank, and cannot be shared "
            "out among more ranks; with --weak each rank has as much to do as before"
        )
    rank_of = np.zeros(len(names), dtype=np.int64)
    rank_of[files] = np.arange(len(files)) % ranks
    for source in sources:
        columns = spill.take(source.data)
        columns["key"] = columns.pop("batch") / len(source.takes_batch)
        yield columns, rank_of[columns["file_id"]]


def _by_rank(dealt: Iterable[tuple[Columns, np.ndarray]], ranks: int, spill: SpillFile) -> Iterator[Columns]:
    """The operations dealt to each new rank, in the order of the sources."""

    def together(begin: int, end: int) -> Columns:
        mine = [spill.take(kept[0], 0, 0)]
        mine += [spill.take(kept[source], *rows) for _, source, *rows in pieces[:, begin:end].T.tolist()]
        return {name: np.concatenate([each.pop(name) for each in mine]) for name in list(mine[0])}

    kept, found = [], []
    for columns, to in dealt:
        order = np.argsort(to, kind="stable")
        order = order[to[order] != NOTHING]
        kept.append(spill.put({name: columns.pop(name)[order] for name in list(columns)}))
        first = np.flatnonzero(np.diff(to[order], prepend=NOTHING))
        until = np.append(first[1:], len(order))[: len(first)]
        found.append(np.stack((to[order][first], np.full(len(first), len(kept) - 1), first, until)))
    pieces = np.concatenate(found, axis=1)
    pieces = pieces[:, np.argsort(pieces[0], kind="stable")]
    limits = np.searchsorted(pieces[0], np.arange(ranks + 1)).tolist()
    return map(together, limits[:-1], limits[1:])


def _data_of(columns: Columns, each: int, *, by_file: bool) -> tuple[RankWork, np.ndarray, np.ndarray]:
    """The operations on the data of a new rank, the number of the batch of each, from 0, and `at_ns` of the source.

    If files were dealt, its batches follow from the bytes that it reads.
    """
    order = np.argsort(columns["key"], kind="stable")
    columns = {name: columns.pop(name)[order] for name in list(columns)}
    slot, at_ns = columns.pop("key"), columns.pop("at_ns")
    work = RankWork(**columns)
    if by_file:
        moved = np.where(work.data_reads, work.length, 0)
        of_batch = max(int(moved.sum()), 1) / each
        slot = np.minimum(((np.cumsum(moved) - moved) / of_batch).astype(np.int64), each - 1)
    return work, slot, at_ns


def _assembled(
    source: SharedSource,
    loop: RankLoop,
    own: RankWork,
    data: RankWork,
    slots: np.ndarray,
    slot: np.ndarray,
    at_ns: np.ndarray,
) -> RankState:
    """Assemble a rank from its private work and the operations on its batches. slots: of `_pieced`."""
    fetch = slots[slot]
    # As many batches before their own as it was.
    waits = (data.made != NOTHING) & (data.feeds != NOTHING)
    reads = dataclasses.replace(
        _marked(data),
        feeds=np.where(data.feeds == NOTHING, NOTHING, fetch),
        follows=np.full(len(data), NOTHING),
        made=np.where(waits, np.maximum(data.made + 2 * (fetch - data.feeds), NOTHING), NOTHING),
        start_ns=loop.loop.begin_ns[loop.loop.fetches[fetch]] + at_ns,
    )
    work = joined([own, reads])
    of_data = np.arange(len(work)) >= len(own)
    order = np.argsort(work.start_ns, kind="stable")
    work, of_data = work.rows(order), of_data[order]
    state = source.state
    work = with_readers(work, of_data, state.readers, state.deal)
    if loop.making is None:
        # Not by the files of the source's own loop: the operations may be on files of other ranks.
        work = with_read_ahead(work, of_data & np.isin(work.feeds, slots), state.ahead, loop)
    return dataclasses.replace(state, work=work, loop=loop, spans=None)


def _own_of_copy(source: SharedSource, work: RankWork) -> RankWork:
    """The private work of a rank beyond the recorded ones: what comes before the first step. work: of the source."""
    work = dataclasses.replace(work, made=np.full(len(work), NOTHING))
    loaded = (work.feeds != NOTHING) & source.loads
    return _marked(work.rows(np.flatnonzero((work.blocks == 0) | loaded)))


def _own(source: SharedSource, work: RankWork, loop: RankLoop, event_of: np.ndarray, shift_ns: np.ndarray) -> RankWork:
    """The private work of a rank: before the first step, in the checkpoints and evaluations of the new loop, and after
    the loop. work: that of the source. event_of, shift_ns: of `_pieced`."""
    old = source.state.loop.loop
    work = dataclasses.replace(work, made=np.full(len(work), NOTHING))
    new = loop.loop
    event = np.where(work.feeds == NOTHING, work.blocks, old.fetches[work.feeds])
    parts = [work.rows(np.flatnonzero(work.blocks == 0))]
    own = np.flatnonzero(event > 0)
    own = own[np.argsort(event[own], kind="stable")]
    limits = np.searchsorted(event[own], np.stack((event_of, event_of + 1)))
    # A repeated step does not repeat a load that happens once.
    again = (shift_ns > 0) & (new.kind == FETCH) & source.loads
    for number in np.flatnonzero((limits[1] > limits[0]) & ~again).tolist():
        rows = np.sort(own[limits[0, number] : limits[1, number]])
        fetch = int(np.searchsorted(new.fetches, number))
        part, feeds = work.rows(rows), work.feeds[rows] != NOTHING
        parts.append(
            dataclasses.replace(
                part,
                start_ns=part.start_ns + shift_ns[number],
                blocks=np.where(feeds, NOTHING, number),
                feeds=np.where(feeds, fetch, NOTHING),
                follows=np.where(feeds, 2 * fetch, NOTHING),
            )
        )
    free = np.flatnonzero(event == NOTHING)
    last, later = 2 * len(new.fetches) - 1, work.start_ns[free] >= old.exit_ns
    moved = np.where(later, new.exit_ns - old.exit_ns, 0)
    rest = dataclasses.replace(
        work.rows(free),
        start_ns=np.where(later, work.start_ns[free] + moved, work.start_ns[free]),
        follows=np.where(later, EXITED, np.minimum(work.follows[free], last)),
    )
    return joined([*parts, rest])


def _marked(work: RankWork) -> RankWork:
    """Operations of a rank that the capture does not have."""
    origin = np.where(work.origin == RECONSTRUCTED, work.origin, np.maximum(work.origin, TRANSFORMED))
    return dataclasses.replace(work, origin=origin.astype(work.origin.dtype))


def _pieced(
    old: RankLoop, takes_batch: np.ndarray, batches: int, *, checkpoints: bool
) -> tuple[RankLoop, np.ndarray, np.ndarray, np.ndarray]:
    """A loop that fetches `batches` batches: the steps of `old` in order, repeated from the first one if needed.

    Also int64 (events,), the old event that each new one repeats, and its delay; and int64, the numbers of the batch
    fetches that take a batch of the data set, in order.

    takes_batch: bool (fetches,), the fetches of `old` that take a batch of the data set.
    checkpoints: whether its checkpoints become events of the new loop; else their time is busy time.
    Raises: UsageError if no step of `old` fetches a batch.
    """
    loop = old.loop
    step = np.searchsorted(loop.step_begin_ns, loop.begin_ns, side="right") - 1
    step[0] = -1
    takes = np.zeros(len(loop.kind), dtype=bool)
    takes[loop.fetches] = takes_batch
    kept = np.ones(len(step), dtype=bool) if checkpoints else loop.kind != CHECKPOINT
    per_step = np.bincount(step[takes & (step >= 0)], minlength=len(loop.step_begin_ns))
    if not per_step.sum():
        raise UsageError("no step of this capture fetches a batch that was read, so its steps cannot be shared out")
    wanted = batches - int(takes[step < 0].sum())
    # Rows of the steps that fetch as many batches; at least one.
    steps = np.tile(np.arange(len(per_step)), max(-(-wanted // int(per_step.sum())), 1))
    steps = steps[: int(np.searchsorted(np.cumsum(per_step[steps]), max(wanted, 1))) + 1]
    begins = np.append(loop.step_begin_ns, loop.exit_ns)
    lengths = np.diff(begins)[steps]
    at_ns = begins[0] + np.cumsum(lengths) - lengths
    shift = at_ns - begins[steps]
    by_step = [np.flatnonzero(kept & (step == number)) for number in range(len(per_step))]
    before = np.flatnonzero(kept & (step < 0))
    events = np.concatenate([before, *(by_step[number] for number in steps.tolist())])
    counts = np.array([len(by_step[number]) for number in steps.tolist()], dtype=np.int64)
    shift_ns = np.concatenate((np.zeros(len(before), dtype=np.int64), np.repeat(shift, counts)))
    of_fetch = fetch_numbers(loop)[events][loop.kind[events] == FETCH]
    new = dataclasses.replace(
        loop,
        kind=loop.kind[events],
        loader=loop.loader[events],
        begin_ns=loop.begin_ns[events] + shift_ns,
        end_ns=loop.end_ns[events] + shift_ns,
        step_number=loop.step_number[0] + np.arange(len(steps), dtype=loop.step_number.dtype),
        step_begin_ns=loop.step_begin_ns[steps] + shift,
        step_end_ns=loop.step_end_ns[steps] + shift,
        exit_ns=int(at_ns[-1] + lengths[-1]),
    )
    making = old.making
    if making is not None:  # with room for as many batches as before
        making = BatchMaking(
            room=np.where(making.asked[of_fetch], 2 * np.arange(len(of_fetch)), NOTHING),
            delay_ns=making.delay_ns[of_fetch],
            head_ns=making.head_ns[of_fetch],
            tail_ns=making.tail_ns[of_fetch],
        ).with_ahead(making.ahead)
    made = RankLoop(loop=new, residual_ns=old.residual_ns[events], ready_ns=old.ready_ns[of_fetch], making=making)
    return made, events, shift_ns, np.flatnonzero(takes_batch[of_fetch])[:batches]
