"""The activity of each lane over time, as bars for a picture: single operations if they fit, else joined ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dxt_replay.profiler_merge.analysis.bars import KEYS, Bars, apart_at, pair_keys, resolution_key, resolution_ns
from dxt_replay.profiler_merge.analysis.collect import Begin, Collector, at_one_layer, collect
from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.measures.operation_rows import TIME_COLUMNS, OperationRows, rows_of_batch
from dxt_replay.traces.schema import RECONSTRUCTED, WRITE
from dxt_replay.traces.stable_order import runs, stable_order
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import ALONE, Workers

KINDS = ("read", "write", "metadata", "reconstructed")
"""Kinds of bars. `metadata`: traced open, close, stat, sync, seek and rename; `reconstructed`: all from counters."""

MOST_BARS = 10_000
WINDOW_OPERATIONS = 3_000

Track = tuple[int, int, str]
"""Rank, lane and kind of a bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch [from_ns, until_ns) in which every operation is a bar of its own."""

    name: str
    from_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneBars:
    """The bars of some ranks.

    `tracks`: by rank, lane and kind.
    `resolution_ns`: of joined bars; 0 where every operation is a bar.
    `windows`: stretches in which every operation is a bar at any resolution.
    """

    resolution_ns: int
    windows: tuple[Window, ...]
    tracks: dict[Track, Bars]

    @property
    def operations(self) -> int:
        """Number of operations in all bars."""
        return sum(int(bars.operations.sum()) for bars in self.tracks.values())

    @property
    def bars(self) -> int:
        """Number of bars."""
        return sum(len(bars) for bars in self.tracks.values())


def lane_bars(
    capture: Capture,
    *,
    most_bars: int = MOST_BARS,
    centres_ns: Sequence[tuple[str, int, int]] = (),
    window_operations: int = WINDOW_OPERATIONS,
    workers: Workers = ALONE,
) -> LaneBars:
    """Bars of the counted operations (one layer per file), in two passes.

    Returns at most about `most_bars`, and `window_operations` more for each of `centres_ns`, (name, from, until): the
    first operations of each are bars of their own.

    Raises: CaptureError when a part is damaged.
    """
    keys = collect(capture, KeyCollector, without=("step",), workers=workers)
    begin = bar_collector(
        capture, keys, most_bars=most_bars, centres_ns=centres_ns, window_operations=window_operations
    )
    return collect(capture, begin, without=("step",), workers=workers).lane_bars()


def bar_collector(
    capture: Capture,
    keys: KeyCollector,
    *,
    most_bars: int,
    centres_ns: Sequence[tuple[str, int, int]],
    window_operations: int,
) -> Begin[BarCollector]:
    """What makes the collector of the bars for some or all ranks. `keys`: of the same capture; else as `lane_bars`.

    Raises: CaptureError when a part is damaged.
    """
    key = resolution_key(keys.counts, keys.tracks, most_bars)
    if key is None:
        windows = tuple(Window(name=name, from_ns=begin, until_ns=until) for name, begin, until in centres_ns)
    else:
        layers = file_layers(capture)
        cut = (
            _cut_window(capture, layers, Window(name=name, from_ns=begin, until_ns=until), window_operations)
            for name, begin, until in centres_ns
        )
        windows = tuple(window for window in cut if window.until_ns > window.from_ns)
    return partial(BarCollector, key=key, windows=windows)


def _cut_window(capture: Capture, layers: FileLayers, window: Window, most: int) -> Window:
    """The window, cut before the operation after the first `most`."""
    stretch = window.from_ns, window.until_ns
    found = [np.zeros(0, dtype=np.int64)]
    for rank in capture.ranks:
        left = most + 1
        for batch in capture.operations(rank, TIME_COLUMNS, stretch):
            starts = at_one_layer(rows_of_batch(batch, rank, TIME_COLUMNS), layers).start_ns
            low, high = np.searchsorted(starts, stretch).tolist()
            found.append(starts[low : min(high, low + left)].copy())
            left -= len(found[-1])
            if not left:
                break
    first = np.sort(np.concatenate(found))
    return replace(window, until_ns=int(first[most])) if len(first) > most else window


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tracked:
    """Rows sorted by lane and kind, each track after its last operation so far (after its first one if it is new).

    tracks: those of the rows. order: the rows' order. edges: place of the operation that precedes each track.
    start_ns, end_ns: (rows + tracks,).
    """

    tracks: list[Track]
    order: np.ndarray
    edges: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray

    @classmethod
    def of(cls, rows: OperationRows, last: dict[Track, tuple[int, int]]) -> _Tracked:
        """`last`: start and end of each track's last operation; updated with those of the rows."""
        kind = np.where(rows.data, (rows.op == WRITE).astype(np.int64), 2)
        kind[rows.origin == RECONSTRUCTED] = 3
        cell = rows.lane.astype(np.int64) * len(KINDS) + kind
        order = stable_order(cell)
        cell, starts, ends = cell[order], rows.start_ns[order], rows.end_ns[order]
        first = runs(cell)
        tracks = [(rows.rank, *_lane_and_kind(number)) for number in cell[first].tolist()]
        own = zip(starts[first].tolist(), ends[first].tolist(), strict=True)
        before = np.array([last.get(track, times) for track, times in zip(tracks, own, strict=True)])
        final = np.append(first[1:], len(cell)) - 1
        last.update(zip(tracks, zip(starts[final].tolist(), ends[final].tolist(), strict=True), strict=True))
        return cls(
            tracks=tracks,
            order=order,
            edges=first + np.arange(len(first)),
            start_ns=np.insert(starts, first, before[:, 0]),
            end_ns=np.insert(ends, first, before[:, 1]),
        )

    def firsts(self) -> dict[Track, tuple[int, int]]:
        """Start and end of each track's first row."""
        first = self.edges + 1
        times = zip(self.start_ns[first].tolist(), self.end_ns[first].tolist(), strict=True)
        return dict(zip(self.tracks, times, strict=True))


def _lane_and_kind(cell: int) -> tuple[int, str]:
    lane, kind = divmod(cell, len(KINDS))
    return lane, KINDS[kind]


def _pair(one: tuple[int, int], other: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The starts and the ends of two operations, from the start and end of each."""
    starts, ends = np.array([one, other]).T
    return starts, ends


class KeyCollector(Collector):
    """Counts the keys of neighbours, and the tracks."""

    STAY = ("_layers",)

    def __init__(self, capture: Capture, layers: FileLayers) -> None:
        self._layers = layers
        self._first: dict[Track, tuple[int, int]] = {}
        self._last: dict[Track, tuple[int, int]] = {}
        self.counts = np.zeros(KEYS, dtype=np.int64)

    @property
    def tracks(self) -> int:
        """Number of tracks."""
        return len(self._last)

    def add(self, rows: OperationRows) -> None:
        """Add rows of one rank that follow its earlier ones."""
        rows = at_one_layer(rows, self._layers)
        if not len(rows):
            return
        tracked = _Tracked.of(rows, self._last)
        keys = pair_keys(tracked.start_ns, tracked.end_ns)
        new = np.array([track not in self._first for track in tracked.tracks])
        self._first = tracked.firsts() | self._first
        no_pair = np.concatenate((tracked.edges[1:] - 1, tracked.edges[new]))
        self.counts += np.bincount(keys, minlength=KEYS) - np.bincount(keys[no_pair], minlength=KEYS)

    def merge(self, later: KeyCollector) -> None:
        """As `Sums.merge`."""
        self.counts += later.counts
        for track in self._last.keys() & later._first.keys():
            self.counts[pair_keys(*_pair(self._last[track], later._first[track]))] += 1
        self._last |= later._last


class BarCollector(Collector):
    """Bars of each track. `key`: of their resolution, None if every operation is a bar."""

    STAY = ("_layers",)

    def __init__(self, capture: Capture, layers: FileLayers, *, key: int | None, windows: Sequence[Window]) -> None:
        self._layers = layers
        self._key = key
        self._windows = windows
        self._first: dict[Track, tuple[int, int]] = {}
        self._last: dict[Track, tuple[int, int]] = {}
        self._parts: dict[Track, list[Bars]] = {}

    def add(self, rows: OperationRows) -> None:
        """Add rows of one rank that follow its earlier ones."""
        rows = at_one_layer(rows, self._layers)
        if not len(rows):
            return
        tracked = _Tracked.of(rows, self._last)
        self._first = tracked.firsts() | self._first
        apart = self._apart(tracked.start_ns, tracked.end_ns)
        apart[tracked.edges[1:] - 1] = True
        columns = {
            "start_ns": rows.start_ns,
            "end_ns": rows.end_ns,
            "bytes": rows.length,
            "file_id": rows.file_id.astype(np.int64),
            "offset": rows.offset,
        }
        bars = Bars.single({name: column[tracked.order] for name, column in columns.items()})
        inner = np.delete(apart, tracked.edges)
        joined = bars.joined(inner)
        # The number of bars before the first operation of each track.
        begins = np.append(0, np.cumsum(inner))[tracked.edges - np.arange(len(tracked.edges))].tolist()
        for track, begin, end, alone in zip(
            tracked.tracks, begins, [*begins[1:], None], apart[tracked.edges].tolist(), strict=True
        ):
            self._extend(track, joined.rows(begin, end), alone)

    def _extend(self, track: Track, bars: Bars, alone: bool) -> None:
        """Further bars of a track; `alone`: whether the first one is not joined with the last one so far."""
        parts = self._parts.setdefault(track, [])
        if parts and not alone:
            last = parts[-1]
            both = Bars.chain([last.rows(len(last) - 1), bars.rows(0, 1)]).joined(np.zeros(1, dtype=bool))
            parts[-1] = last.rows(0, len(last) - 1)
            bars = Bars.chain([both, bars.rows(1)])
        parts.append(bars)

    def _apart(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        apart = apart_at(starts, ends, self._key)
        for window in self._windows:
            inside = (starts >= window.from_ns) & (starts < window.until_ns)
            apart |= inside[1:] | inside[:-1]
        return apart

    def merge(self, later: BarCollector) -> None:
        """As `Sums.merge`."""
        for track, parts in later._parts.items():
            alone = track not in self._last or self._apart(*_pair(self._last[track], later._first[track]))[0]
            self._extend(track, Bars.chain(parts), bool(alone))
        self._last |= later._last

    def lane_bars(self) -> LaneBars:
        """Bars of all that was added, by track in order."""
        order = sorted(self._parts, key=lambda track: (track[0], track[1], KINDS.index(track[2])))
        return LaneBars(
            resolution_ns=resolution_ns(self._key),
            windows=tuple(self._windows),
            tracks={track: Bars.chain(self._parts[track]) for track in order},
        )
