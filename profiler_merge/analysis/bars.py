"""The activity of lanes, and of training loops, over time as few bars as a picture can hold, with exact totals.

At a resolution T, two neighbours of one track (a lane and kind) become one bar if both and the gap between them are
shorter than T, and if they begin in the same stretch of 256 to 512 T, so that a busy lane still shows its variation.
At resolution 0 each operation is a bar of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.loop import rank_loops

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KINDS = ("read", "write", "metadata", "reconstructed")
"""Kinds of bars of a lane. `metadata`: traced open, close, stat, sync, seek and rename; `reconstructed`: all from
counters."""

LOOP_KINDS = ("step", "compute", "wait", "collective", "checkpoint", "evaluation", "pipeline")
"""Kinds of bars of a loop, as `RankLoop` names them. All but step and pipeline are disjoint on a rank."""

_SHOWN_KINDS = ("step", "compute", "input wait", *LOOP_KINDS[3:])

MOST_BARS, MOST_LOOP_BARS, WINDOW_OPERATIONS = 10_000, 12_000, 3_000

COLUMNS = ("rank", "lane", "start_ns", "end_ns", "length", "offset")
"""Columns of the relation `ops` that bars are made of, beside those that it always has."""

_LANES = """SELECT rank, lane * 4
        + CASE WHEN origin = 'reconstructed' THEN 3 WHEN data THEN (op = 'write')::INT ELSE 2 END AS track,
        number, start_ns, end_ns, length AS bytes, file_id, "offset"
    FROM ops WHERE counted AND list_contains(?, rank)"""

_KEYED = """CREATE OR REPLACE TEMP TABLE keyed AS WITH tracks AS ({tracks}),
    pairs AS (SELECT *, lag(start_ns) OVER same AS before, greatest(end_ns - start_ns,
        lag(end_ns - start_ns) OVER same, start_ns - lag(end_ns) OVER same) AS longest FROM tracks
        WINDOW same AS (PARTITION BY rank, track ORDER BY start_ns, number))
    SELECT * EXCLUDE (longest), CASE WHEN before IS NOT NULL THEN greatest(
        if(longest > 0, floor(4 * log2(longest))::INT + 1, 0),
        if(start_ns <> before, 4 * (floor(log2(abs(xor(start_ns, before))))::INT - 8) + 1, 0)) END AS key FROM pairs"""
"""`key`: from which coarseness on an operation is drawn in one bar with the one before; null for the first of a track.
The resolution of a key is the fourth root of 2 to its power."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch [from_ns, until_ns) in which every operation is a bar of its own."""

    name: str
    from_ns: int
    until_ns: int


Track = TypeVar("Track")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn(Generic[Track]):
    """`tracks`: the bars of some ranks, in order. `resolution_ns`: of joined bars; 0 where every operation is a bar.
    `windows`: stretches in which every operation is a bar at any resolution."""

    resolution_ns: int
    windows: tuple[Window, ...]
    tracks: dict[Track, Bars]


def lane_bars(
    database: DuckDBPyConnection,
    ranks: Collection[int],
    *,
    most_bars: int = MOST_BARS,
    centres_ns: Sequence[tuple[str, int, int]] = (),
    window_operations: int = WINDOW_OPERATIONS,
) -> Drawn[tuple[int, int, str]]:
    """Bars of the counted operations (one layer per file) of `ranks`, by (rank, lane, kind), from the relation `ops`.

    At most about `most_bars`, and `window_operations` more for each of `centres_ns`, (name, from, until): the first
    operations of each are bars of their own.
    """
    database.execute(_KEYED.format(tracks=_LANES), [list(ranks)])
    key = _key(database, most_bars)
    windows = [Window(name=name, from_ns=begin, until_ns=until) for name, begin, until in centres_ns]
    if key is not None:
        windows = [_cut(database, window, window_operations) for window in windows]
        windows = [window for window in windows if window.until_ns > window.from_ns]
    found = _joined(database, key, windows)
    tracks = {(rank, track // 4, KINDS[track % 4]): bars for (rank, track), bars in found.items()}
    return Drawn(resolution_ns=_resolution_ns(key), windows=tuple(windows), tracks=tracks)


def loop_bars(
    database: DuckDBPyConnection, spans: pa.Table, ranks: Collection[int], most_bars: int = MOST_LOOP_BARS
) -> Drawn[tuple[int, str]]:
    """Bars of the spans of `ranks` (`SPANS_SCHEMA`), at most about `most_bars`, by (rank, kind): `operations` of a bar
    are the spans joined in it."""
    names = ("rank", "track", "start_ns", "end_ns", "offset")
    parts: list[tuple[np.ndarray, ...]] = [(np.zeros(0, dtype=np.int64),) * len(names)]
    for rank, loop in rank_loops(spans, ranks).items():
        others = (getattr(loop, name) for name in LOOP_KINDS[1:])
        times = ((part.starts, part.ends, np.full(len(part), -1)) for part in others)
        for track, columns in enumerate([(loop.start_ns, loop.end_ns, loop.step), *times]):
            parts.append((np.full(len(columns[0]), rank), np.full(len(columns[0]), track), *columns))
    merged = [np.concatenate(column) for column in zip(*parts, strict=True)]
    database.register("loops", pa.table(dict(zip(names, merged, strict=True))))
    database.execute(_KEYED.format(tracks="SELECT *, 0 AS number, 0 AS bytes, -1 AS file_id FROM loops"))
    key = _key(database, most_bars)
    tracks = {(rank, _SHOWN_KINDS[track]): bars for (rank, track), bars in _joined(database, key, ()).items()}
    return Drawn(resolution_ns=_resolution_ns(key), windows=(), tracks=tracks)


def _key(database: DuckDBPyConnection, most_bars: int) -> int | None:
    """Key of the finest resolution that makes at most `most_bars` of the table `keyed`; None if every operation can
    be a bar of its own."""
    found = database.execute("SELECT key, count(*) FROM keyed GROUP BY key ORDER BY key DESC").fetchall()
    bars = sum(count for key, count in found if key is None)
    if bars + sum(count for key, count in found if key is not None) <= most_bars:
        return None
    for key, count in found:
        if key is not None:
            bars += count
            if bars > most_bars:
                return int(key)
    return 0


def _resolution_ns(key: int | None) -> int:
    """Shorter operations and gaps are joined at it; 0 if every operation is a bar."""
    return 0 if key is None else int(np.ceil(2.0 ** (key / 4)))


def _cut(database: DuckDBPyConnection, window: Window, most: int) -> Window:
    """The window, cut before the operation after the first `most`."""
    last = database.execute(
        "SELECT start_ns FROM keyed WHERE start_ns >= ? AND start_ns < ? ORDER BY start_ns LIMIT 1 OFFSET ?",
        [window.from_ns, window.until_ns, most],
    ).fetchall()
    return Window(name=window.name, from_ns=window.from_ns, until_ns=last[0][0] if last else window.until_ns)


def _joined(database: DuckDBPyConnection, key: int | None, windows: Sequence[Window]) -> dict[tuple[int, int], Bars]:
    """The bars of the table `keyed` by (rank, track): neighbours at most of `key`, outside of the windows."""
    alone = " OR ".join(
        f"{name} >= {each.from_ns} AND {name} < {each.until_ns}" for each in windows for name in ("start_ns", "before")
    )
    found = database.sql(f"""WITH grouped AS (SELECT *, sum(coalesce(key > {-1 if key is None else key}
            OR {alone or "false"}, true)::INT) OVER (PARTITION BY rank, track ORDER BY start_ns, number) AS bar
            FROM keyed)
        SELECT rank::BIGINT AS rank, track::BIGINT AS track, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
            count(*) AS operations, sum(bytes)::BIGINT AS bytes, sum(end_ns - start_ns)::BIGINT AS busy_ns,
            if(min(file_id) = max(file_id), min(file_id), -1)::BIGINT AS file_id,
            if(count(*) = 1, min("offset"), -1)::BIGINT AS "offset"
        FROM grouped GROUP BY rank, track, bar ORDER BY rank, track, bar""").to_arrow_table()
    columns = {name: found[name].to_numpy() for name in found.column_names}
    rank, track = columns.pop("rank"), columns.pop("track")
    edges = np.flatnonzero((np.diff(rank) != 0) | (np.diff(track) != 0)) + 1
    return {
        (int(rank[rows[0]]), int(track[rows[0]])): Bars(**{name: column[rows] for name, column in columns.items()})
        for rows in (np.split(np.arange(len(rank)), edges) if len(rank) else ())
    }
