"""Changes who reads which batch, and how far ahead of the loop: readers, read-ahead, and ranks that share the recorded
work. Pure.

The requests stay. Read-ahead is a number of batches: the read of batch n begins when batch n - ahead has been fetched.

Ranks share the work by batches or by whole files. If each file was read by one rank as a stream, whole files go to the
ranks in turn, by name: file i to rank i mod R, as in DLIO. Otherwise the batches of all ranks, in the order in which
the loops took them, go to the ranks in turn. The private work of a rank is not shared: before the first step every rank
opens shared files and reads their headers. If data are not read batch by batch, every rank loads all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dxt_replay.replay.causal.loop import CHECKPOINT, FETCH, NO_FETCH, NO_MOMENT, TrainingLoop
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.operations import rows_by_lane
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.rank import (
    RankState,
    Work,
    by_fetch,
    data_reads,
    fed_by,
    fetch_numbers,
    joined,
    made_ahead,
    moved_origin,
    of_fetch,
    rows_of,
    with_made_ahead,
)
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import WRITE

DEFAULT_PREFETCH = 2
"""Batches that each reader has ahead, where the training thread read itself and --prefetch is not given: PyTorch's."""

LOADED_SHARE = 0.1
"""Share of the fetches that must read anything, and more than one: else each rank loads the data at once."""

LEFT_OUT = -1  # The new rank of batches that are left over


def _of_loop(work: Work, model: LoopModel) -> np.ndarray:
    """bool (n,): operations on the data that the loop reads."""
    mine = model.loop_files[work["file_id"]] & (work["start_ns"] < model.loop.exit_ns)
    found: np.ndarray = mine & ((work["need"] == NO_EVENT) | (fed_by(work, model.loop) != NO_FETCH))
    return found


def with_pipeline(before: RankState, changes: Changes) -> tuple[RankState, tuple[str, ...]]:
    """Change readers and read-ahead, and list the assumptions."""
    readers = before.readers if changes.readers is None else changes.readers
    work, model, loop, made, fed = before.work, before.model, before.model.loop, before.model.production, before.fed
    if not (fed != NO_FETCH).any():
        raise UsageError(
            "--readers and --prefetch change how batches are read for the training loop, and no read of this capture "
            "feeds a step: its data are loaded before the first one"
        )
    if not readers and changes.prefetch is not None:
        raise UsageError(
            "--prefetch needs readers beside the training thread, and in this capture that thread itself reads: give "
            "--readers, too"
        )
    if not readers:
        ahead = 0
    elif before.by_file:
        # A loop that waited for its reads does not show the depth of its buffer. Each reader has one batch in progress.
        ahead = changes.prefetch or (before.ahead if readers == before.readers else max(before.ahead, readers))
    else:  # readers that take turns have a multiple of their number
        each = before.ahead // before.readers if before.readers else DEFAULT_PREFETCH
        ahead = readers * (each if changes.prefetch is None else -(-changes.prefetch // readers))
    if readers == before.readers and changes.prefetch in (None, before.ahead):
        return dataclasses.replace(before, ahead=ahead), ()
    if not before.readers:  # the reader does what the training thread did after the last read of each batch
        fetched = np.unique(work["need"][fed != NO_FETCH])
        left, ready = model.residual_ns.copy(), model.ready_ns.copy()
        ready[fetched] += left[fetched]
        left[fetched] = 0
        model = dataclasses.replace(model, residual_ns=left, ready_ns=ready)
    if readers != before.readers:
        if model.dealing is not None and any(model.dealing.others.values()):
            raise UsageError(
                "the workers of this capture read with several threads each, and how their threads would share other "
                "batches is not known: change the requests alone, or record the job with other workers"
            )
        work = with_readers(work, fed, _of_loop(work, model) & (work["op"] != WRITE), readers, by_file=before.by_file)
    more = " and a processor of its own" if readers > before.readers else ""
    notes = [
        f"readers: {before.readers} -> {readers}, batches read ahead: {before.ahead} -> {ahead}; each batch keeps its "
        f"requests, and each reader its own think times{more}; a file that several readers use is opened as before"
    ]
    if made is not None:
        made = with_made_ahead(made, loop, ahead, made.follows == 2 * loop.fetches)
        model = dataclasses.replace(model, production=made)
        if not ahead:
            own = 2 * len(loop.kind) + 1 + 2 * fed_by(work, loop)
            work = work | {"follows": np.where(fed_by(work, loop) == NO_FETCH, work["follows"], own)}
    if made is None or readers > before.readers:
        # These reads wait for the loop alone, not for the making of the batches before theirs.
        work = with_read_ahead(work, _of_loop(work, model) & (work["op"] != WRITE), ahead, loop, before.pass_first)
    if made is not None and readers > before.readers:
        notes.append(
            "readers of tf.data that are added read whole files ahead of the making of the batches, which processes as "
            "much as before; an interleave of more files would also mix their records, which is not predicted"
        )
    return dataclasses.replace(before, work=work, model=model, readers=readers, ahead=ahead), tuple(notes)


def with_readers(work: Work, fed: np.ndarray, of_loop: np.ndarray, readers: int, *, by_file: bool = False) -> Work:
    """Deal the operations of the training loop (bool `of_loop`) to `readers` new lanes after all others.

    `fed`: as of `RankState`. Batch k, or with `by_file` file k (if there are at least as many files as readers), goes
    to reader k mod `readers`. Each reader keeps the order of the batches. 0 readers: the training thread itself reads,
    in one lane."""
    if not of_loop.any():
        return work
    batch = _batches_of(work, fed, of_loop)
    files, first, unit = np.unique(work["file_id"][of_loop], return_index=True, return_inverse=True)
    # Files in the order of first use.
    unit = np.argsort(np.argsort(first))[unit] if by_file and len(files) >= readers else batch[of_loop]
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
    operations to come, such as a checkpoint: lane and loop would wait for each other. pass_first: as of `RankState`."""
    fed, events = fed_by(work, loop), len(loop.kind)
    feeding = of_loop & (fed != NO_FETCH)
    fed = np.where(feeding, fed, 0)
    moment = 2 * fed
    if ahead:
        first = np.zeros(len(fed), dtype=np.int64) if pass_first is None else pass_first[fed]
        begin = NO_MOMENT if pass_first is None else 2 * first
        moment = np.where(fed - ahead >= first, 2 * (fed - ahead) + 1, begin)
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


def _batches_of(work: Work, fed: np.ndarray, of_loop: np.ndarray) -> np.ndarray:
    """int64 (n,): the batch of each operation. One that feeds none (a close) joins the batch before in its lane."""
    batch, chosen = np.zeros(len(fed), dtype=np.int64), np.flatnonzero(of_loop)
    for _, place in rows_by_lane(work["lane"][chosen]):
        mine = chosen[place]
        feeds = fed[mine]
        known = np.maximum.accumulate(np.where(feeds != NO_FETCH, np.arange(len(mine)), -1))
        first = feeds[feeds != NO_FETCH][:1]
        batch[mine] = np.where(known >= 0, feeds[np.maximum(known, 0)], first[0] if len(first) else 0)
    return batch


class SharedSource(NamedTuple):
    """A rank of the capture, split into shared and private work.

    state: the rank without its operations. own: its private operations.
    data: the operations on its batches, with columns in place of `need` and `follows`: `fed`, the number of the fetch,
    `made`, the moment of the production, `batch`, the fetch of each, and `at_ns`, the time from the begin of that fetch
    to its own begin. None if the data are loaded at once.
    takes_batch: bool (fetches,), the fetches that take a batch; all if the data are loaded at once."""

    state: RankState
    own: Work
    data: Work
    takes_batch: np.ndarray

    @classmethod
    def of(cls, state: RankState) -> SharedSource:
        """The rank."""
        work, loop, fed = state.work, state.model.loop, state.fed
        of_data = _of_loop(work, state.model)
        batch = _batches_of(work, fed, of_data)
        takes = np.zeros(len(loop.fetches), dtype=bool)
        takes[fed[of_data & (fed != NO_FETCH)]] = True
        if takes.sum() <= max(LOADED_SHARE * len(takes), 1) and not takes.all():
            of_data, takes = np.zeros_like(of_data), np.ones_like(takes)
        data, batch = rows_of(work, of_data), batch[of_data]
        since_ns = data["start_ns"] - loop.begin_ns[loop.fetches[batch]]
        made = np.maximum(data.pop("follows") - 2 * len(loop.kind) - 1, NO_MOMENT)
        del data["need"]
        data |= {"fed": fed[of_data], "made": made, "batch": batch, "at_ns": since_ns}
        return cls(dataclasses.replace(state, work={}), rows_of(work, ~of_data), data, takes)

    @property
    def loads(self) -> bool:
        """Whether the rank loads all of its data itself."""
        return not len(self.data["op"])


def shared_out(
    states: Iterable[RankState], ranks: int, names: Sequence[str]
) -> tuple[Iterator[RankState], tuple[str, ...]]:
    """Share the work of all ranks among `ranks` ranks, which are made one by one; also the assumptions.

    names: paths of the files by file id. Raises: UsageError for more ranks than files or batches."""
    sources = list(map(SharedSource.of, states))
    total = sum(int(source.takes_batch.sum()) for source in sources)
    if ranks > total:
        raise UsageError(
            f"--ranks {ranks}: the capture has {total} batches to share out, fewer than ranks; with --weak each rank "
            "has as much to do as before"
        )
    each, by_file = total // ranks, _files_of_one_rank(sources)
    dealt = _files_in_turn(sources, ranks, names) if by_file else _batches_in_turn(sources, ranks, each)
    in_turn = "whole files go to the ranks in turn, by name" if by_file else "batches go to the ranks in turn"
    notes = [
        f"{in_turn}; each rank takes {each} of {total} batches, and computes for a step as long as before",
        "each rank opens files and reads their headers before the first step; ranks beyond the recorded ones write no "
        "checkpoints and repeat nothing else that a rank did outside of the training data",
    ]
    if total % ranks:
        notes.append(f"{total % ranks} batches are left out, so that all ranks take equally many steps")
    kept = [to != LEFT_OUT for _, to in dealt]
    parts = zip(sources, dealt, kept, strict=True)
    shared = joined([rows_of(source.data | {"key": key}, mine) for source, (key, _), mine in parts])
    to = np.concatenate([each[mine] for (_, each), mine in zip(dealt, kept, strict=True)])
    order = np.argsort(to, kind="stable")
    limits = np.searchsorted(to[order], np.arange(ranks + 1)).tolist()

    def made(rank: int) -> RankState:
        is_copy = rank >= len(sources)  # of the first rank if it is alone, else of the others in turn
        source = sources[rank if not is_copy else (1 + (rank - 1) % (len(sources) - 1) if len(sources) > 1 else 0)]
        model, event_of, shift_ns, slots = _pieced(source.state.model, source.takes_batch, each, is_copy=is_copy)
        own = _own(source, model.loop, event_of, shift_ns, is_copy=is_copy)
        data = rows_of(shared, order[limits[rank] : limits[rank + 1]])
        return _assembled(source.state, model, own, data, slots, each if by_file else None)

    return map(made, range(ranks)), tuple(notes)


def _files_of_one_rank(sources: Sequence[SharedSource]) -> bool:
    """Whether no file of the training data is read by two ranks, and a file holds more batches than a batch files."""
    users = np.zeros(len(sources[0].state.model.loop_files), dtype=np.int64)
    batches_of_files = files_of_batches = 0.0
    for source in sources:
        read = data_reads(source.data)
        pairs = distinct_rows(source.data["file_id"][read], source.data["batch"][read]).values
        if not len(pairs):
            return False
        files, batches = (np.unique(column) for column in pairs.T)
        users[files] += 1
        batches_of_files += len(pairs) / len(files)
        files_of_batches += len(pairs) / len(batches)
    return bool(users.max(initial=0) <= 1 and batches_of_files > files_of_batches)


def _batches_in_turn(sources: Sequence[SharedSource], ranks: int, each: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Deal batch k of all ranks, in the order in which they took them, as batch k div R to rank k mod R.

    For the data of each source, the number of the batch of the new rank, and int64 (n,), the new rank, LEFT_OUT for
    batches that are left over."""
    of_all = [np.flatnonzero(source.takes_batch) for source in sources]
    of_rank = np.concatenate([np.full(len(mine), rank) for rank, mine in enumerate(of_all)])
    order = np.lexsort((of_rank, np.concatenate([np.arange(len(mine)) for mine in of_all])))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    number[number >= each * ranks] = LEFT_OUT
    found = []
    for rank, (source, mine) in enumerate(zip(sources, of_all, strict=True)):
        of_fetch = np.full(len(source.takes_batch), LEFT_OUT, dtype=np.int64)
        of_fetch[mine] = number[of_rank == rank]
        of_operation = of_fetch[source.data["batch"]]
        found.append((of_operation // ranks, np.where(of_operation == LEFT_OUT, LEFT_OUT, of_operation % ranks)))
    return found


def _files_in_turn(
    sources: Sequence[SharedSource], ranks: int, names: Sequence[str]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Deal file i, in the order of names, to rank i mod R.

    For the data of each source, the share of the loop before their batch, and int64 (n,), the new rank."""
    files = sorted(
        np.unique(np.concatenate([source.data["file_id"] for source in sources])).tolist(), key=names.__getitem__
    )
    if ranks > len(files):
        raise UsageError(
            f"--ranks {ranks}: the training data are {len(files)} files, each read by one rank, and cannot be shared "
            "out among more ranks; with --weak each rank has as much to do as before"
        )
    rank_of = np.zeros(len(names), dtype=np.int64)
    rank_of[files] = np.arange(len(files)) % ranks
    return [(each.data["batch"] / len(each.takes_batch), rank_of[each.data["file_id"]]) for each in sources]


def _assembled(
    source: RankState, model: LoopModel, own: Work, data: Work, slots: np.ndarray, batches: int | None
) -> RankState:
    """Assemble a rank from its private work and the operations on its batches. slots: of `_pieced`. batches: how many
    it takes, where files were dealt: which read belongs to which batch then follows from the bytes that it reads."""
    data = rows_of(data, np.argsort(data["key"], kind="stable"))
    slot = data["key"]
    if batches is not None:
        moved = np.where(data_reads(data), data["length"], 0)
        of_batch = max(int(moved.sum()), 1) / batches
        slot = np.minimum(((np.cumsum(moved) - moved) / of_batch).astype(np.int64), batches - 1)
    loop, fed, fetch = model.loop, data["fed"], slots[slot]
    # As many batches before their own as it was.
    made = np.where((data["made"] < 0) | (fed == NO_FETCH), NO_MOMENT, data["made"] + 2 * (fetch - fed))
    reads = {name: data[name] for name in own if name in data} | {
        "need": np.where(fed == NO_FETCH, NO_EVENT, loop.fetches[fetch]),
        "follows": np.where(made < 0, NO_MOMENT, 2 * len(loop.kind) + 1 + made),
        "start_ns": loop.begin_ns[loop.fetches[fetch]] + data["at_ns"],
        "origin": moved_origin(data["origin"]),
    }
    work, of_data = joined([own, reads]), np.repeat([False, True], [len(own["op"]), len(fed)])
    order = np.argsort(work["start_ns"], kind="stable")
    work, of_data = rows_of(work, order), of_data[order]
    work = with_readers(work, fed_by(work, loop), of_data, source.readers, by_file=source.by_file)
    if model.production is None:
        # Not by the files of the source's own loop: the operations may be on files of other ranks.
        work = with_read_ahead(work, of_data & np.isin(fed_by(work, loop), slots), source.ahead, loop)
    return dataclasses.replace(source, work=work, model=model, spans=None)


def _own(source: SharedSource, new: TrainingLoop, event_of: np.ndarray, shift_ns: np.ndarray, *, is_copy: bool) -> Work:
    """The private work of a rank: before the first step, in the checkpoints and evaluations of the new loop, and after
    the loop; of a rank beyond the recorded ones what comes before the first step and a load. event_of, shift_ns: of
    `_pieced`."""
    old, work = source.state.model.loop, source.own

    def in_loop(follows: np.ndarray) -> np.ndarray:
        """Moments in a loop with other batch fetches: of the last one, if it has fewer. Of a production: none."""
        found = of_fetch(new, np.minimum(by_fetch(old, follows), 2 * len(new.fetches) - 1))
        return np.where(follows == 2 * len(old.kind), 2 * len(new.kind), found)

    if is_copy:
        fed = fed_by(work, old)
        chosen = np.flatnonzero((work["need"] == 0) | ((fed != NO_FETCH) & source.loads))
        work, fed = rows_of(work, chosen), fed[chosen]
        need = np.where(fed == NO_FETCH, work["need"], new.fetches[fed])
        return work | {"origin": moved_origin(work["origin"]), "need": need, "follows": in_loop(work["follows"])}
    event = work["need"]
    first = rows_of(work, np.flatnonzero(event == 0))
    parts = [first | {"follows": in_loop(first["follows"])}]
    own = np.flatnonzero(event > 0)
    own = own[np.argsort(event[own], kind="stable")]
    limits = np.searchsorted(event[own], np.stack((event_of, event_of + 1)))
    # A repeated step does not repeat a load that happens once.
    again = (shift_ns > 0) & (new.kind == FETCH) & source.loads
    for number in np.flatnonzero((limits[1] > limits[0]) & ~again).tolist():
        part = rows_of(work, np.sort(own[limits[0, number] : limits[1, number]]))
        start_ns, nothing = part["start_ns"] + shift_ns[number], np.zeros(len(part["op"]), dtype=np.int64)
        parts.append(part | {"start_ns": start_ns, "need": nothing + number, "follows": nothing + 2 * number})
    rest = rows_of(work, np.flatnonzero(event == NO_EVENT))
    later = rest["start_ns"] >= old.exit_ns
    start_ns = rest["start_ns"] + np.where(later, new.exit_ns - old.exit_ns, 0)
    follows = np.where(later, 2 * len(new.kind), in_loop(rest["follows"]))
    return joined([*parts, rest | {"start_ns": start_ns, "follows": follows}])


def _pieced(
    old: LoopModel, takes_batch: np.ndarray, batches: int, *, is_copy: bool
) -> tuple[LoopModel, np.ndarray, np.ndarray, np.ndarray]:
    """A model whose loop fetches `batches` batches: the steps of `old` in order, repeated from the first if needed.

    Also int64 (events,), the old event that each new one repeats, and its delay; and int64, the numbers of the batch
    fetches that take a batch of the data set, in order.

    takes_batch: bool (fetches,), the fetches of `old` that take a batch of the data set.
    is_copy: its checkpoints are no events of the new loop; their time is busy time.
    Raises: UsageError if no step of `old` fetches a batch."""
    loop = old.loop
    step = np.searchsorted(loop.step_begin_ns, loop.begin_ns, side="right") - 1
    step[0] = -1
    takes = np.zeros(len(loop.kind), dtype=bool)
    takes[loop.fetches] = takes_batch
    kept = loop.kind != CHECKPOINT if is_copy else np.ones(len(step), dtype=bool)
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
    taken = fetch_numbers(loop)[events][loop.kind[events] == FETCH]
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
    made = old.production
    if made is not None:  # with room for as many batches as before
        asked, ahead = made.follows == 2 * loop.fetches, made_ahead(made, loop)
        names = ("begin_ns", "end_ns", "delay_ns", "head_ns", "tail_ns", "alone")
        made = dataclasses.replace(made, **{name: getattr(made, name)[taken] for name in names})
        made = with_made_ahead(made, new, ahead, asked[taken])
    model = dataclasses.replace(
        old, loop=new, residual_ns=old.residual_ns[events], ready_ns=old.ready_ns[events], production=made
    )
    return model, events, shift_ns, np.flatnonzero(takes_batch[taken])[:batches]
