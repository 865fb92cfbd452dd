"""Findings in words, each with its evidence, the threshold that it passed, and a remedy."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa

from dxt_replay.profiler_merge.analysis import findings_benchmark, findings_compute, findings_storage
from dxt_replay.profiler_merge.analysis.analyse import Analysis, analyse
from dxt_replay.profiler_merge.analysis.finding import SEVERITIES, Finding
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers.workers import ALONE, Workers

CODES = (
    "no-trace", "partial-trace", "not-traced", "small-reads", "small-writes", "small-chunks", "random-shared",
    "re-reads", "shared-reads", "rank-imbalance", "metadata-time", "input-bound", "no-overlap", "one-reader",
    "checkpoint-blocking", "warm-up", "mlperf-storage", "benchmark-figures",
)  # fmt: skip
"""All codes that a `Finding` can have."""

SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("code", "severity", "title", "evidence", "threshold", "remedy")),
        pa.field("at_stake_s", pa.float64()),
        pa.field("at_stake_pct", pa.float64()),
        pa.field("at_stake_of", pa.string()),
        pa.field("values", pa.string()),
        pa.field("files", pa.string()),
    ]
)
"""One row per finding; `values` is a JSON object, `files` has a path a line."""


def findings(capture: Capture, workers: Workers = ALONE) -> tuple[Finding, ...]:
    """Findings about a capture, the gravest first. Raises: CaptureError when it is damaged."""
    return findings_of(analyse(capture, workers=workers))


def findings_of(analysis: Analysis) -> tuple[Finding, ...]:
    """Findings about what `analyse` returned, the gravest first."""
    rules = (*findings_storage.RULES, *findings_compute.RULES, *findings_benchmark.RULES)
    found = [finding for rule in rules for finding in rule(analysis)]
    return tuple(sorted(found, key=_rank))


def _rank(finding: Finding) -> tuple[int, bool, float]:
    """Severity, then what is at stake; a warm-up, which a long run does not notice, comes last."""
    stake = float("inf") if finding.at_stake_s is None else finding.at_stake_s
    return SEVERITIES.index(finding.severity), finding.code == "warm-up", -stake


def findings_table(found: Iterable[Finding]) -> pa.Table:
    """The findings as a table of SCHEMA."""
    rows = [
        {
            **{name: getattr(finding, name) for name in SCHEMA.names[:9]},
            "values": json.dumps(dict(finding.values)),
            "files": "\n".join(finding.files),
        }
        for finding in found
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)
