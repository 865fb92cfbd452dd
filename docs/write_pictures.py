"""Draws the pictures of the pages into docs/pictures: `make pictures`.

They show the bundled recordings, the product's own figures of them, and the verdicts of `make bench-file-systems`.
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dxt_replay
from dxt_replay.replay.compare.verdict import STORAGE_FACTORS, similarity

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
from drawing import BLUE, FAINT, GREEN, GREY, GRID, INK, RED, YELLOW, Picture  # noqa: E402

NS_PER_MS = 1_000_000
WIDTH, LEFT = 760, 130


def timeline(job: dxt_replay.Capture) -> Picture:
    """Some steps of the bundled job imagenet, as the report's timeline has them."""
    begin, end = 6_463, 6_612
    picture = Picture("Some training steps of two ranks: reads, waits, compute and meetings over time", WIDTH, 250)
    operations, spans = dxt_replay.table(job, "operations"), dxt_replay.table(job, "spans")

    scale = (WIDTH - LEFT - 20) / (end - begin)

    def bars(rows: Any, top: float, height: float, colour: str) -> None:
        for start, stop in _together(rows, begin, end):
            picture.box(LEFT + (start - begin) * scale, top, (stop - start) * scale, height, colour)

    picture.text(16, 24, "A training job of two ranks: 150 ms of its 3.8 s", bold=True)
    picture.legend(LEFT, 48, [(BLUE, "read"), (RED, "input wait"), (GREY, "compute"), (YELLOW, "allreduce")])
    for rank in (0, 1):
        top = 64 + 64 * rank
        mine = spans[spans["rank"] == rank]
        picture.text(16, top + 17, f"rank {rank}: reads")
        picture.text(16, top + 43, "training loop")
        picture.box(LEFT, top + 3, WIDTH - LEFT - 20, 20, GRID, strong=0.35)
        bars(operations[(operations["rank"] == rank) & (operations["op"] == "read")], top + 3, 20, BLUE)
        for kind, colour in (("compute", GREY), ("collective", YELLOW), ("input_wait", RED)):
            bars(mine[mine["kind"] == kind], top + 28, 20, colour)
    _time_axis(picture, begin, end, 200)
    limit = dxt_replay.storage_limit(job).as_json()["limit_pct"]
    answer = f"Reads are short and early: infinitely fast storage would save this job {limit:.1f} %."
    picture.text(LEFT, 238, answer, size=12, colour=FAINT)
    return picture


def _together(rows: Any, begin: float, end: float, apart_ms: float = 0.2) -> list[tuple[float, float]]:
    """Starts and ends of the rows within (begin, end), ms; rows less than `apart_ms` apart are one."""
    joined: list[tuple[float, float]] = []
    for start_ns, end_ns in sorted(zip(rows["start_ns"], rows["end_ns"], strict=True)):
        start, stop = max(start_ns / NS_PER_MS, begin), min(end_ns / NS_PER_MS, end)
        if start >= stop:
            continue
        if joined and start - joined[-1][1] < apart_ms:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined


def _time_axis(picture: Picture, begin: float, end: float, y: float) -> None:
    """Milliseconds from `begin`."""
    scale = (WIDTH - LEFT - 20) / (end - begin)
    picture.line([(LEFT, y), (WIDTH - 20, y)], FAINT, thick=1)
    for passed in range(0, int(end - begin), 20):
        picture.line([(LEFT + passed * scale, y), (LEFT + passed * scale, y + 4)], FAINT, thick=1)
        picture.text(LEFT + passed * scale, y + 16, f"{passed} ms", size=11, colour=FAINT, anchor="middle")


def causal(job: dxt_replay.Capture) -> Picture:
    """Which read of rank 0 feeds which batch fetch: the model's own table, over the recorded times."""
    begin, end, rank = 6_440, 6_690, 0
    picture = Picture("Arrows lead from each group of reads to the batch fetch that it feeds", WIDTH, 230)
    scale = (WIDTH - LEFT - 20) / (end - begin)
    place = lambda time_ns: LEFT + (time_ns / NS_PER_MS - begin) * scale  # noqa: E731
    spans = dxt_replay.table(job, "spans")
    mine = spans[spans["rank"] == rank]
    fetches = mine[mine["kind"] == "input_wait"]["start_ns"].tolist()
    picture.text(16, 24, "What a read is for: three batches are made ahead of the loop", bold=True)
    picture.text(16, 69, "reads")
    picture.text(16, 159, "training loop")
    for kind, colour in (("compute", GREY), ("collective", YELLOW), ("input_wait", RED)):
        for start, stop in _together(mine[mine["kind"] == kind], begin, end):
            picture.box(LEFT + (start - begin) * scale, 144, (stop - start) * scale, 22, colour)
    rows = dxt_replay.table(job, "dependencies")
    rows = rows[(rows["rank"] == rank) & (rows["calls"] > 0)]
    for start_ns, needed_by, nbytes in zip(rows["start_ns"], rows["needed_by"], rows["bytes"], strict=True):
        if not begin <= start_ns / NS_PER_MS <= end or not nbytes:
            continue
        fetch = int(re.sub(r"\D", "", needed_by))
        picture.box(place(start_ns), 54, 3, 22, BLUE)
        picture.text(place(start_ns), 48, f"for {fetch}", size=11, colour=FAINT, anchor="middle")
        if fetches[fetch] / NS_PER_MS <= end:
            picture.line([(place(start_ns) + 1, 78), (place(fetches[fetch]), 142)], INK, arrow=True, thick=1)
    for fetch, start_ns in enumerate(fetches):
        if begin <= start_ns / NS_PER_MS <= end:
            picture.text(place(start_ns), 182, f"fetch {fetch}", size=11, colour=FAINT, anchor="middle")
    picture.legend(LEFT, 218, [(BLUE, "read"), (RED, "input wait"), (GREY, "compute"), (YELLOW, "allreduce")])
    return picture


def clocks(job: dxt_replay.Capture) -> Picture:
    """The offsets that each anchor of rank 0 allows, and those that all allow: 0 is the chosen offset."""
    spans, operations = dxt_replay.table(job, "spans"), dxt_replay.table(job, "operations")
    files = dxt_replay.table(job, "files")
    anchors = files[files["path"].str.contains("dxt-anchor")]["file_id"]
    writes = operations[(operations["rank"] == 0) & operations["file_id"].isin(anchors)]
    marks = spans[(spans["rank"] == 0) & (spans["name"] == "dxt_anchor")]
    allowed = [
        ((mark_start - start) / 1000, (mark_end - end) / 1000)
        for mark_start, mark_end, start, end in zip(
            marks["start_ns"], marks["end_ns"], writes["start_ns"], writes["end_ns"], strict=True
        )
    ]
    low, high = max(pair[0] for pair in allowed), min(pair[1] for pair in allowed)
    picture = Picture("Offsets of the clock that each of six anchors allows; their intersection is narrow", WIDTH, 236)
    picture.text(16, 24, "Which offsets between the two clocks does each anchor allow?", bold=True)
    place = lambda offset: LEFT + 305 + offset * 6.5  # noqa: E731
    picture.box(place(low), 38, place(high) - place(low), 156, GREEN, strong=0.35)
    for row, (start, end) in enumerate(allowed):
        picture.text(16, 57 + 25 * row, f"anchor {row + 1}")
        picture.box(place(start), 46 + 25 * row, place(end) - place(start), 14, BLUE)
    for offset in range(-40, 41, 20):
        picture.text(place(offset), 212, f"{offset:+d} us" if offset else "0", size=11, colour=FAINT, anchor="middle")
    together = f"All six allow an interval of {high - low:.1f} us (green); its middle is the offset, here 0."
    picture.text(LEFT, 230, together, size=12, colour=FAINT)
    return picture


RECORDED = ((0, 20), (40, 60), (80, 100))
"""Begin and end of three reads of one thread, ms."""


def operation() -> Picture:
    """Three reads, and the same on storage that takes three times as long, by pace."""
    picture = Picture("Three reads as recorded, and on slower storage at the paces timed, think and none", WIDTH, 300)
    picture.text(16, 24, "Three reads of one thread, and their replay on storage that is three times slower", bold=True)
    place = lambda time_ms: LEFT + time_ms * 2.6  # noqa: E731
    slow = [3 * (end - begin) for begin, end in RECORDED]
    rows: list[tuple[str, list[tuple[float, float, float]]]] = [("recorded", [(b, b, e) for b, e in RECORDED])]
    for pace in ("timed", "think", "none"):
        free, done, before = 0.0, [], None
        for (begin, end), takes in zip(RECORDED, slow, strict=True):
            think = 0.0 if before is None else begin - before
            due = {"timed": float(begin), "think": free + think, "none": free}[pace]
            start = max(due, free)
            done.append((due, start, start + takes))
            free, before = start + takes, end
        rows.append((pace, done))
    for row, (name, reads) in enumerate(rows):
        top = 44 + 56 * row
        picture.text(16, top + 21, name, bold=row > 0)
        for due, start, stop in reads:
            if start > due:
                picture.box(place(due), top + 26, place(start) - place(due) - 1, 6, YELLOW)
            picture.box(place(start), top + 6, place(stop) - place(start) - 1, 18, BLUE)
            picture.line([(place(due), top), (place(due), top + 34)], INK, thick=2)
    top = 44 + 56 * len(rows)
    picture.legend(LEFT, top + 6, [(INK, "due"), (YELLOW, "lag"), (BLUE, "latency")])
    picture.text(LEFT + 240, top + 6, "response = lag + latency", colour=FAINT)
    return picture


def fidelity(job: dxt_replay.Capture) -> Picture:
    """The cosine of ten factors after changes of different kinds and sizes, by the product's own function."""
    compared = dxt_replay.compare(job, job, different_runs=True)
    source = {name: factor.source for name, factor in compared.similarity.factors.items()}
    changes: dict[str, tuple[str, Callable[[str, float, float], float]]] = {
        "every factor k times as large": (GREEN, lambda _, value, k: value * k),
        "k times fewer bytes": (RED, lambda name, value, k: value / k if name == "bytes" else value),
        "storage k times slower": (BLUE, _slower),
    }
    picture = Picture("Cosine of ten factors against the size of a change", WIDTH, 274)
    picture.text(16, 24, "How far the cosine falls when a replay is wrong by a factor k", bold=True)
    across = lambda k: LEFT + math.log2(k) * 82  # noqa: E731
    down = lambda cosine: 50 + (1 - cosine) * 900  # noqa: E731
    for cosine in (1.0, 0.95, 0.9, 0.85, 0.8):
        picture.line([(LEFT, down(cosine)), (across(32), down(cosine))], GRID, thick=1)
        picture.text(LEFT - 10, down(cosine) + 4, f"{cosine:.2f}", size=12, colour=FAINT, anchor="end")
    picture.line([(LEFT, down(0.95)), (across(32), down(0.95))], INK, dashes="5 4", thick=1)
    for label, (colour, change) in changes.items():
        points = [
            (k, similarity(source, {name: change(name, value, k) for name, value in source.items()}).cosine or 0.0)
            for k in (2 ** (step / 4) for step in range(21))
        ]
        picture.line([(across(k), down(cosine)) for k, cosine in points], colour, thick=2.5)
        picture.text(across(32) + 8, down(points[-1][1]) + 4, label, colour=colour, size=12)
    for power in range(6):
        picture.text(across(2**power), down(0.78), f"k = {2**power}", size=12, colour=FAINT, anchor="middle")
    return picture


def _slower(name: str, value: float, k: float) -> float:
    """A factor on storage that takes k times as long."""
    if name not in STORAGE_FACTORS:
        return value
    return value * k if name == "io_time_s" else value / k


def verdicts() -> Picture:
    """The intervals of pictures/verdicts.csv: known changes of file systems, and what regress said."""
    rows: list[tuple[str, float, float, float]] = []
    for line in (FOLDER / "pictures" / "verdicts.csv").read_text(encoding="utf-8").splitlines()[1:]:
        change, workload, ratio, interval = line.split(";")
        low, high = map(float, interval.split(" to "))
        rows.append((f"{change}, {workload}", float(ratio.split()[0]), low, high))
    left, step = 300, 19
    picture = Picture("Ratio and interval of each known change of a file system", WIDTH, 90 + step * len(rows))
    picture.text(16, 24, "Known changes of a file system: candidate / baseline, and its interval", bold=True)
    place = lambda ratio: left + (math.log2(ratio) + 2.6) * 63  # noqa: E731
    bottom = 44 + step * len(rows)
    picture.box(place(1 / 1.05), 38, place(1.05) - place(1 / 1.05), bottom - 38, YELLOW, strong=0.5)
    for row, (name, ratio, low, high) in enumerate(rows):
        y = 52 + step * row
        colour = RED if low > 1 else GREEN if high < 1 else GREY
        picture.text(left - 16, y + 4, name, size=12, anchor="end")
        picture.line([(place(low), y), (place(high), y)], colour, thick=2.5)
        picture.dot(place(ratio), y, colour)
    for power in range(-2, 5):
        picture.text(place(2**power), bottom + 14, f"{2**power:g} x", size=12, colour=FAINT, anchor="middle")
    picture.legend(left, bottom + 36, [(RED, "regression"), (GREEN, "improvement"), (YELLOW, "threshold, 5 %")])
    return picture


def pictures() -> dict[str, str]:
    """The SVG of each picture by its name."""
    sample = dxt_replay.sample("imagenet")
    with tempfile.TemporaryDirectory() as folder:
        dxt_replay.merge(sample.log, f"{folder}/job.capture", profiles=sample.profiles)
        job = dxt_replay.open_capture(f"{folder}/job.capture")
        drawn = {each.__name__: each(job) for each in (timeline, causal, clocks, fidelity)}
    drawn |= {each.__name__: each() for each in (operation, verdicts)}
    return {name: picture.svg() for name, picture in drawn.items()}


if __name__ == "__main__":
    for name, svg in pictures().items():
        (FOLDER / "pictures" / f"{name}.svg").write_text(svg, encoding="utf-8")
