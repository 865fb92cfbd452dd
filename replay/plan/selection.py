"""What part of a capture is replayed: ranks, and a window of time or of steps. Pure.

A selection makes a `SelectedCapture`, which is a capture to everything that reads one: survey, plan, staging, compute
and comparison see the part and nothing else, and need not know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traces.errors import CaptureError, UsageError
from traces.schema import SPAN_KINDS, codes
from traces.store.reader import Capture
from traces.units import format_duration, parse_duration_ns

Window = tuple[int, int]
"""[begin, end) in ns of the capture's time."""

_EARLIEST, _LATEST = -(1 << 62), 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`ranks`: None for all. A window: from `from_ns` until before `until_ns`, or `steps`, the first and the last of
    those to be replayed, which each rank has at times of its own. An operation belongs to the window in which it
    starts; spans are cut at its ends.

    Raises: UsageError for a window that ends before it begins, or is given in both ways.
    """

    ranks: tuple[int, ...] | None = None
    from_ns: int | None = None
    until_ns: int | None = None
    steps: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.is_window:
            raise UsageError("--steps and --from/--until both choose a window: give one of them")
        if self.from_ns is not None and self.until_ns is not None and self.until_ns <= self.from_ns:
            raise UsageError("--until is not after --from: the window is empty")
        if self.steps is not None and self.steps[1] < self.steps[0]:
            raise UsageError(f"--steps {self.steps[0]}-{self.steps[1]}: give the first step first")

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()

    @property
    def is_window(self) -> bool:
        """Whether it is bounded by times."""
        return self.from_ns is not None or self.until_ns is not None

    @classmethod
    def parse(
        cls, *, ranks: str | None = None, begin: str | None = None, until: str | None = None, steps: str | None = None
    ) -> Selection:
        """From what the command line says: `0-15,20`, times as `parse_duration_ns` reads them, `100-200`.

        Raises: UsageError for what is none.
        """
        return cls(
            ranks=None if ranks is None else _numbers(ranks),
            from_ns=None if begin is None else parse_duration_ns(begin, "--from"),
            until_ns=None if until is None else parse_duration_ns(until, "--until"),
            steps=None if steps is None else _range(steps, "--steps"),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` makes the same selection of them."""
        return {
            "ranks": None if self.ranks is None else list(self.ranks),
            "from_ns": self.from_ns,
            "until_ns": self.until_ns,
            "steps": None if self.steps is None else list(self.steps),
        }

    @classmethod
    def from_json(cls, document: object) -> Selection:
        """What `as_json` gave; everything where there is none. Raises: CaptureError for anything else."""
        if document is None:
            return cls()
        try:
            assert isinstance(document, Mapping)
            ranks, steps = document["ranks"], document["steps"]
            return cls(
                ranks=None if ranks is None else tuple(int(rank) for rank in ranks),
                from_ns=document["from_ns"],
                until_ns=document["until_ns"],
                steps=None if steps is None else (int(steps[0]), int(steps[1])),
            )
        except (AssertionError, KeyError, IndexError, TypeError, ValueError, UsageError) as error:
            raise CaptureError(f"the replay's selection {document!r} is damaged: run the replay again") from error

    def of(self, capture: Capture) -> Capture:
        """The selected part, the capture itself when that is all.

        Raises: UsageError for ranks or steps that the capture does not have, or when nothing is left.
        """
        if self.is_everything:
            return capture
        ranks = self._ranks_of(capture)
        begin, end = capture.time_span_ns
        if (self.from_ns is not None and self.from_ns > end) or (self.until_ns is not None and self.until_ns <= begin):
            raise UsageError(
                f"{capture.path} has nothing in that window: it lasts from {format_duration(begin)} to "
                f"{format_duration(end)}"
            )
        selected = SelectedCapture(capture, self, ranks, self._windows(capture, ranks))
        if not any(selected.operation_count(rank) for rank in ranks) and not selected.spans.num_rows:
            raise UsageError(f"{capture.path} has no operation and no span in what was selected")
        return selected

    def check(self, capture: Capture) -> None:
        """Raises: UsageError for ranks or steps that the capture does not have. Looks at no operation."""
        ranks = self._ranks_of(capture)
        if self.steps is not None:
            _windows_of_steps(capture, ranks, self.steps)

    def _ranks_of(self, capture: Capture) -> tuple[int, ...]:
        if self.ranks is None:
            return capture.ranks
        absent = sorted(set(self.ranks) - set(capture.ranks))
        if absent:
            raise UsageError(f"{capture.path} has no rank {absent[0]}: it has {_shown(capture.ranks)}")
        return tuple(rank for rank in capture.ranks if rank in set(self.ranks))

    def _windows(self, capture: Capture, ranks: Sequence[int]) -> dict[int, Window] | None:
        """By rank; None for all time. A rank without any of the steps has an empty window."""
        if self.steps is not None:
            return _windows_of_steps(capture, ranks, self.steps)
        if not self.is_window:
            return None
        window = (
            _EARLIEST if self.from_ns is None else self.from_ns,
            _LATEST if self.until_ns is None else self.until_ns,
        )
        return dict.fromkeys(ranks, window)


class SelectedCapture(Capture):
    """A part of a capture. `windows`: by rank, None for all time. Files keep their numbers; `info` names the ranks."""

    def __init__(
        self, capture: Capture, selection: Selection, ranks: Sequence[int], windows: Mapping[int, Window] | None
    ) -> None:
        info = dataclasses.replace(capture.info, ranks=tuple(ranks))
        super().__init__(capture.path, info, capture.files, {rank: capture.row_groups(rank) for rank in ranks})
        self.selection = selection
        self._whole = capture
        self._windows = windows

    @property
    def whole(self) -> Capture:
        """The capture that this is a part of."""
        return self._whole

    def operation_count(self, rank: int | None = None) -> int:
        """Operations selected, of one rank or of all. Reads rows where there is a window."""
        if self._windows is None:
            return super().operation_count(rank)
        ranks = self.ranks if rank is None else (rank,) if rank in self.ranks else ()
        return sum(pc.sum(self.usage(r)["operations"]).as_py() or 0 for r in ranks)

    def operations(
        self,
        ranks: Iterable[int] | int | None = None,
        columns: Sequence[str] | None = None,
        starts_ns: Window | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """As `Capture.operations`; row groups outside of the window are not read."""
        if self._windows is None:
            yield from super().operations(ranks, columns, starts_ns)
            return
        wanted = self.ranks if ranks is None else (ranks,) if isinstance(ranks, int) else tuple(ranks)
        for rank in wanted:
            if rank in self._windows:
                yield from self._within(rank, columns, _intersection(self._windows[rank], starts_ns))

    def _within(self, rank: int, columns: Sequence[str] | None, window: Window) -> Iterator[pa.RecordBatch]:
        read = None if columns is None else [*columns, *({"start_ns"} - set(columns))]
        for batch in super().operations(rank, read, window):
            starts = batch.column("start_ns").to_numpy()
            first, last = np.searchsorted(starts, window)
            if first < last:
                chosen = batch.slice(first, last - first)
                yield chosen if columns is None else chosen.select(list(columns))

    def usage(self, rank: int) -> pa.Table:
        """As `Capture.usage`, of what is selected."""
        if self._windows is None:
            return self._whole.usage(rank)
        if rank not in self._usage:
            self._usage[rank] = self._counted(rank)
        return self._usage[rank]

    @cached_property
    def spans(self) -> pa.Table:
        """Spans of the ranks, cut at the ends of their windows; what is outside is left out."""
        spans = self._whole.spans.filter(pc.is_in(self._whole.spans["rank"], pa.array(self.ranks, type=pa.int32())))
        if self._windows is None or not spans.num_rows:
            return spans
        bounds = np.array([self._windows.get(rank, (0, 0)) for rank in spans["rank"].to_pylist()], dtype=np.int64)
        start = np.maximum(spans["start_ns"].to_numpy(), bounds[:, 0])
        end = np.minimum(spans["end_ns"].to_numpy(), bounds[:, 1])
        cut = {"start_ns": pa.array(start), "end_ns": pa.array(end)}
        columns = [cut.get(name, spans[name]) for name in spans.column_names]
        return pa.table(columns, schema=spans.schema).filter(pa.array(start < end))

    @cached_property
    def time_span_ns(self) -> Window:
        """From the window's begin, which becomes the start of a replay, to the end of the last that is selected."""
        if self._windows is None:
            return super().time_span_ns
        first = min(window[0] for window in self._windows.values() if window[0] < window[1])
        last = [int(batch.column("end_ns").to_numpy().max()) for batch in self.operations(columns=["end_ns"])]
        if self.spans.num_rows:
            last.append(int(self.spans["end_ns"].to_numpy().max()))
        first = max(first, self._whole.time_span_ns[0])
        return first, max(last, default=first)


def selection_of(capture: Capture) -> Selection:
    """What was selected to make this capture of a whole one."""
    return capture.selection if isinstance(capture, SelectedCapture) else Selection()


def as_replayed(source: Capture, replay: Capture) -> Capture:
    """The part of `source` that `replay` replays, as its capture.json says; all of it where that is a replay of the
    same part, whose times begin at the run's start.

    Raises: CaptureError when it is damaged; UsageError when `source` lacks the part.
    """
    chosen = replay.info.made_by.get("selection")
    if source.info.made_by.get("selection") == chosen:
        return source
    return Selection.from_json(chosen).of(source)


def _intersection(window: Window, other: Window | None) -> Window:
    return window if other is None else (max(window[0], other[0]), min(window[1], other[1]))


def _windows_of_steps(capture: Capture, ranks: Sequence[int], steps: tuple[int, int]) -> dict[int, Window]:
    """From the begin of the first selected step to the end of the last, on each rank.

    Raises: UsageError when no selected rank has one of them.
    """
    spans = capture.spans
    step, rank = spans["step"].to_numpy(), spans["rank"].to_numpy()
    is_step = (codes(spans, "kind") == SPAN_KINDS.index("step")) & (step >= 0)
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    chosen = is_step & (step >= steps[0]) & (step <= steps[1])
    windows = {}
    for number in ranks:
        mine = chosen & (rank == number)
        windows[number] = (int(start[mine].min()), int(end[mine].max())) if mine.any() else (0, 0)
    if any(begin < until for begin, until in windows.values()):
        return windows
    known = step[is_step & np.isin(rank, ranks)]
    has = f"it has steps {known.min()} to {known.max()}" if len(known) else "it has no numbered steps"
    raise UsageError(f"{capture.path} has no step of --steps {steps[0]}-{steps[1]}: {has}")


def _numbers(text: str) -> tuple[int, ...]:
    """`0-15,20` as ascending numbers."""
    found: set[int] = set()
    for part in text.split(","):
        first, last = _range(part, "--ranks")
        if last < first:
            raise UsageError(f"--ranks {part}: give the first rank first")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _range(text: str, option: str) -> tuple[int, int]:
    first, dash, last = text.strip().partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise UsageError(f"{option} {text!r} is no number and no range of numbers, such as 100-200")
    return int(first), int(last if dash else first)


def _shown(ranks: Sequence[int]) -> str:
    contiguous = ranks and tuple(ranks) == tuple(range(ranks[0], ranks[-1] + 1))
    return f"ranks {ranks[0]} to {ranks[-1]}" if contiguous else f"{len(ranks)} others"
