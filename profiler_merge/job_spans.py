"""The spans of a job: each rank's from its profile, or copies if only one rank was profiled."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.clocks.alignment import anchor_numbers, anchor_pid
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.marks import (
    RankMarks,
    RankOperations,
    batches_of,
    by_loop,
    chain_lanes,
    own_io,
    processor_times,
    sort_by_start,
    summed,
    training_loop,
)
from dxt_replay.profiler_merge.profiles.reading import read_profile
from dxt_replay.profiler_merge.profiles.span_parts import NOT_FETCHED, SpanColumns
from dxt_replay.profiler_merge.profiles.spans import profile_spans, profiled_work
from dxt_replay.profiler_merge.recorded_job import RankRows
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.row_order import step_at
from dxt_replay.traces.schema import NO_STEP, SPAN_KINDS, SPANS_SCHEMA, WRITE, codes, table_from_columns

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.unprofiled import Extended

MAX_COPIED_SPANS = 1 << 25

TOGETHER = 0.1
"""Share of a step within which all ranks end it where they train in step."""

_STEP, _INPUT_WAIT, _CHECKPOINT, _COLLECTIVE = map(SPAN_KINDS.index, ("step", "input_wait", "checkpoint", "collective"))


@dataclass(slots=True)
class JobSpans:
    """Reads the profiles of a job, one at a time, and gathers their spans on the capture's clock.

    profiles: the files of each profiled rank.
    start_ns: zero of the capture's time (CLOCK_REALTIME).
    ranks: those that the job surely has.
    known: ranks whose rows say which batch each operation belongs to.
    marked: `processor_times` of the ranks with marks.
    loops: spans of training loops from files that are not profiles, by rank; a rank's profile replaces them.
    """

    profiles: Mapping[int, Sequence[Path]]
    start_ns: int
    ranks: Sequence[int]
    loops: Mapping[int, SpanColumns]
    known: set[int] = field(default_factory=set)
    marked: dict[int, dict[str, int]] = field(default_factory=dict)
    _extended: dict[int, Extended | str] = field(default_factory=dict)
    _tables: dict[int, pa.Table] = field(default_factory=dict)
    _lent: pa.Table | None = None
    _dated: bool = False

    def __post_init__(self) -> None:
        for rank in self.loops.keys() - self.profiles.keys():
            self._tables[rank] = _spans_table(rank, self.loops[rank], -self.start_ns)

    def profile(self, rank: int) -> Profile | None:
        """The profile of a rank, None where it has none. Raises: ProfileError when it is damaged."""
        return read_profile(self.profiles[rank]) if rank in self.profiles else None

    def add_profiled(self, rows: RankRows, path: Callable[[int], str]) -> list[str]:
        """Note the spans in the profile of a rank, and extend them over its reads outside of it. Returns warnings.

        `path`: of a file_id. Ranks train together: the first rank that shows the number of steps shows it for all.
        """
        rank, profile = int(rows.ranks[0]), rows.profile
        if profile is None:
            return []
        if profile.marks is not None:
            profile = replace(profile, marks=self._with_own_io(rows, profile.marks, path))
            return self._add(rank, profile, rows.undated_offset_ns)
        from dxt_replay.profiler_merge.unprofiled import extended_spans  # most jobs have no profile

        warnings = self._add(rank, profile, rows.undated_offset_ns)
        limits = next(((each.first, each.last) for each in self._extensions().values()), None)
        found = extended_spans(self._tables[rank], rows.columns, rows.process, path, limits)
        if found is not None:
            self._extended[rank] = found
        if not isinstance(found, str | None):
            self._tables[rank] = found.spans
        return warnings

    def _with_own_io(self, rows: RankRows, marks: RankMarks, path: Callable[[int], str]) -> RankMarks:
        """The marks with the I/O of the loop's thread. Adds the columns that say to which batch each operation belongs,
        if all ranks have marks."""
        columns, rank = rows.columns, int(rows.ranks[0])
        lanes = rows.lanes.filter(pc.equal(rows.lanes["rank"], rank))
        pids = np.full(int(columns["lane"].max(initial=-1)) + 1, -1)
        numbers = lanes["lane"].to_numpy()
        pids[numbers] = lanes["pid"].fill_null(-1).to_numpy()
        threads = dict(zip(numbers.tolist(), lanes["thread"].to_pylist(), strict=True))
        threads = _anchored(columns, marks, path) | {lane: each for lane, each in threads.items() if each is not None}

        def operations_now() -> RankOperations:
            times = {name: columns[name] + self.start_ns for name in ("start_ns", "end_ns")}
            same = {name: columns[name] for name in ("lane", "op", "origin", "file_id")}
            return RankOperations(pid=pids[columns["lane"]], threads=threads, **times, **same)

        loop, operations = training_loop(marks.own), operations_now()
        chain_lanes(columns, operations.pid, by_loop(marks, loop, operations))
        operations = operations_now()
        mine = by_loop(marks, loop, operations)
        marks = replace(marks, own_io=own_io(marks, loop, operations, mine))
        found = batches_of(marks, loop, operations, mine)
        if found is not None and not set(self.ranks) - self.profiles.keys():
            moved = (found["start_ns"] != operations.start_ns).any()
            columns.update(found, **{name: found[name] - self.start_ns for name in ("start_ns", "end_ns")})
            if moved:
                sort_by_start(columns)
            self.known.add(rank)
        return marks

    def _add(self, rank: int, profile: Profile, undated_offset_ns: int = 0) -> list[str]:
        warnings = []
        if profile.marks is not None:
            self.marked[rank] = processor_times(profile.marks)
            if (text := summed(profile.marks)) is not None:
                warnings.append(text)
        if skipped := profile.skipped_fields:
            counts = ", ".join(f"{count} in {message}" for message, count in sorted(skipped.items()))
            warnings.append(
                f"rank {rank}: fields of {profile.path.name} that this release does not know were skipped ({counts}): "
                "a newer profiler wrote it, or it is damaged"
            )
        spans = profile_spans(profile)
        if profile.marks is not None and (text := profiled_work(spans)) is not None:
            warnings.append(f"rank {rank}: {text}")
        self._tables[rank] = _spans_table(rank, spans, undated_offset_ns - self.start_ns)
        self._dated = profile.epoch_start_ns is not None
        return warnings + [f"rank {rank}: {text}" for text in profile.warnings]

    def _extensions(self) -> dict[int, Extended]:
        return {rank: each for rank, each in self._extended.items() if not isinstance(each, str)}

    def extended(self) -> tuple[dict[str, int], list[str]]:
        """The object `extended` of capture.json, of the rank with the most extended steps, empty if there are none; and
        warnings about the steps that were not profiled."""
        found = self._extensions()
        if not found:
            return {}, [
                f"rank {rank}: the profile does not show all training steps, and is not extended over the others: "
                f"{reason}"
                for rank, reason in sorted(self._extended.items())[:1]
            ]
        from dxt_replay.profiler_merge.unprofiled import text_of

        rank, most = max(found.items(), key=lambda each: (each[1].steps - each[1].profiled, -each[0]))
        whose = f"rank {rank}: " if len(found) == 1 < len(self.ranks) else ""
        facts = {"steps": most.steps, "profiled": most.profiled, "first": most.first, "last": most.last}
        return facts, [whose + text_of(most)]

    def add_rest(self) -> list[str]:
        """Note the profiles of ranks without operations, and the copies for ranks without one. Returns warnings."""
        warnings = []
        for rank in sorted(self.profiles.keys() - self._tables.keys()):
            warnings += self._add(rank, read_profile(self.profiles[rank]))
        if len(self._tables) > 1 and self.marked.keys() >= self._tables.keys():
            self._tables = _with_meetings(self._tables)
        return warnings + self._copy_to_others()

    def step_of(self, rank: int, times: np.ndarray) -> np.ndarray:
        """Training step of a rank at each time (ns, capture clock), int32; NO_STEP outside of the steps.

        A rank without a profile has the steps of the only profiled rank, if that profile has a date.
        """
        spans = self._tables.get(rank)
        spans = self._lent_spans() if spans is None else spans
        if spans is None:
            return np.full(len(times), NO_STEP, dtype=np.int32)
        steps = spans.filter(pa.array(codes(spans, "kind") == SPAN_KINDS.index("step")))
        return step_at(times, *(steps[name].to_numpy() for name in ("start_ns", "end_ns", "step")))

    @property
    def own_ranks(self) -> list[int]:
        """The ranks that have a profile, or spans of their own from another file."""
        return sorted(self.profiles.keys() | self.loops.keys())

    def table(self) -> pa.Table:
        """All spans so far, as `SPANS_SCHEMA`."""
        return pa.concat_tables([SPANS_SCHEMA.empty_table(), *self._tables.values()])

    def _lent_spans(self) -> pa.Table | None:
        """The spans that stand for ranks without a profile: those of the one profiled rank, if it has a date."""
        if len(self.profiles) != 1:
            return None
        (rank,) = self.profiles
        if rank not in self._tables and self._lent is None:  # the rows of that rank come later
            profile = read_profile(self.profiles[rank])
            self._dated = profile.epoch_start_ns is not None
            self._lent = _spans_table(rank, profile_spans(profile), -self.start_ns)
        return self._tables.get(rank, self._lent) if self._dated else None

    def _copy_to_others(self) -> list[str]:
        """Copy the spans of the one profiled rank to the others: under Horovod it is usual to profile only rank 0."""
        missing = [rank for rank in self.ranks if rank not in self.profiles]
        if not missing or (template := self._lent_spans()) is None:
            return []
        (profiled,) = self.profiles
        if len(missing) * template.num_rows > MAX_COPIED_SPANS:
            return [f"only rank {profiled} was profiled; its spans are too many to copy, so the other ranks have none"]
        for rank in missing:
            column = pa.array(np.full(template.num_rows, rank, dtype=np.int32))
            self._tables[rank] = template.set_column(0, SPANS_SCHEMA.field("rank"), column)
        return [
            f"only rank {profiled} was profiled: the spans and steps of the other {len(missing)} ranks are copies of "
            "its own, and their clocks are known only within the interval that `summary` shows"
        ]


def _with_meetings(tables: dict[int, pa.Table]) -> dict[int, pa.Table]:
    """The spans, with one reconstructed `collective` a step where all ranks end their steps together: then they met in
    each, and what a rank was busy for longer than the least busy one is its wait for the others, which marks do not
    see. As they are for other ranks."""
    kinds = {rank: codes(spans, "kind") for rank, spans in tables.items()}
    if any((each == _COLLECTIVE).any() for each in kinds.values()):
        return tables
    steps, busy = {}, []
    for rank, spans in tables.items():
        start, end = (spans[name].to_numpy() for name in ("start_ns", "end_ns"))
        steps[rank] = mine = spans.filter(pa.array(kinds[rank] == _STEP))
        other = np.isin(kinds[rank], (_INPUT_WAIT, _CHECKPOINT))
        waits = Intervals.union_of(start[other], end[other])
        first, last = (mine[name].to_numpy() for name in ("start_ns", "end_ns"))
        free = np.append(np.iinfo(np.int64).min, waits.ends)[np.searchsorted(waits.ends, last, side="right")]
        busy.append((first, last, last - first - waits.covered_within(first, last), free))
    if len({len(first) for first, *_ in busy}) != 1 or not len(busy[0][0]):
        return tables
    first, last, lasted, free = (np.stack(each) for each in zip(*busy, strict=True))
    if np.median(np.ptp(last, axis=0)) > TOGETHER * np.median(last - first):
        return tables
    waited = np.maximum(lasted - lasted.min(axis=0), 1)
    made = {}
    for place, (rank, spans) in enumerate(tables.items()):
        columns = {name: steps[rank][name] for name in SPANS_SCHEMA.names}
        begin = np.maximum(last[place] - waited[place], np.minimum(free[place], last[place] - 1))
        columns["start_ns"], columns["end_ns"] = pa.array(begin), pa.array(last[place])
        for name, value in (("kind", "collective"), ("name", "ranks meet"), ("origin", "reconstructed")):
            columns[name] = pa.array([value] * len(begin)).cast(SPANS_SCHEMA.field(name).type)
        made[rank] = pa.concat_tables([spans, pa.table(columns, schema=SPANS_SCHEMA)]).sort_by("start_ns")
    return made


def _anchored(columns: Mapping[str, np.ndarray], marks: RankMarks, path: Callable[[int], str]) -> dict[int, int]:
    """The threads of lanes by the anchors that they wrote: a trace shows the lane of these writes, marks the thread."""
    own, found = marks.own, dict[int, int]()
    thread_of = dict(zip(own.anchors[:, 0].tolist(), own.anchors[:, 3].tolist(), strict=True))
    for file_id in np.unique(columns["file_id"][columns["op"] == WRITE]).tolist():
        name = os.fsencode(path(file_id))
        if anchor_pid(name) == own.pid:
            mine = (columns["file_id"] == file_id) & (columns["op"] == WRITE)
            numbers = anchor_numbers(name, columns["offset"][mine], columns["length"][mine])
            for number, lane in zip(numbers.tolist(), columns["lane"][mine].tolist(), strict=True):
                if number in thread_of:
                    found[lane] = thread_of[number]
    return found


def _spans_table(rank: int, spans: SpanColumns, shift_ns: int) -> pa.Table:
    columns = {name: spans[name] for name in ("thread", "kind", "name", "step")}
    columns |= {"start_ns": spans.start_ns + shift_ns, "end_ns": spans.end_ns + shift_ns}
    fetched = np.ma.masked_array(spans.fetched_ns + shift_ns, spans.fetched_ns == NOT_FETCHED)
    columns |= {"rank": np.full(len(spans), rank, dtype=np.int32), "fetched_ns": fetched}
    return table_from_columns(columns, SPANS_SCHEMA)
