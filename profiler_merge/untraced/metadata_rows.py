"""Opens, closes, stats and syncs of files, placed by the evidence of counters and traced operations. Pure.

Their numbers are the counters'. The first open and the last close have their recorded times; in a record of one rank,
so do the last open and the first close. Other opens are placed where an offset returns to the start of the file, and a
close at the end of the previous pass. A stat follows an open. Syncs follow the writes, evenly spread. Seeks reach no
storage and get no rows.
The durations divide the recorded metadata time, less that of the seeks. A close lasts at most from the file's last
operation to its last close. Opens and stats share the rest: slow storage takes time to open a file that was read, and
hardly any to close it.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.profiler_merge.untraced.file_operations import (
    FileOperations,
    MadeRows,
    concatenated,
    made_rows,
    no_rows,
)
from dxt_replay.profiler_merge.untraced.rank_counters import NOT_SEEN, CountedFiles
from dxt_replay.profiler_merge.untraced.timeline_slots import (
    AT_BEGIN,
    AT_END,
    CLOSE_EVENT,
    OPEN_EVENT,
    Events,
    lay,
    number_in_group,
    numbered,
)
from dxt_replay.traces.schema import OPS

OPEN, CLOSE, STAT, SYNC = (OPS.index(op) for op in ("open", "close", "stat", "sync"))
SEEK_NS = 1_000
"""Longest duration of a seek, which moves a number in the kernel: 0.4 to 1 us, measured on local disks and FUSE."""

_ROUNDED_NS = 10
"""Largest rounding error of a time difference: two times of a job of some days, as seconds in doubles."""

_AFTER_WRITE, _AFTER_OPEN, _LAST = range(3)


def metadata_rows(files: CountedFiles, operations: FileOperations, unknown_ns: np.ndarray) -> MadeRows:
    """The rows of all `files`, of one process or several.

    `unknown_ns` (files,): time for rows without a dated neighbour, one after the other.
    """
    if not len(files):
        return no_rows()
    return _Placement(files, operations, unknown_ns).rows()


def dated_places(files: CountedFiles, operations: FileOperations) -> tuple[np.ndarray, np.ndarray]:
    """File, and start in ns, of the opens and closes whose times are recorded.

    `operations`: at least the first of each file, the last, and the one that ends last.
    """
    placed = _Placement(files, operations, np.zeros(len(files), dtype=np.int64))
    file, start, _, _ = (
        np.concatenate(column) for column in zip(*_open_pins(placed), *_close_pins(placed), strict=True)
    )
    return file, start


class _Placement:
    """The steps of `metadata_rows` and their intermediate results; all files at once, one column each."""

    def __init__(self, files: CountedFiles, operations: FileOperations, unknown_ns: np.ndarray) -> None:
        self.files, self.ops, self.unknown_ns = files, operations, unknown_ns
        every = np.arange(len(files))
        self.first = np.searchsorted(operations.file, every)
        self.used = np.searchsorted(operations.file, every, side="right") > self.first
        self.made: list[MadeRows] = []
        self.waiting: list[tuple[np.ndarray, ...]] = []
        self.begin = self._of_first(operations.start, NOT_SEEN)
        self.finish = self._reduced(np.maximum, operations.end)
        last_start = self._reduced(np.maximum, operations.start)
        closes = np.where(files.close_end != NOT_SEEN, files.opens, 0)
        # Reads after the last close used a descriptor that stayed open to the end.
        self.left_open = self.used & (last_start > files.close_end) & (closes > 1)
        self.closes = closes - self.left_open
        self.rows_counted = files.opens + self.closes + files.stats
        each_ns = files.meta_ns // np.maximum(self.rows_counted + files.seeks, 1)
        bounded = files.own & self.used & ~self.left_open & (files.close_end != NOT_SEEN)
        after_ns = np.maximum(files.close_end - self.finish, 0)
        self.close_ns = np.where(bounded, np.minimum(each_ns, after_ns), each_ns)
        self.unplaced_ns = files.meta_ns - files.seeks * np.minimum(each_ns, SEEK_NS)
        left_ns = self.unplaced_ns - self.closes * self.close_ns
        self.each_ns = left_ns // np.maximum(files.opens + files.stats, 1)

    def _of_first(self, column: np.ndarray, otherwise: int) -> np.ndarray:
        values = np.full(len(self.files), otherwise, dtype=np.int64)
        values[self.used] = column[self.first[self.used]]
        return values

    def _reduced(self, by: np.ufunc, column: np.ndarray) -> np.ndarray:
        values = np.full(len(self.files), NOT_SEEN, dtype=np.int64)
        if self.used.any():
            values[self.used] = by.reduceat(column, self.first[self.used])
        return values

    def rows(self) -> MadeRows:
        files = self.files
        self._pin()
        self._place_opens()
        self._place_closes()
        closes = np.maximum(self.closes - self.pinned_closes, 0)
        left_ns = np.maximum(self.unplaced_ns - self.pinned_ns - closes * self.close_ns, 0)
        budget = left_ns // np.maximum(self.rows_counted - self.pinned - closes, 1)
        self._attach(STAT, files.stats, _AFTER_OPEN)
        self._place_syncs()
        self._lay(budget)
        return concatenated(self.made)

    def _pin(self) -> None:
        """Make the opens and closes with recorded times events between the operations."""
        pins = [*_open_pins(self), *_close_pins(self)]
        file, start, end, kind = (np.concatenate(column) for column in zip(*pins, strict=True))
        self.events = Events.of(
            (self.ops.file, self.ops.start, self.ops.end), (file, start, end, kind), self.files.process
        )
        self.open_pins = self.events.of_pin[kind == OPEN_EVENT]
        tie = self.events.order_of_events(self.events.of_pin)
        self.made.append(made_rows(np.where(kind == OPEN_EVENT, OPEN, CLOSE), file, start, end, tie=tie))
        count = len(self.files)
        self.pinned = np.bincount(file, minlength=count)
        self.pinned_ns = np.zeros(count, dtype=np.int64)
        np.add.at(self.pinned_ns, file, end - start)
        self.pinned_opens = np.bincount(file[kind == OPEN_EVENT], minlength=count)
        self.pinned_closes = np.bincount(file[kind == CLOSE_EVENT], minlength=count)

    def _place_opens(self) -> None:
        """Place the opens between: where a pass over the file begins, the widest gaps first; spread the rest evenly."""
        files, ops = self.files, self.ops
        missing = files.opens - self.pinned_opens
        candidates = np.flatnonzero((missing[ops.file] > 0) & (np.arange(len(ops)) > self.first[ops.file]))
        file = ops.file[candidates]
        between = (ops.start[candidates] > files.open_start[file]) & (
            ~files.own[file] | (ops.start[candidates] < files.open_end[file])
        )
        if ops.held is not None:
            between &= ~ops.held[candidates]
        candidates, file = candidates[between], file[between]
        before = candidates - 1
        if ops.goes_on_at is None or ops.ended is None:
            goes_on_at, ended = ops.offset[before] + ops.length[before], ops.end[before]
        else:
            goes_on_at, ended = ops.goes_on_at[candidates], ops.ended[candidates]
        returns = (ops.offset[candidates] < goes_on_at) & (ops.offset[candidates] <= ops.offset[self.first[file]])
        gap = ops.start[candidates] - ended
        order = np.lexsort((-gap, ~returns, file))
        number = number_in_group(file[order])
        chosen = np.sort(candidates[order[number < missing[file[order]]]])
        self.begins_pass = chosen
        event = self.events.of_operation[chosen]
        self._wait(OPEN, ops.file[chosen], event, AT_END, 0)
        left = missing - np.bincount(ops.file[chosen], minlength=len(files))
        if ops.held is not None:
            # An open in the middle of a run would contradict the counted order.
            unbroken = np.bincount(ops.file[ops.held], minlength=len(files)) > 0
            self._attach(OPEN, np.where(unbroken, left, 0), _AFTER_WRITE)
            left = np.where(unbroken, 0, left)
        self._spread(OPEN, left, files.open_start, files.open_end, self.each_ns)

    def _place_closes(self) -> None:
        """Place a close for each ended pass, before the open of the next one; spread the rest evenly."""
        files, events = self.files, self.events
        event = np.sort(np.concatenate((events.of_operation[self.begins_pass], self.open_pins)))
        file = events.file[event]
        # The first open ends no pass; with a recorded first close, neither does the second.
        wanted = number_in_group(file) >= 1 + (self.pinned_closes[file] > 1)
        event, file = event[wanted], file[wanted]
        missing = np.maximum(self.closes - self.pinned_closes, 0)
        chosen = number_in_group(file) < missing[file]
        self._wait(CLOSE, file[chosen], event[chosen], AT_BEGIN, _LAST)
        left = missing - np.bincount(file[chosen], minlength=len(files))
        self._spread(CLOSE, left, files.close_start, files.close_end, self.close_ns)

    def _place_syncs(self) -> None:
        """Place the j-th of n syncs after the j-th n-th of the writes, before the close unless the close is traced."""
        files, ops, events = self.files, self.ops, self.events
        if not files.syncs.any():
            return
        written = np.flatnonzero(ops.is_write)
        writes = np.bincount(ops.file[written], minlength=len(files))
        first_write = np.cumsum(writes) - writes
        file, number = numbered(np.where(writes > 0, files.syncs, 0))
        share = ((number + 1) * writes[file] - 1) // np.maximum(files.syncs[file], 1)
        after = events.of_operation[written[first_write[file] + share]]
        self._wait(SYNC, file, events.slot_after(after), AT_BEGIN, _AFTER_WRITE)
        self._attach(SYNC, np.where(writes == 0, files.syncs, 0), _LAST)

    def _attach(self, op: int, counts: np.ndarray, rank: int) -> None:
        """Place rows after the opens of their file, in equal shares; without opens, before the first operation."""
        if not counts.any():
            return
        events = self.events
        pass_event = events.of_operation[self.begins_pass]
        opens = np.concatenate((self.open_pins, pass_event))
        slot = np.concatenate((events.slot_after(self.open_pins), pass_event))
        side = np.repeat([AT_BEGIN, AT_END], [len(self.open_pins), len(pass_event)])
        order = np.argsort(opens)
        of_file = np.bincount(events.file[opens], minlength=len(self.files))
        first_open = np.cumsum(of_file) - of_file
        file, number = numbered(np.where(of_file > 0, counts, 0))
        chosen = order[first_open[file] + number * of_file[file] // np.maximum(counts[file], 1)]
        self._wait(op, file, slot[chosen], side[chosen], rank)
        file, _ = numbered(np.where((of_file == 0) & self.used, counts, 0))
        self._wait(op, file, events.of_operation[self.first[file]], AT_END, rank)
        file, _ = numbered(np.where((of_file == 0) & ~self.used, counts, 0))
        each_ns = self.files.write_ns // np.maximum(self.files.syncs, 1) if op == SYNC else self.each_ns
        budget = each_ns[file]
        start = self.unknown_ns[file] + _number_and_time(self.files.process[file], self.unknown_ns[file], budget)
        self.made.append(made_rows(op, file, start, start + budget))

    def _spread(self, op: int, counts: np.ndarray, begin: np.ndarray, end: np.ndarray, each_ns: np.ndarray) -> None:
        """Rows at equal distances inside a recorded window, of `each_ns` (files,)."""
        if not counts.any():
            return
        file, number = numbered(counts)
        width = (end - begin)[file] - each_ns[file]
        place = np.floor(np.maximum(width, 0) * ((number + 1) / (counts[file] + 1))).astype(np.int64)
        undated = np.where(self.used, self.begin, self.unknown_ns)[file] + number * each_ns[file]
        start = np.where(begin[file] == NOT_SEEN, undated, begin[file] + place)
        self.made.append(made_rows(op, file, start, start + each_ns[file]))

    def _wait(self, op: int, file: np.ndarray, slot: np.ndarray, side: np.ndarray | int, rank: int) -> None:
        """Note rows for a slot; they are placed together at the end."""
        if not len(file):
            return
        columns = (np.broadcast_to(np.asarray(value, dtype=np.int64), len(file)) for value in (op, rank, side))
        self.waiting.append((file, slot, *columns))

    def _lay(self, budget_ns: np.ndarray) -> None:
        if not self.waiting:
            return
        file, slot, op, rank, side = (np.concatenate(column) for column in zip(*self.waiting, strict=True))
        written = self.ops.is_write
        spent = np.zeros(len(self.files), dtype=np.int64)
        np.add.at(spent, self.ops.file[written], (self.ops.end - self.ops.start)[written])
        # fsync counts as write time.
        sync_ns = np.maximum(self.files.write_ns - spent, 0) // np.maximum(self.files.syncs, 1)
        duration = budget_ns[file]
        for kind, times in ((SYNC, sync_ns), (CLOSE, self.close_ns)):
            duration = np.where(op == kind, times[file], duration)
        start, end = lay(self.events, slot, side, rank, duration)
        tie = self.events.order_of_slots(slot, side) + rank
        self.made.append(made_rows(op, file, start, end, tie=tie))


def _open_pins(placed: _Placement) -> list[tuple[np.ndarray, ...]]:
    """(file, start, end, kind) of the first open of each file, and of the last where its time is known."""
    files, used, each = placed.files, placed.used, placed.each_ns
    dated = files.open_start != NOT_SEEN
    opened = np.flatnonzero((files.opens > 0) & (dated | used))
    first_operation = np.where(used, placed.begin, np.iinfo(np.int64).max)
    # A reduced record has the first open of any rank: this rank's own is as late as its first operation allows.
    followers = -(-files.stats // np.maximum(files.opens, 1))
    latest = np.where(used, placed.begin - each * (1 + followers), files.open_start)
    start = np.where(files.own & dated, files.open_start, np.maximum(files.open_start, latest))
    whole = files.own & dated & (files.opens == 1)
    end = np.where(whole, files.open_end, start + each)
    end = np.maximum(np.minimum(end, first_operation), start)
    pins = [(opened, start[opened], end[opened], np.full(len(opened), OPEN_EVENT))]
    several = np.flatnonzero((files.opens > 1) & files.own & dated)
    last_end = np.maximum(files.open_end, end)[several]
    last_start = np.maximum(last_end - each[several], end[several])
    return [*pins, (several, last_start, last_end, np.full(len(several), OPEN_EVENT))]


def _close_pins(placed: _Placement) -> list[tuple[np.ndarray, ...]]:
    """(file, start, end, kind) of the last close of each file, and of the first where its time is known."""
    files, each, closes = placed.files, placed.close_ns, placed.closes
    closed = np.flatnonzero(closes > 0)
    after = np.where(placed.used & ~placed.left_open, placed.finish, files.close_start)
    # From the first close to the last it is a close only if Darshan counted as much time: there are more closes than
    # opens if a descriptor was duplicated, or was open before the record began.
    one = files.close_end - files.close_start <= files.meta_ns + _ROUNDED_NS
    alone = files.own & (closes == 1) & one
    reduced_start = np.maximum(files.close_start, after)
    start = np.where(alone, files.close_start, np.where(files.own, files.close_end - each, reduced_start))
    start = np.maximum(start, files.close_start)
    end = np.where(files.own, np.maximum(files.close_end, start), start + each)
    pins = [(closed, start[closed], end[closed], np.full(len(closed), CLOSE_EVENT))]
    several = np.flatnonzero((closes > 1) & files.own)
    first_start = files.close_start[several]
    first_end = np.maximum(np.minimum(first_start + each[several], start[several]), first_start)
    return [*pins, (several, first_start, first_end, np.full(len(several), CLOSE_EVENT))]


def _number_and_time(process: np.ndarray, unknown_ns: np.ndarray, duration_ns: np.ndarray) -> np.ndarray:
    """ns after its undated time at which each row starts: rows of one undated time and process follow one another."""
    order = np.lexsort((unknown_ns, process))
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.diff(unknown_ns[order]) != 0
    new[1:] |= np.diff(process[order]) != 0
    first = np.flatnonzero(new)
    reached = np.cumsum(duration_ns[order])
    before = (reached - duration_ns[order])[first]
    offsets = np.empty(len(order), dtype=np.int64)
    offsets[order] = reached - duration_ns[order] - np.repeat(before, np.diff(np.append(first, len(order))))
    return offsets
