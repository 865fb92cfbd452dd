"""Which predictions hold, and their table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

LIMIT_PCT = 10.0
"""A prediction holds within this per cent of the median truth, or between the shortest and the longest true run."""


def error_pct(seconds: float, truths: Sequence[float]) -> float:
    """Difference from the median truth, per cent of it."""
    return 100.0 * (seconds / median(truths) - 1.0)


def is_right(seconds: float, truths: Sequence[float]) -> bool:
    """Whether a prediction holds."""
    return abs(error_pct(seconds, truths)) <= LIMIT_PCT or min(truths) <= seconds <= max(truths)


def holds_truth(interval: Sequence[float], truths: Sequence[float]) -> bool:
    """Whether the median truth lies in the interval of a simulation."""
    return interval[0] <= median(truths) <= interval[1]


def judge(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table with its verdicts.

    `pipeline`, `storage`: those of the runs `truth_s`.
    `predicted`: by the storage of the recording, each with `replayed_s` and, if requested, `simulated` (`seconds`,
    `interval_s`), or `failed` instead.
    """
    truths = row["truth_s"]
    judged = {}
    for source, found in row["predicted"].items():
        judged[source] = dict(found)
        if truths and "replayed_s" in found:
            seconds = found["replayed_s"]
            judged[source] |= {"error_pct": error_pct(seconds, truths), "right": is_right(seconds, truths)}
        if truths and "simulated" in found:
            simulated = found["simulated"]
            judged[source]["simulated"] = simulated | {
                "error_pct": error_pct(simulated["seconds"], truths),
                "right": is_right(simulated["seconds"], truths),
                "holds_truth": holds_truth(simulated["interval_s"], truths),
            }
    return {**row, "predicted": judged}


def count(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Number of predictions in judged rows and of those that hold, separately for recordings of `another` storage and
    of the `same`.

    A prediction that failed does not hold; nor does one of a job that failed."""
    counts = {
        kind: {"all": 0, "right": 0, "simulated": 0, "simulated_right": 0, "intervals_with_truth": 0}
        for kind in ("another", "same")
    }
    for row in rows:
        for source, found in row["predicted"].items():
            counted = counts["same" if source == row["storage"] else "another"]
            counted["all"] += 1
            counted["right"] += bool(found.get("right"))
            simulated = found.get("simulated")
            if simulated is not None or "simulation_failed" in found:
                counted["simulated"] += 1
                counted["simulated_right"] += bool((simulated or {}).get("right"))
                counted["intervals_with_truth"] += bool((simulated or {}).get("holds_truth"))
    return counts


HEAD = (
    f"{'pipeline':<21} {'storage':<9} {'truth min/median/max':>20}  {'recorded on':<11} {'its loop':>8} "
    f"{'run --pace steps':>20}  {'simulate':>7} {'':>6} {'interval':>14}   storage limits, as the tool says"
)


def lines(row: Mapping[str, Any]) -> list[str]:
    """A judged row for people: a line for each recording that predicts it."""
    what = f"{row['pipeline']:<21} {row['storage']:<9} {_truth(row):>20}"
    if not row["predicted"]:
        return [f"{what}  {row['failed']}" if row.get("failed") else what]
    return [
        f"{what if number == 0 else ' ' * len(what)}  {_prediction(source, found)}".rstrip()
        for number, (source, found) in enumerate(row["predicted"].items())
    ] + ([f"{' ' * len(what)}  {row['failed']}"] if row.get("failed") else [])


def _truth(row: Mapping[str, Any]) -> str:
    truths = row["truth_s"]
    return f"{min(truths):.2f}/{median(truths):.2f}/{max(truths):.2f}" if truths else "failed"


def _prediction(source: str, found: Mapping[str, Any]) -> str:
    if "failed" in found:
        return f"{source:<11} failed: {found['failed']}"
    replayed = f"{found['replayed_s']:.2f} {_verdict(found)}" if "replayed_s" in found else ""
    simulated = found.get("simulated")
    if simulated:
        low, high = simulated["interval_s"]
        inside = "" if "holds_truth" not in simulated else " +" if simulated["holds_truth"] else " -"
        beside = f"{simulated['seconds']:>7.2f} {_verdict(simulated)} {f'{low:.2f}-{high:.2f}':>12}{inside:<2}"
    else:
        beside = f"{'failed' if 'simulation_failed' in found else '-':>7} {'':>6} {'':>14}"
    return f"{source:<11} {found['recorded_s']:>7.2f}s {replayed:>20}  {beside}   {_opinion(found.get('opinion'))}"


def _verdict(found: Mapping[str, Any]) -> str:
    if "error_pct" not in found:
        return ""
    return f"{found['error_pct']:+.0f} % {'ok' if found['right'] else 'NO'}"


def _opinion(opinion: Mapping[str, Any] | None) -> str:
    if not opinion:
        return ""
    if opinion.get("limit_pct") is None:
        return f"not known: {opinion.get('reason')}"
    reason = f" ({opinion['reason']})" if opinion.get("reason") else ""
    return f"{opinion['limit_pct']:.1f} %{reason}"


def conclusion(rows: Sequence[Mapping[str, Any]]) -> str:
    """The last line."""
    counts = count(rows)
    another, same = counts["another"], counts["same"]
    text = (
        f"{another['right']} of {another['all']} predictions from another storage are within {LIMIT_PCT:g} % or inside "
        f"the job's own spread, {same['right']} of {same['all']} from the same storage"
    )
    simulated = {name: another[name] + same[name] for name in another}
    if simulated["simulated"]:
        text += (
            f"; simulated: {another['simulated_right']} of {another['simulated']} and {same['simulated_right']} of "
            f"{same['simulated']}, with the truth in {simulated['intervals_with_truth']} of {simulated['simulated']} "
            "intervals"
        )
    return text


def table(result: Mapping[str, Any]) -> str:
    """The result as a table for people."""
    notes = [f"{name}: {about}" for name, about in result["storages"].items()]
    skipped = [f"{name}: not measured: {why}" for name, why in result["skipped"].items()]
    body = [line for row in result["rows"] for line in lines(row)]
    return "\n".join(
        [*notes, f"recorded with {result['tracer']}", "", HEAD, *body, "", *skipped, conclusion(result["rows"])]
    )
