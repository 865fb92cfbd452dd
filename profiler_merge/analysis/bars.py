"""The activity of lanes, and of training loops, over time as few bars as a picture can hold, with exact totals.

At a resolution T, two neighbours of one lane and kind become one bar if both and the gap between them are shorter than
T, and if they begin in the same stretch of about 400 T. At resolution 0 each is a bar of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Begin, Collector, at_one_layer, collect
from dxt_replay.profiler_merge.analysis.loop import rank_loops
from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.measures.operation_rows import TIME_COLUMNS, OperationRows, rows_of_batch
from dxt_replay.traces.schema import RECONSTRUCTED, WRITE
from dxt_replay.traces.stable_order import stable_order
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import ALONE, Workers

KINDS = ("read", "write", "metadata", "reconstructed")
"""Kinds of bars of a lane. `metadata`: traced open, close, stat, sync, seek and rename; `reconstructed`: all from
counters."""

LOOP_KINDS = ("step", "compute", "input wait", "collective", "checkpoint", "evaluation", "pipeline")
"""Kinds of bars of a loop. All but step and pipeline are disjoint on a rank, as in `RankLoop`."""

MOST_BARS, MOST_LOOP_BARS, WINDOW_OPERATIONS = 10_000, 12_000, 3_000

KEYS = 256
"""Keys of pairs of neighbours: 0 if both are at one instant, then four keys per power of two."""

_STRETCH_POWER = 9
"""A stretch is 256 to 512 times as long as the resolution, so that a busy lane still shows its variation."""

_POWER_OF_ONE = 1023
"""Exponent bits of 1.0."""

_SEVERAL = -1


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """int64 columns (n,), in start order. `busy_ns`: sum of the durations; `file_id`: -1 for several files; `offset`:
    of a single operation (of a step its number), else -1."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    operations: np.ndarray
    bytes: np.ndarray
    busy_ns: np.ndarray
    file_id: np.ndarray
    offset: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ns)

    @classmethod
    def single(cls, start_ns: np.ndarray, end_ns: np.ndarray, **columns: np.ndarray) -> Bars:
        """One bar for each operation; `bytes` that are missing are 0, `file_id` and `offset` -1."""
        unknown = np.full(len(start_ns), _SEVERAL, dtype=np.int64)
        found = {"bytes": unknown + 1, "file_id": unknown, "offset": unknown, **columns}
        return cls(start_ns, end_ns, operations=unknown + 2, busy_ns=end_ns - start_ns, **found)

    def joined(self, apart: np.ndarray) -> Bars:
        """The same bars, joined with their neighbours where `apart`, bool (n - 1,), is False."""
        if apart.all() or not len(self):
            return self
        first = np.concatenate(([0], np.flatnonzero(apart) + 1))
        files = np.minimum.reduceat(self.file_id, first)
        same = files == np.maximum.reduceat(self.file_id, first)
        single = np.diff(first, append=len(self)) == 1
        return Bars(
            start_ns=self.start_ns[first],
            end_ns=np.maximum.reduceat(self.end_ns, first),
            operations=np.add.reduceat(self.operations, first),
            bytes=np.add.reduceat(self.bytes, first),
            busy_ns=np.add.reduceat(self.busy_ns, first),
            file_id=np.where(same, files, _SEVERAL),
            offset=np.where(single, self.offset[first], _SEVERAL),
        )

    def take(self, places: np.ndarray) -> Bars:
        """The bars at these places."""
        return Bars(*(getattr(self, name)[places] for name in self.__slots__))

    @classmethod
    def chain(cls, parts: Sequence[Bars]) -> Bars:
        """Concatenate parts."""
        none = np.zeros(0, dtype=np.int64)
        return cls(*(np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in cls.__slots__))


def pair_keys(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """int64 (n - 1,), 0 to KEYS - 1: the coarseness from which neighbours i and i + 1, in start order, are drawn as one
    bar.

    Times are exact up to 2**53 ns, which is 104 days."""
    duration = end_ns - start_ns
    gap = start_ns[1:] - end_ns[:-1]
    longest = np.maximum(np.maximum(gap, 0), np.maximum(duration[1:], duration[:-1]))
    # The upper bits of a float are its power of two and then its quarter; 0 becomes negative.
    quarter = (longest.astype(np.float64).view(np.int64) >> 50) - (4 * _POWER_OF_ONE - 1)
    power = (np.abs(start_ns[1:] ^ start_ns[:-1]).astype(np.float64).view(np.int64) >> 52) - (_POWER_OF_ONE - 1)
    keys: np.ndarray = np.clip(np.maximum(quarter, 1 + 4 * (power - _STRETCH_POWER)), 0, KEYS - 1)
    return keys


def resolution_ns(key: int | None) -> int:
    """The resolution of a key: shorter operations and gaps are joined at it; 0 if every operation is a bar."""
    if not key:
        return 0 if key is None else 1
    power, quarter = divmod(key - 1, 4)
    return -(-((5 + quarter) << power) // 4)


def resolution_key(counts: np.ndarray, tracks: int, most_bars: int) -> int | None:
    """Key of the finest resolution that makes at most `most_bars`; None if every operation can be a bar of its own.

    `counts` (KEYS,): how often each key of neighbours occurs. `tracks`: bars that none precedes."""
    bars = tracks + int(counts.sum()) - np.cumsum(counts)
    if tracks + int(counts.sum()) <= most_bars:
        return None
    enough = np.flatnonzero(bars <= most_bars)
    return int(enough[0]) if len(enough) else KEYS - 1


def apart_at(start_ns: np.ndarray, end_ns: np.ndarray, key: int | None) -> np.ndarray:
    """bool (n - 1,): the neighbours that stay apart at the resolution of `key`; all if it is None."""
    if key is None:
        return np.ones(max(len(start_ns) - 1, 0), dtype=bool)
    apart: np.ndarray = pair_keys(start_ns, end_ns) > key
    return apart


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
    tracks: Mapping[tuple[int, int, str], Bars]

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
    first operations of each are bars of their own. No bar crosses the border of a row group.

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
    windows = [Window(name=name, from_ns=begin, until_ns=until) for name, begin, until in centres_ns]
    if key is not None:
        layers = file_layers(capture)
        windows = [_cut_window(capture, layers, window, window_operations) for window in windows]
        windows = [window for window in windows if window.until_ns > window.from_ns]
    return partial(BarCollector, key=key, windows=tuple(windows))


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


def _by_track(rows: OperationRows) -> tuple[np.ndarray, Bars]:
    """The rows in the order of their track, and within it of their start: its number in the rank, and a bar each."""
    kind = np.where(rows.data, (rows.op == WRITE).astype(np.int64), 2)
    kind[rows.origin == RECONSTRUCTED] = 3
    track = rows.lane.astype(np.int64) * len(KINDS) + kind
    order = stable_order(track)
    columns = {"bytes": rows.length, "file_id": rows.file_id.astype(np.int64), "offset": rows.offset}
    bars = Bars.single(rows.start_ns, rows.end_ns, **columns)
    return track[order], bars.take(order)


class KeyCollector(Collector):
    """Counts the keys of neighbours, and the tracks of each batch of rows."""

    STAY = ("_layers",)

    def __init__(self, capture: Capture, layers: FileLayers) -> None:
        self._layers = layers
        self.counts = np.zeros(KEYS, dtype=np.int64)
        self.tracks = 0

    def add(self, rows: OperationRows) -> None:
        """Add rows of one rank."""
        track, bars = _by_track(at_one_layer(rows, self._layers))
        keys = pair_keys(bars.start_ns, bars.end_ns)[track[1:] == track[:-1]]
        self.counts += np.bincount(keys, minlength=KEYS)
        self.tracks += len(bars) - len(keys)


class BarCollector(Collector):
    """Bars of each track. `key`: of their resolution, None if every operation is a bar."""

    STAY = ("_layers", "_key", "_windows")

    def __init__(self, capture: Capture, layers: FileLayers, *, key: int | None, windows: tuple[Window, ...]) -> None:
        self._layers, self._key, self._windows = layers, key, windows
        self._ranks: list[np.ndarray] = []
        self._tracks: list[np.ndarray] = []
        self._bars: list[Bars] = []

    def add(self, rows: OperationRows) -> None:
        """Add rows of one rank that follow its earlier ones."""
        track, bars = _by_track(at_one_layer(rows, self._layers))
        if not len(bars):
            return
        apart = apart_at(bars.start_ns, bars.end_ns, self._key) | (track[1:] != track[:-1])
        for window in self._windows:
            inside = (bars.start_ns >= window.from_ns) & (bars.start_ns < window.until_ns)
            apart |= inside[1:] | inside[:-1]
        self._tracks.append(track[np.append(True, apart)])
        self._ranks.append(np.full(len(self._tracks[-1]), rows.rank, dtype=np.int64))
        self._bars.append(bars.joined(apart))

    def lane_bars(self) -> LaneBars:
        """Bars of all that was added, by track in order."""
        none = np.zeros(0, dtype=np.int64)
        rank, track = np.concatenate([none, *self._ranks]), np.concatenate([none, *self._tracks])
        order, bars = np.lexsort((track, rank)), Bars.chain(self._bars)
        tracks = {}
        new = (np.diff(rank[order]) != 0) | (np.diff(track[order]) != 0)
        for mine in np.split(order, np.flatnonzero(new) + 1) if len(order) else ():
            lane, kind = divmod(int(track[mine[0]]), len(KINDS))
            tracks[int(rank[mine[0]]), lane, KINDS[kind]] = bars.take(mine)
        return LaneBars(resolution_ns=resolution_ns(self._key), windows=self._windows, tracks=tracks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopBars:
    """Bars of all training loops.

    tracks: bars by rank and kind. `operations` of a bar are the spans joined in it; the `offset` of a bar that is a
        single step is the step's number.
    resolution_ns: as of `LaneBars`.
    """

    resolution_ns: int
    tracks: dict[tuple[int, str], Bars]

    @property
    def bars(self) -> int:
        """Number of bars."""
        return sum(len(bars) for bars in self.tracks.values())


def loop_bars(spans: pa.Table, ranks: Collection[int], most_bars: int = MOST_LOOP_BARS) -> LoopBars:
    """Bars of the spans of `ranks` (`SPANS_SCHEMA`), at most about `most_bars`."""
    single: dict[tuple[int, str], Bars] = {}
    for rank, loop in rank_loops(spans, ranks).items():
        times = (loop.compute, loop.wait, loop.collective, loop.checkpoint, loop.evaluation, loop.pipeline)
        single[rank, "step"] = Bars.single(loop.start_ns, loop.end_ns, offset=loop.step)
        for kind, part in zip(LOOP_KINDS[1:], times, strict=True):
            single[rank, kind] = Bars.single(part.starts, part.ends)
    single = {track: bars for track, bars in single.items() if len(bars)}
    counts = np.zeros(KEYS, dtype=np.int64)
    for bars in single.values():
        counts += np.bincount(pair_keys(bars.start_ns, bars.end_ns), minlength=KEYS)
    key = resolution_key(counts, len(single), most_bars)
    return LoopBars(
        resolution_ns=resolution_ns(key),
        tracks={track: bars.joined(apart_at(bars.start_ns, bars.end_ns, key)) for track, bars in single.items()},
    )
