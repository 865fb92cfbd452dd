"""A capture, changed: its ranks are read one by one, changed, scheduled together, and written as a capture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dxt_replay.replay.plan.chosen_layers import choose_layers
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.plan.survey import spans_by_rank
from dxt_replay.replay.transform.changed_capture import Making, RankRows, Tables, write_changed
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.loop_schedule import scheduled
from dxt_replay.replay.transform.rank_changes import Facts, changed
from dxt_replay.replay.transform.rank_work import RankWork
from dxt_replay.replay.transform.source_facts import assumptions_of, changed_files, changed_hdf5, facts_of
from dxt_replay.replay.transform.source_ranks import RankState, as_recorded, as_scheduled, source_rank
from dxt_replay.replay.transform.strong_scaling import RankShare, shared_out
from dxt_replay.replay.transform.weak_scaling import Copies
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import READ
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.writer import check_capture_output
from dxt_replay.traces.units import format_count

MAX_OPERATIONS = 10_000_000
"""Operations of a capture up to which it is changed: all ranks are scheduled together, in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a capture does, of what a replay issues. elapsed_ns: from its first to its last moment."""

    ranks: int
    operations: int
    reads: int
    bytes_read: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The capture that `transform` wrote.

    path: where. changes: by name, in the order in which they were applied. assumptions: sentences.
    before, after: what the source does, and what the result does. same: whether nothing changed.
    """

    path: Path
    changes: Mapping[str, Any]
    assumptions: tuple[str, ...]
    before: Totals
    after: Totals
    same: bool

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay transform --json` prints."""
        return {**dataclasses.asdict(self), "path": str(self.path), "assumptions": list(self.assumptions)}


@dataclass(slots=True)
class _Sums:
    """Totals while they are added up."""

    operations: int = 0
    reads: int = 0
    bytes_read: int = 0

    def add(self, work: RankWork, times: int = 1) -> None:
        reads = work.op == READ
        self.operations += len(work) * times
        self.reads += int(reads.sum()) * times
        self.bytes_read += int(work.length[reads].sum()) * times

    def totals(self, ranks: int, elapsed_ns: int) -> Totals:
        return Totals(
            ranks=ranks,
            operations=self.operations,
            reads=self.reads,
            bytes_read=self.bytes_read,
            elapsed_ns=elapsed_ns,
        )


def transform_capture(capture: Capture, changes: Changes, output: Path, *, force: bool = False) -> Transformed:
    """Write `capture` with these changes to `output`.

    Raises: UsageError where a change has no meaning for the capture; CaptureError for one that is damaged; TargetError
    for `output`.
    """
    check_capture_output(output, force=force)
    if capture.operation_count() > MAX_OPERATIONS:
        raise UsageError(
            f"{capture.named} has {format_count(capture.operation_count())} operations, and captures of up to "
            f"{format_count(MAX_OPERATIONS)} are changed: choose a part of it with dxt_replay.part"
        )
    facts = facts_of(capture, choose_layers(capture), changes)
    begin_ns, end_ns = capture.time_span_ns
    sources = _sources(capture, facts, begin_ns)
    before = _Sums()
    for state in sources.values():
        before.add(state.work)
    found, notes, same = _changed(sources, changes, facts)
    copies = Copies.of(capture, changes.ranks) if changes.ranks is not None and changes.weak else None
    if changes.ranks not in (None, len(capture.ranks)) and copies is None:
        found, dealt = _shared_out(found, changes.ranks, capture)
        same, notes = False, (*notes, *dealt)
    if same:
        rows = {rank: as_recorded(capture, rank, state) for rank, state in found.items()}
        elapsed_ns = end_ns - begin_ns
    else:
        rows, ended_ns = _scheduled(found, changes, begin_ns)
        elapsed_ns = ended_ns - begin_ns
    making = Making(
        changes=changes.as_json(),
        assumptions=() if same and copies is None else (*assumptions_of(changes, facts, copies is not None), *notes),
        known=not same,
        elapsed_ns=elapsed_ns,
    )
    tables = Tables(files=capture.files, hdf5=capture.hdf5)
    if not same:
        works = [state.work for state in found.values()]
        tables = Tables(files=changed_files(capture, works), hdf5=changed_hdf5(capture, changes, facts))
    after, ranks = _Sums(), dict.fromkeys(found, 1)
    if copies is not None:
        ranks = {rank: list(copies.source_of.values()).count(rank) for rank in found}
        tables = Tables(files=copies.files_table(tables.files), hdf5=copies.hdf5_table(tables.hdf5))
    for rank, state in found.items():
        after.add(state.work, ranks[rank])
    write_changed(capture, _copied(rows, copies), tables, making, output, force=force)
    return Transformed(
        path=output,
        changes=making.changes,
        assumptions=tuple(making.assumptions),
        before=before.totals(len(capture.ranks), end_ns - begin_ns),
        after=after.totals(sum(ranks.values()), elapsed_ns),
        same=same and copies is None,
    )


def _sources(capture: Capture, facts: Facts, begin_ns: int) -> dict[int, RankState]:
    """All ranks, with the model of each. Raises: CaptureError where a rank has no training steps."""
    spans = spans_by_rank(capture.spans, capture.ranks)
    return {rank: source_rank(capture, rank, facts.layers, spans[rank], begin_ns) for rank in capture.ranks}


def _changed(
    sources: Mapping[int, RankState], changes: Changes, facts: Facts
) -> tuple[dict[int, RankState], tuple[str, ...], bool]:
    """The ranks after the changes to each, what was assumed, and whether nothing changed."""
    found, notes, same = {}, {}, changes.compute_speed == 1.0
    for rank, state in sources.items():
        after = changed(state.work, state.loop, state.pipeline, changes, facts)
        same &= after.is_same
        notes.update(dict.fromkeys(after.assumptions))
        spans = state.spans if changes.batch_times in (None, 1) else None
        found[rank] = dataclasses.replace(
            state, spans=spans, work=after.work, loop=after.loop, readers=after.readers, ahead=after.ahead
        )
    return found, tuple(notes), same


def _shared_out(
    found: Mapping[int, RankState], ranks: int, capture: Capture
) -> tuple[dict[int, RankState], tuple[str, ...]]:
    """The ranks among which the work is shared out anew, and what was assumed."""
    names = [field.name for field in dataclasses.fields(RankShare)]
    shares = {rank: RankShare(**{name: getattr(state, name) for name in names}) for rank, state in found.items()}
    dealt, notes = shared_out(shares, ranks, capture.paths())
    states = {
        rank: RankState(spans=None, **{name: getattr(share, name) for name in names}) for rank, share in dealt.items()
    }
    return states, notes


def _scheduled(found: Mapping[int, RankState], changes: Changes, begin_ns: int) -> tuple[dict[int, RankRows], int]:
    """The rows of all ranks at their new times, and when the last of them ends."""
    pacing = Pacing(pace=Pace.STEPS, compute_speed=changes.compute_speed)
    works, loops = ({rank: getattr(state, name) for rank, state in found.items()} for name in ("work", "loop"))
    times = scheduled(works, loops, pacing, begin_ns)
    rows = {rank: as_scheduled(rank, state, times[rank]) for rank, state in found.items()}
    ends = [int((times[rank].start_ns + state.work.duration_ns).max(initial=0)) for rank, state in found.items()]
    return rows, max(*ends, *(each.loop.exit_ns for each in times.values()))


def _copied(rows: Mapping[int, RankRows], copies: Copies | None) -> Iterator[RankRows]:
    """The ranks that are written: these, or copies of them."""
    if copies is None:
        yield from rows.values()
        return
    for rank, source in copies.source_of.items():
        of_source = rows[source]

        def operations(rank: int = rank, of_source: RankRows = of_source) -> Iterator[Any]:
            for table in of_source.operations():
                yield copies.operations(rank, table)

        yield RankRows(rank=rank, operations=operations, spans=copies.spans(rank, of_source.spans))
