"""Figures of the DLIO paper (Devarajan et al., CCGrid 2021), one command each.

    python -m benchmarks.paper_figures --figure 9a

generates the figure's workload, changes the parameter that the figure varies, simulates each variant on a file system
like the paper's, and prints it beside what the paper and its notebooks printed. README.md has the outcome.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import dxt_replay
from benchmarks.paper_figures.figures import (
    APPLICATIONS,
    GIB,
    NODES,
    RANKS_PER_NODE,
    SCALED,
    STORAGE,
    SWEEPS,
    PagePoint,
    Sweep,
    sweep_pages,
)
from dxt_replay.workloads.source import read_workload

FLAT = 0.03
"""Relative difference from the best time up to which a time counts as equally good: job times of a minute in whole
seconds resolve no less."""


class Outcome(NamedTuple):
    """A point. io_s: durations of a rank's operations, mean over ranks. reads, gib: of all ranks. stored_s: time of
    elapsed_s that infinitely fast storage would save."""

    at: str
    elapsed_s: float
    stored_s: float
    io_s: float
    reads: int
    gib: float


def outcomes(sweep: Sweep, folder: Path, storage: str | None = None) -> list[Outcome]:
    """All points of a panel, simulated on `storage`, or on the panel's own. Captures lie in `folder` for a while."""
    found: list[Outcome] = []
    base, point, made = folder / "base.capture", folder / "point.capture", None
    for at in sweep.points:
        change = sweep.change(at)
        keys = change if isinstance(change, list) else []
        if made != keys:
            overrides = [*sweep.overrides, *keys]
            dxt_replay.generate(sweep.source, sweep.ranks, base, overrides=overrides, force=True)
            made = keys
        options = change if isinstance(change, dict) else {}
        if options:
            dxt_replay.transform(base, point, force=True, **options)
        found.append(simulated(point if options else base, at, storage or sweep.storage))
    return found


def scaling(name: str, folder: Path, storage: str, nodes: Sequence[int] = NODES) -> list[Outcome]:
    """An application on each number of nodes, with the same data."""
    _, workload, overrides = APPLICATIONS[name]
    found, capture = [], folder / "scaled.capture"
    for count in nodes:
        dxt_replay.generate(workload, count * RANKS_PER_NODE, capture, overrides=list(overrides), workers=2, force=True)
        found.append(simulated(capture, str(count), storage))
    return found


def simulated(capture: Path, at: str, storage: str) -> Outcome:
    """The result of simulating a capture on `storage`."""
    found = dxt_replay.simulate(capture, storage, runs=1).prediction.as_json()
    operations: dict[str, Any] = found["requests"]["by_operation"]
    reads = operations.get("read", {"operations": 0, "bytes": 0})
    return Outcome(
        at,
        found["elapsed_s"],
        max(0.0, found["elapsed_s"] - found["free_storage_s"]),
        sum(each["operations"] * each["mean_us"] for each in operations.values()) / 1e6 / found["ranks"],
        reads["operations"],
        reads["bytes"] / GIB,
    )


def optima(points: Sequence[str], elapsed: Sequence[float], io: Sequence[float], base_at: str) -> dict[str, Any]:
    """Place and gain over the base of the least time and the least I/O, and the point before which the I/O falls
    most."""
    best, base = min(elapsed), list(points).index(base_at)
    falls = [before / after for before, after in pairwise(io)]
    jump = max(range(len(falls)), key=falls.__getitem__)
    return {
        "best_elapsed": points[list(elapsed).index(best)],
        "flat": [at for at, time in zip(points, elapsed, strict=True) if time <= best * (1 + FLAT)],
        "gain_elapsed": round(elapsed[base] / best, 3),
        "best_io": points[list(io).index(min(io))],
        "gain_io": round(io[base] / min(io), 3),
        "io_jump_at": points[jump + 1],
        "io_jump": round(falls[jump], 2),
    }


def verdict(sweep: Sweep, found: Sequence[Outcome], pages: dict[str, PagePoint]) -> dict[str, Any]:
    """Place and gain of the optimum, simulated and in the notebooks, and the ratios of reads and bytes to theirs."""
    points = [each.at for each in found]
    here = optima(points, [each.elapsed_s for each in found], [each.io_s for each in found], sweep.base_at)
    result: dict[str, Any] = {"printed": sweep.printed, "here": here}
    if pages:
        times = [page.job_s for page in pages.values()], [page.io_s for page in pages.values()]
        result["pages"] = optima(list(pages), *times, sweep.base_at)
        both = [(each, pages[each.at]) for each in found if each.at in pages]
        for name in ("reads", "gib"):
            ratios = [getattr(each, name) / getattr(page, name) for each, page in both]
            result[f"{name}_over_pages"] = [round(min(ratios), 4), round(max(ratios), 4)]
    return result


def conditions(sweep: Sweep) -> str:
    """What the paper does not print: format and fitted times, * where only this panel has them."""
    base, here = read_workload(sweep.source).workload, read_workload(sweep.source, sweep.overrides).workload
    pairs = (
        ("compute of a step, s", base.train.computation_time, here.train.computation_time),
        ("preprocessing of a sample, s", base.reader.preprocess_time, here.reader.preprocess_time),
    )
    times = "; ".join(f"{name}: {mine.mean_s:g}{'' if mine == common else '*'}" for name, common, mine in pairs)
    there = base.dataset.format
    return f"format here: {here.dataset.format}, there: {there}; {times}; chosen to meet: {sweep.fitted_to}"


def sweep_table(sweep: Sweep, found: Sequence[Outcome], pages: dict[str, PagePoint]) -> str:
    """A panel: one line for each point, simulated and as its page prints it."""
    lines = [f"{sweep.varies:28} elapsed s   I/O s       reads  GiB read   page: job s   I/O s       reads     GiB"]
    for each in found:
        page = pages.get(each.at)
        there = f"{page.job_s:14g}{page.io_s:8g}{page.reads:12,}{page.gib:8g}" if page else ""
        lines.append(f"{each.at:28}{each.elapsed_s:10.2f}{each.io_s:8.2f}{each.reads:12,}{each.gib:10.3f}{there}")
    return "\n".join(lines)


def scaling_table(found: Sequence[Outcome]) -> str:
    """A line for each number of nodes. efficiency: of the ideal speed-up over the first, 1 is linear."""
    lines = ["nodes     ranks   elapsed s     ideal s  efficiency  storage costs s         reads  GiB read"]
    for each in found:
        ideal = found[0].elapsed_s * int(found[0].at) / int(each.at)
        lines.append(
            f"{each.at:8}{int(each.at) * RANKS_PER_NODE:7,}{each.elapsed_s:12.3f}{ideal:12.3f}"
            f"{ideal / each.elapsed_s:12.2f}{each.stored_s:17.3f}{each.reads:14,}{each.gib:10.2f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", action="append", choices=[*SWEEPS, *SCALED], help="repeatable; default: all")
    parser.add_argument("--storage", help="storage model instead of the figure's own: a shipped name or a file")
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES, help="of Figures 14 and 15")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each figure")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dxt-replay-figures-") as name:
        for figure in given.figure or [*SWEEPS, *SCALED]:
            if figure in SCALED:
                curves = {
                    each: scaling(each, Path(name), given.storage or STORAGE, given.nodes)
                    for each, (of, *_) in APPLICATIONS.items()
                    if of == figure
                }
                result: dict[str, Any] = {"printed": SCALED[figure], "applications": curves}
                text = "\n".join(f"{each}\n{scaling_table(found)}" for each, found in curves.items())
            else:
                sweep, pages = SWEEPS[figure], sweep_pages().get(figure, {})
                points = outcomes(sweep, Path(name), given.storage)
                result = verdict(sweep, points, pages)
                text = "\n".join([conditions(sweep), sweep_table(sweep, points, pages)])
                text = "\n".join([text, *(f"  {key}: {value}" for key, value in result.items())])
                result["points"] = [each._asdict() for each in points]
            print(json.dumps({"figure": figure, **result}) if given.json else f"\nFigure {figure}\n{text}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
