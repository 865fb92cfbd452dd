"""The similarity of the DLIO paper (CCGrid 2021, Figure 8): ten factors, scaled by the larger side, and one cosine.

It is scale invariant: ten times slower in every factor is still 1.0. Hence the other blocks of a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dxt_replay.traces.measures.access_pattern import AccessCounts
from dxt_replay.traces.measures.io_totals import IoTotals
from dxt_replay.traces.units import NS_PER_S

WEAKNESS = "scale invariant, so weak: a replay slower by the same ratio in every factor still scores 1"

STORAGE_FACTORS = frozenset({"io_time_s", "bandwidth_median", "bandwidth_mean"})
"""Factors that the storage and the cache decide; a replay reproduces the other seven, the workload's, anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One factor of both sides. `difference`: (source - replay) / the larger, -1 to 1; None where both are 0."""

    source: float
    replay: float
    difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """`cosine`: of the factors that are not 0 on both sides; None when all are.

    `workload_cosine`: without STORAGE_FACTORS. On faster or slower storage than the source's, a replay keeps this one.
    """

    cosine: float | None
    workload_cosine: float | None
    factors: Mapping[str, Factor]


def factors(io: IoTotals, pattern: AccessCounts, ranks: int) -> dict[str, float]:
    """The ten factors of one side, all from operations; `ranks` of the job share the I/O time. 0 where undefined."""
    size, bandwidth = io.size_bytes, io.bandwidth_mib_s
    found = {
        "io_time_s": io.total("sum_ns") / NS_PER_S / max(ranks, 1),
        "bytes": io.bytes_moved,
        "files": int(io.files_used.sum()),
        "transfer_size_median": size.median,
        "transfer_size_mean": size.mean,
        "transfer_size_max": size.maximum,
        "bandwidth_median": bandwidth.median,
        "bandwidth_mean": bandwidth.mean,
        "sequential_pct": pattern.sequential_pct,
        "consecutive_pct": pattern.consecutive_pct,
    }
    return {name: 0 if value is None or math.isnan(value) else value for name, value in found.items()}


def similarity(source: Mapping[str, float], replay: Mapping[str, float]) -> Similarity:
    """Compare two sides factor by factor; both have the same names and no negative values."""
    compared = {name: _factor(source[name], replay[name]) for name in source}
    workload = [factor for name, factor in compared.items() if name not in STORAGE_FACTORS]
    return Similarity(cosine=_cosine(compared.values()), workload_cosine=_cosine(workload), factors=compared)


def _factor(source: float, replay: float) -> Factor:
    larger = max(source, replay)
    return Factor(source=source, replay=replay, difference=(source - replay) / larger if larger > 0 else None)


def _cosine(compared: Iterable[Factor]) -> float | None:
    """Cosine of the two sides, each factor divided by the larger of its two values."""
    pairs = [
        (factor.source / larger, factor.replay / larger)
        for factor in compared
        if (larger := max(factor.source, factor.replay)) > 0
    ]
    if not pairs:
        return None
    product = math.fsum(a * b for a, b in pairs)
    norms = math.sqrt(math.fsum(a * a for a, _ in pairs)) * math.sqrt(math.fsum(b * b for _, b in pairs))
    return min(product / norms, 1.0) if norms > 0 else 0.0
