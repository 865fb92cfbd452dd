"""Shares the recorded work among another number of ranks, by batches or by whole files.

If each file was read by one rank as a stream, whole files go to the ranks in turn, by name: file i to rank i mod R, as
in DLIO. Otherwise the batches of all ranks, in the order in which the loops took them, go to the ranks in turn. The
private work of a rank is not shared: before the first step every rank opens shared files and reads their headers. If
data are not read batch by batch, every rank loads all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.loop import CHECKPOINT, FETCH, NO_FETCH, NO_MOMENT, TrainingLoop
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.transform.rank_state import (
    TRANSFORMED,
    RankState,
    Work,
    by_fetch,
    data_reads,
    fed_by,
    fetch_numbers,
    joined,
    made_ahead,
    of_fetch,
    rows_of,
    with_made_ahead,
)
from dxt_replay.replay.transform.readers import batches_of, with_read_ahead, with_readers
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import RECONSTRUCTED

LOADED_SHARE = 0.1
"""Share of the fetches that must read anything, and more than one: else each rank loads the data at once."""

LEFT_OUT = -1
"""The new rank of batches that are left over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedSource:
    """A rank of the capture, split into shared and private work.

    state: the rank without its operations.
    own: its private operations.
    data: the operations on its batches, in place of `need` and `follows` with columns `fed`, the number of the fetch,
    `made`, the moment of the production, `batch`, the fetch of each, and `at_ns`, the time from the begin of that fetch
    to its own begin.
    files: int64, ids of the files of `data`, ascending; none if the data are loaded at once.
    read_files: int64, those that are read.
    parts: how many pairs of a file and a batch are read. read_batches: how many batches.
    takes_batch: bool (fetches,), the fetches that take a batch; all if the data are loaded at once.
    """

    state: RankState
    own: Work
    data: Work
    files: np.ndarray
    read_files: np.ndarray
    parts: int
    read_batches: int
    takes_batch: np.ndarray

    @classmethod
    def of(cls, state: RankState) -> SharedSource:
        """The rank."""
        work, loop, fed = state.work, state.model.loop, state.fed
        of_data = state.model.loop_files[work["file_id"]] & ((work["need"] == NO_EVENT) | (fed != NO_FETCH))
        of_data &= work["start_ns"] < loop.exit_ns
        batch = batches_of(work, fed, of_data)
        takes = np.zeros(len(loop.fetches), dtype=bool)
        takes[fed[of_data & (fed != NO_FETCH)]] = True
        if takes.sum() <= max(LOADED_SHARE * len(takes), 1) and not takes.all():
            of_data, takes = np.zeros_like(of_data), np.ones_like(takes)
        data, batch = rows_of(work, of_data), batch[of_data]
        since_ns = data["start_ns"] - loop.begin_ns[loop.fetches[batch]]
        made = np.maximum(data.pop("follows") - 2 * len(loop.kind) - 1, NO_MOMENT)
        data = data | {"fed": fed[of_data], "made": made, "batch": batch, "at_ns": since_ns}
        del data["need"]
        read = data_reads(data)
        pairs = distinct_rows(data["file_id"][read], batch[read]).values
        return cls(
            state=dataclasses.replace(state, work={}),
            own=rows_of(work, ~of_data),
            data=data,
            files=np.unique(data["file_id"]),
            read_files=np.unique(pairs[:, 0]),
            parts=len(pairs),
            read_batches=len(np.unique(pairs[:, 1])),
            takes_batch=takes,
        )

    @property
    def loads(self) -> bool:
        """Whether the rank loads all of its data itself."""
        return not len(self.data["op"])

    @property
    def batches(self) -> int:
        return int(self.takes_batch.sum())


def shared_out(
    sources: Sequence[SharedSource], ranks: int, names: Sequence[str]
) -> tuple[Iterator[RankState], tuple[str, ...]]:
    """Share the work of all ranks among `ranks` ranks, which are made one by one; also the assumptions.

    names: paths of the files by file id.
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
    dealt = _files_in_turn(sources, ranks, names) if by_file else _batches_in_turn(sources, ranks, each)
    in_turn = "whole files go to the ranks in turn, by name" if by_file else "batches go to the ranks in turn"
    notes = [
        f"{in_turn}; each rank takes {each} of {total} batches, and computes for a step as long as before",
        "each rank opens files and reads their headers before the first step; ranks beyond the recorded ones write no "
        "checkpoints and repeat nothing else that a rank did outside of the training data",
    ]
    if total % ranks:
        notes.append(f"{total % ranks} batches are left out, so that all ranks take equally many steps")

    found = [(rows_of(data, chosen := np.flatnonzero(to != LEFT_OUT)), to[chosen]) for data, to in dealt]
    shared, to = joined([data for data, _ in found]), np.concatenate([each for _, each in found])
    order = np.argsort(to, kind="stable")
    limits = np.searchsorted(to[order], np.arange(ranks + 1)).tolist()

    def made(rank: int) -> RankState:
        source, is_copy = _template(sources, rank), rank >= len(sources)
        model, event_of, shift_ns, slots = _pieced(
            source.state.model, source.takes_batch, each, checkpoints=not is_copy
        )
        own = _own_of_copy(source, model.loop) if is_copy else _own(source, model.loop, event_of, shift_ns)
        data = rows_of(shared, order[limits[rank] : limits[rank + 1]])
        return _assembled(source, model, own, data, slots, each if by_file else None)

    return map(made, range(ranks)), tuple(notes)


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


def _batches_in_turn(sources: Sequence[SharedSource], ranks: int, each: int) -> Iterator[tuple[Work, np.ndarray]]:
    """Deal batch k of all ranks, in the order in which they took them, as batch k div R to rank k mod R.

    Yields the operations of each source with `key`, the number of the batch of the new rank, and int64 (n,), the new
    rank, LEFT_OUT for batches that are left over."""
    of_all = [np.flatnonzero(source.takes_batch) for source in sources]
    of_rank = np.concatenate([np.full(len(mine), rank) for rank, mine in enumerate(of_all)])
    order = np.lexsort((of_rank, np.concatenate([np.arange(len(mine)) for mine in of_all])))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    number[number >= each * ranks] = LEFT_OUT
    first = 0
    for source, mine in zip(sources, of_all, strict=True):
        of_fetch = np.full(len(source.takes_batch), LEFT_OUT, dtype=np.int64)
        of_fetch[mine] = number[first : first + len(mine)]
        first += len(mine)
        of_operation = of_fetch[source.data["batch"]]
        to = np.where(of_operation == LEFT_OUT, LEFT_OUT, of_operation % ranks)
        yield source.data | {"key": of_operation // ranks}, to


def _files_in_turn(
    sources: Sequence[SharedSource], ranks: int, names: Sequence[str]
) -> Iterator[tuple[Work, np.ndarray]]:
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
        data = source.data
        yield data | {"key": data["batch"] / len(source.takes_batch)}, rank_of[data["file_id"]]


def _assembled(
    source: SharedSource, model: LoopModel, own: Work, data: Work, slots: np.ndarray, batches: int | None
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
    reads = {name: values for name, values in _marked(data).items() if name in own} | {
        "need": np.where(fed == NO_FETCH, NO_EVENT, loop.fetches[fetch]),
        "follows": np.where(made < 0, NO_MOMENT, 2 * len(loop.kind) + 1 + made),
        "start_ns": loop.begin_ns[loop.fetches[fetch]] + data["at_ns"],
    }
    work, of_data = joined([own, reads]), np.repeat([False, True], [len(own["op"]), len(fed)])
    order = np.argsort(work["start_ns"], kind="stable")
    work, of_data = rows_of(work, order), of_data[order]
    state = source.state
    work = with_readers(work, fed_by(work, loop), of_data, state.readers, state.deal)
    if model.production is None:
        # Not by the files of the source's own loop: the operations may be on files of other ranks.
        work = with_read_ahead(work, of_data & np.isin(fed_by(work, loop), slots), state.ahead, loop)
    return dataclasses.replace(state, work=work, model=model, spans=None)


def _own_of_copy(source: SharedSource, new: TrainingLoop) -> Work:
    """The private work of a rank beyond the recorded ones: what comes before the first step."""
    old, work = source.state.model.loop, source.own
    fed = fed_by(work, old)
    chosen = np.flatnonzero((work["need"] == 0) | ((fed != NO_FETCH) & source.loads))
    work, fed = rows_of(work, chosen), fed[chosen]
    need = np.where(fed == NO_FETCH, work["need"], new.fetches[fed])
    return _marked(work) | {"need": need, "follows": _in_loop(work["follows"], old, new)}


def _own(source: SharedSource, new: TrainingLoop, event_of: np.ndarray, shift_ns: np.ndarray) -> Work:
    """The private work of a rank: before the first step, in the checkpoints and evaluations of the new loop, and after
    the loop. event_of, shift_ns: of `_pieced`."""
    old, work = source.state.model.loop, source.own
    event = work["need"]
    first = rows_of(work, np.flatnonzero(event == 0))
    parts = [first | {"follows": _in_loop(first["follows"], old, new)}]
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
    follows = np.where(later, 2 * len(new.kind), _in_loop(rest["follows"], old, new))
    return joined([*parts, rest | {"start_ns": start_ns, "follows": follows}])


def _in_loop(follows: np.ndarray, old: TrainingLoop, new: TrainingLoop) -> np.ndarray:
    """Moments in a loop with other batch fetches: of the last one, if it has fewer. Those of a production are none."""
    found = of_fetch(new, np.minimum(by_fetch(old, follows), 2 * len(new.fetches) - 1))
    return np.where(follows == 2 * len(old.kind), 2 * len(new.kind), found)


def _marked(work: Work) -> Work:
    """Operations of a rank that the capture does not have."""
    origin = np.where(work["origin"] == RECONSTRUCTED, work["origin"], np.maximum(work["origin"], TRANSFORMED))
    return work | {"origin": origin.astype(work["origin"].dtype)}


def _pieced(
    old: LoopModel, takes_batch: np.ndarray, batches: int, *, checkpoints: bool
) -> tuple[LoopModel, np.ndarray, np.ndarray, np.ndarray]:
    """A model whose loop fetches `batches` batches: the steps of `old` in order, repeated from the first if needed.

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
