"""The results of the comparisons, as rows and as a table. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ALPHA = 0.05
"""Largest share of false alarms that `regress` promises."""

VERDICTS = {"slower": "regression", "faster": "improvement"}


def is_found(row: Mapping[str, Any]) -> bool:
    """Whether the verdict on a change has its known direction."""
    return bool(row["verdict"] == VERDICTS[row["expected"]])


def is_false_alarm(row: Mapping[str, Any]) -> bool:
    """Whether the verdict on two equal sides is a difference."""
    return row["verdict"] in VERDICTS.values()


def promise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """False alarms of a series: number, share, probability of at least as many at the promised share, and whether the
    promise is kept.

    It is kept if there are at most as many as promised, or no more than chance explains at that share."""
    alarms = sum(map(is_false_alarm, rows))
    chance = binomial_tail(alarms, len(rows), ALPHA)
    return {
        "comparisons": len(rows),
        "false_alarms": alarms,
        "promised_pct": 100 * ALPHA,
        "probability": chance,
        "kept": alarms <= ALPHA * len(rows) or chance >= ALPHA,
        "widest": max((max(row["ratio"], 1 / row["ratio"]) for row in rows), default=None),
    }


def binomial_tail(least: int, trials: int, share: float) -> float:
    """Probability of `least` or more successes."""
    terms = (math.comb(trials, n) * share**n * (1 - share) ** (trials - n) for n in range(least, trials + 1))
    return min(math.fsum(terms), 1.0)


def conclude(
    changes: Sequence[Mapping[str, Any]], same: Mapping[str, Sequence[Mapping[str, Any]]], skipped: Mapping[str, str]
) -> dict[str, Any]:
    """The whole result. `same`: A/A comparisons by the state of the machine. `skipped`: cases that were not measured,
    and why."""
    series = {state: promise(rows) for state, rows in same.items()}
    rows = [{**row, "found": is_found(row)} for row in changes]
    return {
        "changes": rows,
        "same": {state: list(found) for state, found in same.items()},
        "series": series,
        "skipped": dict(skipped),
        "passed": all(row["found"] for row in rows) and all(one["kept"] for one in series.values()),
    }


HEAD = (
    f"{'change':<34} {'workload':<8} {'expected':<8} {'verdict':<12} {'found':<5} {'time':>8} {'interval':>18}  "
    "fio, sequential read"
)


def change_line(row: Mapping[str, Any]) -> str:
    """One change as a line of the table."""
    fio = row.get("fio")
    beside = "" if fio is None else f"  {fio['verdict']}, {times(fio['ratio'])} ({interval(fio['ci'])})"
    found = "yes" if is_found(row) else "NO"
    return (
        f"{row['change']:<34} {row['workload']:<8} {row['expected']:<8} {row['verdict']:<12} {found:<5} "
        f"{times(row['ratio']):>8} {interval(row['ci']):>18}{beside}"
    )


def same_line(row: Mapping[str, Any]) -> str:
    """One A/A comparison as a line of progress."""
    return f"A/A {row['kind']:<6} {row['workload']:<8} {row['verdict']:<12} {times(row['ratio'])} {interval(row['ci'])}"


def table(result: Mapping[str, Any]) -> str:
    """The result as a table for people."""
    return "\n".join([HEAD, *map(change_line, result["changes"]), *_series(result["series"]), *_skipped(result)])


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a table in Markdown, for the documentation."""
    head = "| change | workload | expected | verdict | time | 95 % interval | fio, sequential read |"
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    for row in result["changes"]:
        fio = row.get("fio")
        beside = "" if fio is None else f"{fio['verdict']}, {times(fio['ratio'])} ({interval(fio['ci'])})"
        cells = (row["workload"], row["expected"], row["verdict"], times(row["ratio"]), interval(row["ci"]), beside)
        lines.append(f"| {row['change']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in [*_series(result["series"]), *_skipped(result)])])


def _series(series: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    for state, found in series.items():
        kept = "kept" if found["kept"] else "BROKEN"
        yield (
            f"{found['comparisons']} A/A comparisons, {state} machine: {found['false_alarms']} false alarms "
            f"(promised: at most {found['promised_pct']:g} %: {kept})"
        )


def _skipped(result: Mapping[str, Any]) -> Iterable[str]:
    return (f"{name}: not measured: {why}" for name, why in result["skipped"].items())


def times(ratio: float) -> str:
    """`1.52 x`"""
    return f"{ratio:.2f} x"


def interval(ci: Sequence[float | None]) -> str:
    """`1.40 to 1.61`"""
    low, high = ci
    return "-" if low is None or high is None else f"{low:.2f} to {high:.2f}"
