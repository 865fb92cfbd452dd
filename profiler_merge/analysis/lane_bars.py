"""The activity of each lane over time, as bars for a picture: single operations if they fit, else joined ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dxt_replay.profiler_merge.analysis.bars import KEYS, Bars, apart_at, pair_keys, resolution_key, resolution_ns
from dxt_replay.profiler_merge.analysis.collect import Collector, at_one_layer, collect
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import RECONSTRUCTED, WRITE
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers.workers import ALONE, Workers

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
    keys = collect(capture, _KeyCollector, without=("step",), workers=workers)
    key = resolution_key(keys.counts, keys.tracks, most_bars)
    windows = tuple(Window(name=name, from_ns=begin, until_ns=until) for name, begin, until in centres_ns)
    if key is not None and centres_ns:
        begin = partial(_StartCollector, stretches=tuple(centres_ns))
        starts = collect(capture, begin, without=("step",), workers=workers)
        windows = starts.windows(window_operations)
    bars = collect(capture, partial(_BarCollector, key=key, windows=windows), without=("step",), workers=workers)
    return LaneBars(resolution_ns=resolution_ns(key), windows=windows, tracks=bars.tracks())


@dataclass(slots=True, kw_only=True, eq=False)
class _Open:
    """An unfinished track: its finished parts, and the last operation, which the next batch continues."""

    start_ns: int = 0
    end_ns: int = 0
    parts: list[Bars] = field(default_factory=list)


def _tracks(rows: OperationRows) -> Iterator[tuple[Track, OperationRows]]:
    """The rows of each lane and kind, in order."""
    kind = np.where(rows.data, (rows.op == WRITE).astype(np.int64), 2)
    kind[rows.origin == RECONSTRUCTED] = 3
    cell = rows.lane.astype(np.int64) * len(KINDS) + kind
    for number in np.unique(cell).tolist():
        lane, place = divmod(number, len(KINDS))
        yield (rows.rank, lane, KINDS[place]), rows.where(cell == number)


class _KeyCollector(Collector):
    """Counts the keys of neighbours, and the tracks."""

    STAY = ("_layers",)

    def __init__(self, capture: Capture, layers: FileLayers) -> None:
        self._layers = layers
        self._last: dict[Track, tuple[int, int]] = {}
        self.counts = np.zeros(KEYS, dtype=np.int64)

    @property
    def tracks(self) -> int:
        return len(self._last)

    def add(self, rows: OperationRows) -> None:
        for track, part in _tracks(at_one_layer(rows, self._layers)):
            starts, ends = part.start_ns, part.end_ns
            if track in self._last:
                before = self._last[track]
                starts, ends = np.insert(starts, 0, before[0]), np.insert(ends, 0, before[1])
            if len(starts) > 1:
                self.counts += np.bincount(pair_keys(starts, ends), minlength=KEYS)
            self._last[track] = int(starts[-1]), int(ends[-1])

    def merge(self, later: _KeyCollector) -> None:
        """As `Sums.merge`."""
        self.counts += later.counts
        self._last |= later._last


class _StartCollector(Collector):
    """Start times of operations within some stretches of time."""

    STAY = ("_layers",)

    def __init__(self, capture: Capture, layers: FileLayers, *, stretches: Sequence[tuple[str, int, int]]) -> None:
        self._layers = layers
        self._stretches = stretches
        self._starts: list[list[np.ndarray]] = [[] for _ in stretches]

    def add(self, rows: OperationRows) -> None:
        counted = at_one_layer(rows, self._layers)
        for found, (_, begin, until) in zip(self._starts, self._stretches, strict=True):
            low, high = np.searchsorted(counted.start_ns, [begin, until])
            if high > low:
                found.append(counted.start_ns[low:high].copy())

    def merge(self, later: _StartCollector) -> None:
        """As `Sums.merge`."""
        for found, more in zip(self._starts, later._starts, strict=True):
            found += more

    def windows(self, most: int) -> tuple[Window, ...]:
        """Each stretch, cut before the operation after the first `most`."""
        windows = []
        for found, (name, begin, until) in zip(self._starts, self._stretches, strict=True):
            starts = np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
            if len(starts) > most:
                until = int(starts[most])
            if until > begin:
                windows.append(Window(name=name, from_ns=begin, until_ns=until))
        return tuple(windows)


class _BarCollector(Collector):
    """Bars of each track."""

    STAY = ("_layers",)

    def __init__(self, capture: Capture, layers: FileLayers, *, key: int | None, windows: Sequence[Window]) -> None:
        self._layers = layers
        self._key = key
        self._windows = windows
        self._open: dict[Track, _Open] = {}

    def add(self, rows: OperationRows) -> None:
        for track, part in _tracks(at_one_layer(rows, self._layers)):
            bars = Bars.single(
                {
                    "start_ns": part.start_ns,
                    "end_ns": part.end_ns,
                    "bytes": part.length,
                    "file_id": part.file_id.astype(np.int64),
                    "offset": part.offset,
                }
            )
            found = self._open.setdefault(track, _Open())
            joined = bars.joined(self._apart(part.start_ns, part.end_ns))
            if found.parts and not self._first_apart(found, part):
                last = found.parts[-1]
                both = Bars.chain([last.rows(len(last) - 1), joined.rows(0, 1)]).joined(np.zeros(1, dtype=bool))
                found.parts[-1] = last.rows(0, len(last) - 1)
                joined = Bars.chain([both, joined.rows(1)])
            found.parts.append(joined)
            found.start_ns, found.end_ns = int(part.start_ns[-1]), int(part.end_ns[-1])

    def _first_apart(self, found: _Open, part: OperationRows) -> bool:
        starts = np.array([found.start_ns, part.start_ns[0]])
        return bool(self._apart(starts, np.array([found.end_ns, part.end_ns[0]]))[0])

    def _apart(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        apart = apart_at(starts, ends, self._key)
        for window in self._windows:
            inside = (starts >= window.from_ns) & (starts < window.until_ns)
            apart |= inside[1:] | inside[:-1]
        return apart

    def merge(self, later: _BarCollector) -> None:
        """As `Sums.merge`."""
        self._open |= later._open

    def tracks(self) -> dict[Track, Bars]:
        """Bars of all that was added, by track in order."""
        order = sorted(self._open, key=lambda track: (track[0], track[1], KINDS.index(track[2])))
        return {track: Bars.chain(self._open[track].parts) for track in order}
