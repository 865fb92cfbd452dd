"""A part of a capture, read as a capture: a filter of its rows, which reads no row groups outside of the window."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.part import INTERFACES, Part
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.schema import APIS, NO_STEP, OPS, SPAN_KINDS, USAGE_SCHEMA, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count, format_duration

Window = tuple[int, int]
"""[begin, end) in ns of the capture's time."""

_EVER: Window = (-(1 << 62), 1 << 62)
_STEP, _FETCH = SPAN_KINDS.index("step"), SPAN_KINDS.index("input_wait")
_MOST_NAMES = 5
"""Paths that an error lists as examples."""


OPERATIONS_PER_FILE = 8
"""Operations per file that a piece has at least, since sums by file are as long as the files table."""

RANK_OPERATIONS = 1 << 12
"""Cost of a rank in operations: its entry in the sums, and its row groups."""


def part_of(capture: Capture, part: Part) -> Capture:
    """The part as a capture; `capture` itself when the part is everything. A part of a part is a part, too.

    Raises: UsageError for ranks or steps that the capture does not have, and when nothing is left. The message lists
    the values that exist.
    """
    if part.is_everything:
        return capture
    files = _files(capture, part)
    ranks = capture.ranks
    if part.ranks is not None:
        absent = sorted(set(part.ranks) - set(ranks))
        if absent:
            raise UsageError(f"{capture.named} has no rank {absent[0]}: it has {_shown(ranks)}")
        ranks = tuple(rank for rank in ranks if rank in set(part.ranks))
    found = PartCapture(capture, part, ranks, _windows(capture, part, ranks), files)
    by_operation = part.paths or part.exclude or part.operations or part.interfaces
    if any(map(found.operation_count, ranks)) or (not by_operation and found.spans.num_rows):
        return found  # if no condition concerns operations, spans are enough
    if not part.operations and not part.interfaces:
        raise UsageError(f"{capture.named} has no operation{'' if by_operation else ' and no span'} in that part")
    rest = part_of(capture, dataclasses.replace(part, operations=(), interfaces=()))
    counted = pa.concat_tables([USAGE_SCHEMA.empty_table(), *rest.usages()])
    operations = [OPS[code] for code in np.unique(codes(counted, "op")).tolist()]
    apis = {APIS[code] for code in np.unique(codes(counted, "api")).tolist()}
    there = [name for name, members in INTERFACES.items() if apis & set(members)]
    asked = [*(f"op={name}" for name in part.operations), *(f"api={name}" for name in part.interfaces)]
    raise UsageError(
        f"{capture.named} has no operation with {' '.join(asked)}: there are {', '.join(operations)} "
        f"of the interfaces {', '.join(there)}"
    )


def part_replayed(source: Capture, replay: Capture) -> Capture:
    """The part of `source` that `replay` replays, from the replay's capture.json.

    All of `source` if that is itself a replay of the same part: its times begin at the run's start.
    Raises: CaptureError when the record is damaged; UsageError when `source` lacks the part.
    """
    records = [replay_record(capture.info, capture.path / "capture.json") for capture in (replay, source)]
    chosen, of_source = (None if record is None else record.selection for record in records)
    return source if chosen == of_source else part_of(source, Part.from_json(chosen))


def only_ranks(capture: Capture, ranks: Sequence[int]) -> Capture:
    """The capture restricted to these ranks, for sums that are then merged with those of the others."""
    chosen = set(ranks)
    mine = tuple(rank for rank in capture.ranks if rank in chosen)
    return PartCapture(capture, Part(ranks=mine), mine, None, None)


class PartCapture(Capture):
    """A part of a capture, made by `part_of`. Files keep their numbers; `info` lists the ranks of the part.

    `windows`: by rank, None for all time. `files`: bool by file_id, None for all.
    """

    def __init__(
        self,
        inner: Capture,
        part: Part,
        ranks: Sequence[int],
        windows: Mapping[int, Window] | None,
        files: np.ndarray | None,
    ) -> None:
        info = dataclasses.replace(inner.info, ranks=tuple(ranks))
        super().__init__(inner.path, info, inner.files, inner.index.only(ranks), inner.named)
        self._inner = inner
        self._part = part
        self._windows = windows
        self._chosen_files = files
        masks = {"file_id": files, "op": part.op_mask, "api": part.api_mask}
        self._row_masks = {name: mask for name, mask in masks.items() if mask is not None and not mask.all()}

    def __reduce__(self) -> tuple[Any, ...]:
        """As of `Capture`, with the choice of the part."""
        return PartCapture, (self._inner, self._part, self.ranks, self._windows, self._chosen_files)

    @property
    def whole(self) -> Capture:
        return self._inner.whole

    @property
    def part(self) -> Part:
        """The part that was chosen; for a part of a part, the last choice."""
        return self._part

    @cached_property
    def file_mask(self) -> np.ndarray:
        inner = self._inner.file_mask
        return inner if self._chosen_files is None else inner & self._chosen_files

    @cached_property
    def api_mask(self) -> np.ndarray:
        mask: np.ndarray = self._inner.api_mask & self._part.api_mask
        return mask

    @property
    def takes_whole_files(self) -> bool:
        return self._part.takes_whole_files and self._inner.takes_whole_files

    @cached_property
    def _own_ranks(self) -> frozenset[int]:
        return frozenset(self.ranks)

    def operation_count(self, rank: int | None = None) -> int:
        """Operations in the part, of one rank or of all. Reads rows where there is a window."""
        if rank is not None and rank not in self._own_ranks:
            return 0
        if self._windows is None and not self._row_masks:
            return sum(self._inner.operation_count(each) for each in (self.ranks if rank is None else (rank,)))
        counted = self.usages() if rank is None else (self.usage(rank),)
        return sum(pc.sum(used["operations"]).as_py() or 0 for used in counted)

    def rank_operations(
        self,
        ranks: Iterable[int] | int | None = None,
        columns: Sequence[str] | None = None,
        starts_ns: Window | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `Capture.rank_operations`; row groups outside of the window are not read."""
        asked = self.ranks if ranks is None else (ranks,) if isinstance(ranks, int) else tuple(ranks)
        wanted = [rank for rank in asked if rank in self._own_ranks]
        if self._windows is None and not self._row_masks:
            yield from self._inner.rank_operations(wanted, columns, starts_ns)
            return
        needed = {*self._row_masks, *(() if self._windows is None else ("start_ns",))}
        if self._fetches and columns is not None and "follows_end" in columns:
            needed.add("follows")
        read = None if columns is None else [*columns, *sorted(needed - set(columns))]
        windows: Mapping[int, Window | None] = self._windows or dict.fromkeys(wanted)
        for window, same in groupby(wanted, windows.__getitem__):  # most often all ranks have the same
            starts = starts_ns
            if window is not None and starts_ns is not None:
                starts = max(window[0], starts_ns[0]), min(window[1], starts_ns[1])
            elif window is not None:
                starts = window
            for rank, batch in self._inner.rank_operations(tuple(same), read, starts):
                if window is not None and starts is not None:
                    first, last = np.searchsorted(batch.column("start_ns").to_numpy(), starts)
                    batch = batch.slice(first, max(last - first, 0))
                batch = _masked(batch, self._row_masks)
                if self._fetches:
                    batch = _renumbered(batch, self._fetches[rank])
                if len(batch):
                    yield rank, batch if columns is None else batch.select(list(columns))

    @cached_property
    def _fetches(self) -> dict[int, tuple[int, int]]:
        """By rank, the batch fetches of the inner capture in the window: (first, number).

        Empty where all are in it, or where the dependencies are not known."""
        if self._windows is None or self.info.dependencies != "known":
            return {}
        spans = self._inner.spans
        spans = spans.filter(pa.array(codes(spans, "kind") == _FETCH))
        spans_rank = spans["rank"].to_numpy()
        found = {}
        for rank in self.ranks:
            begin, end = np.searchsorted(spans_rank, (rank, rank + 1)).tolist()
            inside = np.flatnonzero(_cut(spans.slice(begin, end - begin), self._windows)[2])
            found[rank] = (int(inside[0]), len(inside)) if len(inside) else (0, 0)
        return found

    def _usage_of(self, ranks: Sequence[int]) -> pa.Table:
        if self._windows is not None:
            return self._counted(ranks)  # nobody stores the counts of a window
        return _masked(self._inner._usage_of(ranks), self._row_masks)

    @cached_property
    def spans(self) -> pa.Table:
        """Spans of the ranks, cut at the ends of their windows; a cut step has no number (NO_STEP)."""
        spans = self._inner.spans
        if self.ranks != self._inner.ranks:
            spans = spans.filter(pc.is_in(spans["rank"], pa.array(self.ranks, type=pa.int32())))
        if self._windows is None or not spans.num_rows:
            return spans
        start, end, step = (spans[name].to_numpy() for name in ("start_ns", "end_ns", "step"))
        begin, until, inside = _cut(spans, self._windows)
        piece = (codes(spans, "kind") == _STEP) & ((begin > start) | (until < end))
        cut = {"start_ns": begin, "end_ns": until, "step": np.where(piece, np.int32(NO_STEP), step)}
        columns = [cut.get(name, spans[name]) for name in spans.column_names]
        return pa.table(columns, schema=spans.schema).filter(pa.array(inside))

    @cached_property
    def lanes(self) -> pa.Table:
        """As `Capture.lanes`, of the ranks of the part; a lane may have no operation in it."""
        lanes = self._inner.lanes
        return lanes.filter(pc.is_in(lanes["rank"], pa.array(self.ranks, type=pa.int32())))

    @cached_property
    def time_span_ns(self) -> Window:
        """From the window's begin, which becomes the start of a replay, to the end of the last operation or span.

        Leaving out files or operations does not shorten it.
        """
        if self._windows is None:
            as_inner = self.ranks == self._inner.ranks or isinstance(self._inner, PartCapture)
            return self._inner.time_span_ns if as_inner else super().time_span_ns
        first = min(window[0] for window in self._windows.values() if window[0] < window[1])
        last = [int(batch.column("end_ns").to_numpy().max()) for batch in self.operations(columns=["end_ns"])]
        if self.spans.num_rows:
            last.append(int(self.spans["end_ns"].to_numpy().max()))
        first = max(first, self._inner.time_span_ns[0])
        return first, max(last, default=first)


def _cut(spans: pa.Table, windows: Mapping[int, Window]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begin and end of each span within its rank's window, and a mask of the spans that overlap it."""
    bounds = np.array([windows[rank] for rank in spans["rank"].to_pylist()], dtype=np.int64).reshape(-1, 2)
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    begin, until = np.maximum(start, bounds[:, 0]), np.minimum(end, bounds[:, 1])
    instant = (start == end) & (bounds[:, 0] <= start) & (start < bounds[:, 1])
    return begin, until, (begin < until) | instant


def _renumbered(batch: pa.RecordBatch, fetches: tuple[int, int]) -> pa.RecordBatch:
    """The batch with batch fetches counted from the first one in the window; those outside are null."""
    first, count = fetches
    for name, others in (("feeds", ()), ("follows", ("follows_end",))):
        if name not in batch.schema.names:
            continue
        number = pc.subtract(batch.column(name), pa.scalar(first, pa.int32()))
        inside = pc.and_(pc.greater_equal(number, 0), pc.less(number, count))
        for column in (name, *set(others).intersection(batch.schema.names)):
            place = batch.schema.get_field_index(column)
            values = number if column == name else batch.column(column)
            kept = pc.if_else(inside, values, pa.scalar(None, values.type))
            batch = batch.set_column(place, batch.schema.field(place), kept)
    return batch


def _masked(rows: pa.Table | pa.RecordBatch, masks: Mapping[str, np.ndarray]) -> pa.Table | pa.RecordBatch:
    kept = np.ones(len(rows), dtype=bool)
    for name, mask in masks.items():
        kept &= mask[rows.column(name).to_numpy() if name == "file_id" else codes(rows, name)]
    return rows if kept.all() else rows.filter(pa.array(kept))


def _files(capture: Capture, part: Part) -> np.ndarray | None:
    """Mask of the files in the part. Raises: UsageError if there are none."""
    if not part.paths and not part.exclude:
        return None
    paths = capture.paths()
    chosen = part.file_mask(paths)
    if not (chosen & capture.file_mask).any():
        there = np.flatnonzero(capture.file_mask)
        options = [f"path={text!r}" for text in part.paths] + [f"exclude={text!r}" for text in part.exclude]
        names = ", ".join(repr(paths[file_id]) for file_id in there[:_MOST_NAMES].tolist())
        more = " ..." if len(there) > _MOST_NAMES else ""
        raise UsageError(
            f"{capture.named} has no file left with {' '.join(options)}, of {format_count(len(there))}: {names}{more}; "
            "a pattern has to match a whole path, and * matches / too: for example '*.h5'"
        )
    return chosen


def _shown(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"only rank {ranks[0]}"
    if ranks and tuple(ranks) == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    names = ", ".join(map(str, ranks[:_MOST_NAMES]))
    return f"{len(ranks)} ranks: {names}{' ...' if len(ranks) > _MOST_NAMES else ''}"


def _windows(capture: Capture, part: Part, ranks: Sequence[int]) -> dict[int, Window] | None:
    """By rank; None for all time. A rank without any of the steps has an empty window; else its window is from the
    begin of the first chosen step to the end of the last.

    Raises: UsageError for a window without anything.
    """
    if part.steps is None and not part.is_window:
        return None
    if part.steps is None:
        begin, end = capture.time_span_ns
        window = (
            _EVER[0] if part.from_ns is None else part.from_ns,
            _EVER[1] if part.until_ns is None else part.until_ns,
        )
        if window[0] > end or window[1] <= begin:
            raise UsageError(
                f"{capture.named} has nothing in that window: it lasts from {format_duration(begin)} to "
                f"{format_duration(end)}"
            )
        return dict.fromkeys(ranks, window)
    spans = capture.spans
    step, rank, start, end = (spans[name].to_numpy() for name in ("step", "rank", "start_ns", "end_ns"))
    is_step = (codes(spans, "kind") == _STEP) & (step >= 0)
    chosen = is_step & (step >= part.steps[0]) & (step <= part.steps[1])
    windows = {}
    for number in ranks:
        mine = slice(*np.searchsorted(rank, (number, number + 1)).tolist())
        here = chosen[mine]
        windows[number] = (int(start[mine][here].min()), int(end[mine][here].max())) if here.any() else (0, 0)
    if any(begin < until for begin, until in windows.values()):
        return windows
    known = step[is_step & np.isin(rank, ranks)]
    has = f"it has steps {known.min()} to {known.max()}" if len(known) else "it has no numbered steps"
    raise UsageError(f"{capture.named} has no step of --part steps={part.steps[0]}-{part.steps[1]}: {has}")


def work_of(capture: Capture) -> int:
    """Amount of work of a pass over a capture, in operations."""
    return capture.stored_rows() + RANK_OPERATIONS * len(capture.index.ranks)


def rank_pieces(capture: Capture, operations: int) -> list[tuple[int, ...]]:
    """The ranks of a capture in groups of about `operations` each, or of one larger rank; at least one piece.

    The cut follows from the capture alone, and so do sums over the pieces.
    """
    return pieces_of_both((capture,), operations)


def pieces_of_both(captures: Sequence[Capture], operations: int) -> list[tuple[int, ...]]:
    """As `rank_pieces`, for a pass over several captures in step: the pieces hold the ranks of all of them."""
    ranks = sorted({rank for capture in captures for rank in capture.ranks})
    rows = np.sum([capture.index.row_counts(ranks) for capture in captures], axis=0)
    work = rows + RANK_OPERATIONS * (rows > 0)
    files = max(capture.files.num_rows for capture in captures)
    size = max(operations, OPERATIONS_PER_FILE * files if operations > 1 else 1)
    count = int(min(len(ranks), max(work.sum() // size, 1))) if len(ranks) else 1
    if count == 1:
        return [tuple(ranks)]
    # A rank belongs to the piece in which its middle lies.
    place = (2 * np.cumsum(work) - work) * count // max(2 * int(work.sum()), 1)
    begins = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), len(ranks)]
    return [tuple(ranks[begin:end]) for begin, end in pairwise(begins)]
