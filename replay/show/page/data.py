"""The numbers behind the charts of the HTML page, as plain JSON: bars of the timeline, and lag of a replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dxt_replay.replay.show.page.figures import step_bar_width
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import NS_PER_US

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.bars import Bars, LaneBars
    from dxt_replay.profiler_merge.analysis.overview import Overview

MOST_ROWS = 64
"""Most rows of a timeline. Ranks that do not fit are left out; the first rank is always there."""

_LOOP_ROWS = {
    "step": "steps",
    "compute": "loop",
    "input wait": "loop",
    "collective": "loop",
    "checkpoint": "loop",
    "evaluation": "loop",
    "pipeline": "input",
}
"""Row of a rank that each kind of span is drawn in."""

PATH_TAIL = 70
"""The charts show so many characters of a path: its end, because the files of a data set differ there."""

LAG_BINS = 300


def timeline_json(overview: Overview, origin_ns: int) -> dict[str, Any]:
    """Rows and tracks of one timeline; times in ns from `origin_ns`, starts as differences to the one before.

    A track without `operations`, `bytes` or `file` has one operation, no bytes or no file in each bar.
    """
    rows, places = _rows(overview)
    drawn = drawn_lanes(overview)
    tracks: list[dict[str, Any]] = []
    for (rank, kind), bars in overview.loops.tracks.items():
        if (rank, _LOOP_ROWS[kind]) in places:
            tracks.append({"row": places[rank, _LOOP_ROWS[kind]], "kind": kind, **_columns(bars, origin_ns)})
    for (rank, lane, kind), bars in drawn.tracks.items():
        tracks.append({"row": places[rank, f"lane {lane}"], "kind": kind, **_columns(bars, origin_ns)})
    ranks = sorted({rank for rank, _ in places})
    first, last = overview.course.edges_ns()[[0, -1]].tolist()
    return {
        "axis": "time since the first event [s]" if origin_ns else "time of the capture [s]",
        "rows": rows,
        "lanes": [name.startswith("lane ") for _, name in places],
        "ranks": ranks,
        "tracks": tracks,
        "from_ns": first - origin_ns,
        "until_ns": last - origin_ns,
        "files": {str(number): printable(overview.paths[number])[-PATH_TAIL:] for number in _files(drawn)},
        "windows": [
            {"name": window.name, "from_ns": window.from_ns - origin_ns, "until_ns": window.until_ns - origin_ns}
            for window in overview.lanes.windows
        ],
    }


_SCHEDULED = ("input wait", "collective", "checkpoint")


def with_schedule(replay: Overview, source: Overview) -> Overview:
    """The overview of a replay that kept to recorded times, with the waits, collectives and checkpoints of its source:
    the loop of such a replay does not wait itself, so its capture has none of them."""
    shift = replay.course.start_ns - source.course.start_ns
    kept = {
        (rank, kind): dataclasses.replace(bars, start_ns=bars.start_ns + shift, end_ns=bars.end_ns + shift)
        for (rank, kind), bars in source.loops.tracks.items()
        if kind in _SCHEDULED and (rank, kind) not in replay.loops.tracks and (rank, "step") in replay.loops.tracks
    }
    loops = dataclasses.replace(replay.loops, tracks={**replay.loops.tracks, **kept})
    return dataclasses.replace(replay, loops=loops)


def offsets_json(overview: Overview, origin_ns: int) -> list[dict[str, Any]]:
    """Operations of the busiest files for the view of offsets over time; times in ns from `origin_ns`, starts as
    differences to the one before."""
    return [
        {
            "file": printable(overview.paths[found.file_id])[-PATH_TAIL:],
            "operations": found.operations,
            "one_in": found.one_in,
            "rank": found.rank.tolist(),
            "start": np.diff(found.start_ns, prepend=origin_ns).tolist(),
            "length": (found.end_ns - found.start_ns).tolist(),
            "offset": found.offset.tolist(),
            "bytes": found.length.tolist(),
            "written": found.written.tolist(),
        }
        for found in overview.offsets
        if len(found.rank)
    ]


def step_times_json(overview: Overview, origin_ns: int) -> dict[str, list[int]]:
    """When each bar of the step figure began and ended on any rank, ns from `origin_ns`; `step`: its first step."""
    steps = overview.analysis.overlap.steps
    number, place = np.unique(steps["step"].to_numpy(), return_inverse=True)
    width = step_bar_width(len(number))
    group, count = place // width, -(-len(number) // width)
    start = steps["start_ns"].to_numpy() - origin_ns
    limits = np.iinfo(np.int64)
    first, last = np.full(count, limits.max), np.full(count, limits.min)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, start + steps["duration_ns"].to_numpy() + steps["evaluation_ns"].to_numpy())
    return {"step": number[::width].tolist(), "from_ns": first.tolist(), "until_ns": last.tolist()}


def drawn_ranks(overview: Overview) -> tuple[int, ...]:
    """Ranks that are drawn in the timeline: the shown ranks for which there is room."""
    return tuple(sorted({rank for rank, _ in _rows(overview)[1]}))


def drawn_lanes(overview: Overview) -> LaneBars:
    """The bars of the lanes in the timeline: those of `drawn_ranks`."""
    ranks = set(drawn_ranks(overview))
    tracks = {track: bars for track, bars in overview.lanes.tracks.items() if track[0] in ranks}
    return dataclasses.replace(overview.lanes, tracks=tracks)


def _rows(overview: Overview) -> tuple[list[str], dict[tuple[int, str], int]]:
    """Labels of the rows from the top, and the row of each (rank, name). A lane is labelled by its role if that is
    known: `r0 worker 2`."""
    names: dict[int, list[str]] = {}
    for rank, kind in overview.loops.tracks:
        names.setdefault(rank, []).append(_LOOP_ROWS[kind])
    for rank, lane, _ in overview.lanes.tracks:
        names.setdefault(rank, []).append(f"lane {lane}")
    rows: list[str] = []
    places: dict[tuple[int, str], int] = {}
    for rank in sorted(names):
        own = list(dict.fromkeys(names[rank]))
        if rows and len(rows) + len(own) > MOST_ROWS:
            break
        for name in own:
            places[rank, name] = len(rows)
            role = overview.roles.get((rank, int(name[5:]))) if name.startswith("lane ") else None
            rows.append(f"r{rank} {name if role is None else name.replace('lane', role)}")
    return rows, places


def _columns(bars: Bars, origin_ns: int) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "start": np.diff(bars.start_ns, prepend=origin_ns).tolist(),
        "length": (bars.end_ns - bars.start_ns).tolist(),
    }
    if (bars.operations != 1).any():
        columns["operations"] = bars.operations.tolist()
        columns["idle"] = np.maximum(bars.end_ns - bars.start_ns - bars.busy_ns, 0).tolist()
    if bars.bytes.any():
        columns["bytes"] = bars.bytes.tolist()
    if (bars.file_id >= 0).any():
        columns["file"] = bars.file_id.tolist()
    if (bars.offset >= 0).any():
        columns["offset"] = bars.offset.tolist()
    return columns


def _files(lanes: LaneBars) -> list[int]:
    found = np.unique(np.concatenate([np.zeros(0, np.int64), *(bars.file_id for bars in lanes.tracks.values())]))
    numbers: list[int] = found[found >= 0].tolist()
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LagCourse:
    """Lag of operations, in bins of `bin_ns` from `start_ns`: arrays (bins,), nan where none was due.
    An operation counts in the bin in which it was due."""

    start_ns: int
    bin_ns: int
    mean_us: np.ndarray
    max_us: np.ndarray


def lag_course(replay: Capture, bins: int = LAG_BINS) -> LagCourse | None:
    """Lag (begin - due) of a replay over time; None where no operation had a due time. Two passes over two columns.

    Raises: CaptureError when a part is damaged.
    """
    limits = [(int(due.min()), int(due.max())) for due, _ in _due_and_lag(replay)]
    if not limits:
        return None
    first, last = min(low for low, _ in limits), max(high for _, high in limits)
    width = (last - first) // bins + 1
    count, total, most = np.zeros(bins), np.zeros(bins), np.full(bins, -np.inf)
    for due, lag in _due_and_lag(replay):
        place = (due - first) // width
        count += np.bincount(place, minlength=bins)
        total += np.bincount(place, weights=lag, minlength=bins)
        np.maximum.at(most, place, lag)
    with np.errstate(invalid="ignore"):
        mean = total / np.where(count, count, np.nan)
    return LagCourse(
        start_ns=first,
        bin_ns=width,
        mean_us=mean / NS_PER_US,
        max_us=np.where(count > 0, most, np.nan) / NS_PER_US,
    )


def _due_and_lag(replay: Capture) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    for batch in replay.operations(columns=["start_ns", "due_ns"]):
        due = batch.column("due_ns")
        if due.null_count < len(due):
            known = due.is_valid().to_numpy(zero_copy_only=False)
            times = due.fill_null(0).to_numpy()[known]
            yield times, batch.column("start_ns").to_numpy()[known] - times
