"""Findings in words, each with its evidence, the threshold that it exceeds, and a remedy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

import pyarrow as pa

from dxt_replay.profiler_merge.analysis import findings_benchmark, findings_compute, findings_counted, findings_storage
from dxt_replay.profiler_merge.analysis.analyse import Analysis, analyse
from dxt_replay.profiler_merge.analysis.finding import SEVERITIES, Finding, Stake
from dxt_replay.profiler_merge.analysis.findings_compute import LOOP, MOSTLY_STORAGE_PCT
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.layers import called
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_S, format_duration
from dxt_replay.traces.workers import ALONE, Workers

SCHEMA = TABLES["findings"].schema
"""One row per finding; `values` is a JSON object, `files` has one path per line."""


def findings(
    capture: Capture, workers: Workers = ALONE, saved_s: tuple[float, float] | None = None
) -> tuple[Finding, ...]:
    """Findings about a capture, worst first. `saved_s`: as of `Analysis`.

    Raises: CaptureError when it is damaged.
    """
    return findings_of(analyse(capture, workers=workers, saved_s=saved_s))


def findings_of(analysis: Analysis) -> tuple[Finding, ...]:
    """Findings about the result of `analyse`, worst first."""
    rules = (*findings_storage.RULES, *findings_counted.RULES, *findings_compute.RULES, *findings_benchmark.RULES)
    found = (_within_limit(finding, analysis) for rule in rules for finding in rule(analysis))
    return tuple(sorted(filter(None, found), key=_rank))


def most_saved_s(analysis: Analysis, of: str) -> float:
    """Upper bound of what infinitely fast storage saves of the training loop, or of the run, in s; inf where not known.

    For the loop it is the first figure of `summary`. For the time before and after the loop there is no bound.
    """
    summary, loop = analysis.summary, analysis.summary.loop
    run_s = summary.job.run_time_s or float("inf")
    if loop is None:
        by_counters = called(summary.counted_times, summary.job.nprocs)
        counted_s = 0.0 if by_counters is None else by_counters[1]["slowest_s"] or run_s
        return min(max(summary.in_flight_s + summary.other_io_s, counted_s), run_s)
    saved_s = loop.storage_gain_s if analysis.saved_s is None else analysis.saved_s[1]
    return saved_s if of == LOOP else saved_s + max(run_s - loop.loop_s, 0.0)


def _within_limit(finding: Finding, analysis: Analysis) -> Finding | None:
    """The finding with at most the saving of infinitely fast storage at stake; None if that is next to nothing."""
    loop, stake_s, of = analysis.summary.loop, finding.at_stake_s, finding.at_stake_of
    most_s = most_saved_s(analysis, of)
    if stake_s is None or stake_s <= most_s or not _gains_from_storage(finding):
        return finding
    whole_s = loop.loop_s if loop is not None and of == LOOP else analysis.summary.job.run_time_s or 0.0
    stake = Stake(seconds=most_s, whole_s=whole_s, of=of)
    if not stake.matters and finding.code != "input-bound":
        return None
    said = f"Infinitely fast storage would save at most {format_duration(most_s * NS_PER_S)} of the {of}."
    return dataclasses.replace(finding, evidence=f"{finding.evidence} {said}", **stake.columns())


def _gains_from_storage(finding: Finding) -> bool:
    """Whether faster storage would help, rather than faster decoding or saving in the background."""
    if finding.code == "input-bound":
        shares = (finding.values.get(name, 0.0) for name in ("io_in_wait_pct", "saved_of_wait_pct"))
        return max(shares) >= MOSTLY_STORAGE_PCT
    return finding.code not in ("checkpoint-blocking", "warm-up")


def _rank(finding: Finding) -> tuple[int, bool, float]:
    """Severity, then the time at stake. A warm-up comes last, since it does not matter in a long run."""
    stake = float("inf") if finding.at_stake_s is None else finding.at_stake_s
    return SEVERITIES.index(finding.severity), finding.code == "warm-up", -stake


def findings_table(found: Iterable[Finding]) -> pa.Table:
    """The findings as a table of SCHEMA."""
    rows = [
        {**finding.as_json(), "values": json.dumps(dict(finding.values)), "files": "\n".join(finding.files)}
        for finding in found
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)
