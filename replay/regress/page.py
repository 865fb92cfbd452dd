"""The page of `dxt-replay regress --report X.html`: verdicts, a dot for each run, and all figures, without a script."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from dxt_replay.replay.regress.comparison import Regression
from dxt_replay.replay.regress.metrics import METRICS
from dxt_replay.replay.regress.sections import metric_text, regression_sections
from dxt_replay.replay.show.page.page import rendered
from dxt_replay.replay.show.section import Column, Kind, Section, microseconds, or_dash, percent
from dxt_replay.traces.units import format_count


def regress_page(result: Regression) -> str:
    """Verdicts, a dot for each run, figures, settings and all runs, without any script."""
    verdict, *tables = regression_sections(result)
    primary, metric = result.primary, result.metrics.get(result.primary)
    meaning = METRICS.get(primary, primary)
    text = metric_text(primary) if primary in METRICS else str
    rows = tuple(
        (
            str(number),
            str(run.pair) if run.pair else "warm-up",
            f"{run.side}, stopped" if run.stopped else run.side,
            or_dash(run.metrics.get(primary), text),
            or_dash((run.lag_us or {}).get("p99"), microseconds),
            format_count(run.failed),
            or_dash(run.resident_pct, percent),
        )
        for number, run in enumerate(result.runs, start=1)
    )
    heads = (
        Column(head="run"),
        "pair",
        Column(head="side", kind=Kind.TEXT),
        meaning,
        "lag p99",
        "failed",
        "cached before",
    )
    contents = {
        "title": result.headline,
        "subject": f"{result.setting.candidate} against {result.compared_with}",
        "sections": {"verdict": "Verdict", "figures": "Figures and settings", "runs": "All runs"},
        "verdict": result.verdict.value,
        "change": "" if metric is None else f"{100 * (metric.found.ratio - 1):+.1f} %",
        "meaning": meaning,
        "said": [row[0] for row in verdict.rows if row[0] != result.headline],
        "dots": None if metric is None else _dots(metric.baseline, metric.candidate, text, paired=not result.against),
        "tables": tables,
        "runs": Section(title="", columns=heads, rows=rows),
    }
    return rendered("regress.html.j2", {"schema_version": 1, **result.as_json()}, None, contents)


def _dots(
    baseline: Sequence[float], candidate: Sequence[float], text: Callable[[float], str], *, paired: bool
) -> dict[str, Any]:
    """Places of the dots of all runs in a picture of 100 by 100; those of a pair lie above each other."""
    low, high = min(*baseline, *candidate), max(*baseline, *candidate)
    span = (high - low) or high or 1.0
    low, high = low - 0.1 * span, high + 0.1 * span

    def height(value: float) -> float:
        return round(100 * (high - value) / (high - low), 2)

    columns = len(baseline) + (0 if paired else len(candidate))
    place = [round(100 * (each + 0.5) / columns, 2) for each in range(columns)]
    sides = {"baseline": (baseline, place), "candidate": (candidate, place if paired else place[len(baseline) :])}
    return {
        "dots": [
            {"side": side, "x": x, "y": height(value), "text": f"{side}, {text(value)}"}
            for side, (values, places) in sides.items()
            for value, x in zip(values, places, strict=False)
        ],
        "pairs": [(x, height(a), height(b)) for x, a, b in zip(place, baseline, candidate, strict=False)] * paired,
        "medians": [(side, height(statistics.median(values)), text(statistics.median(values)))
                    for side, (values, _) in sides.items()],
        "ticks": [(height(each), text(each)) for each in _round(low, high)],
    }  # fmt: skip


def _round(low: float, high: float) -> list[float]:
    """Two to five round numbers between two others."""
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step *= next((times for times in (5, 2) if (high - low) / (times * step) >= 2), 1)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
