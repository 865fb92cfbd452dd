"""What `dxt-replay regress` prints for a person, from the object that `--json` prints. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replay.regression.run_metrics import METRICS
from replay.show.section import Section
from traces.units import NS_PER_S, NS_PER_US, format_duration

_UNITS: Mapping[str, Callable[[float], str]] = {
    "s": lambda value: format_duration(value * NS_PER_S),
    "us": lambda value: format_duration(value * NS_PER_US),
    "MiB/s": lambda value: f"{value:,.4g} MiB/s",
}


def regression_sections(result: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay regress`."""
    sections = [_metrics(result), _setting(result)]
    notes = [*(f"not valid: {text}" for text in result["obstacles"]), *result["warnings"]]
    if notes:
        sections.append(Section(title="Warnings", rows=tuple((text,) for text in notes), prose=True))
    sections.append(_verdict(result))
    return [section for section in sections if section.rows]


def _metrics(result: Mapping[str, Any]) -> Section:
    return Section(
        title="Medians, and the ratio of pairs (candidate / baseline)",
        columns=("", "baseline", "candidate", "ratio", "interval", "p", "verdict"),
        rows=tuple(_metric_row(name, metric, result["primary"]) for name, metric in result["metrics"].items()),
        notes=(f"* decides; of the others p is Holm's, over {max(len(result['metrics']) - 1, 0)} metrics",),
    )


def _metric_row(name: str, metric: Mapping[str, Any], primary: str) -> tuple[str, ...]:
    text = _UNITS[metric["unit"]]
    low, high = metric["ci"]
    return (
        f"{METRICS[name].meaning}{' *' if name == primary else ''}",
        text(statistics.median(metric["baseline"])),
        text(statistics.median(metric["candidate"])),
        f"{metric['ratio']:.3f}",
        "-" if low is None else f"{low:.3f}..{high:.3f}",
        f"{metric['p_adjusted']:.2g}",
        metric["verdict"],
    )


def _setting(result: Mapping[str, Any]) -> Section:
    counted = [run for run in result["runs"] if run["pair"]]
    pace = f"{result['pace']}, speed {result['speed']:g}"
    rows = [
        ("baseline", result["baseline"]),
        ("candidate", result["candidate"]),
        ("pace", pace),
        ("order", f"{_order(result['order'])} (seed {result['seed']}, {result['warmup']} warm-up runs a side)"),
        ("page cache", f"{result['cache']['policy']}; resident before: {_residency(counted)}"),
    ]
    return Section(title="Runs", rows=tuple(rows), prose=True)


def _order(order: Sequence[str]) -> str:
    """Pairs as `BC`, `CB` ..."""
    letters = "".join(side[0].upper() for side in order)
    return " ".join(letters[place : place + 2] for place in range(0, len(letters), 2)) or "none"


def _residency(runs: Sequence[Mapping[str, Any]]) -> str:
    told = []
    for side in ("baseline", "candidate"):
        shares = [run["cache"]["resident_before_pct"] for run in runs if run["side"] == side]
        known = [share for share in shares if share is not None]
        told.append(f"{side} {min(known):.0f} to {max(known):.0f} %" if known else f"{side} unknown")
    return ", ".join(told)


def _verdict(result: Mapping[str, Any]) -> Section:
    metric = result["metrics"].get(result["primary"])
    detectable = None if metric is None else metric["minimum_detectable_pct"]
    notes = [result["rule"]["text"]]
    if detectable is not None:
        pairs = len(metric["baseline"]) if metric else 0
        notes.insert(0, f"{pairs} pairs of this spread tell a change of {detectable:.1f} % from none, 8 times in 10")
    return Section(
        title="Verdict",
        rows=((result["primary"], result["verdict"], result["reason"]),),
        prose=True,
        notes=tuple(notes),
    )
