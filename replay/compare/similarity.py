"""The similarity of the DLIO paper (CCGrid 2021, Figure 8): ten factors, scaled by the larger side, and one cosine.

It is scale invariant: ten times slower in every factor is still 1.0. Hence the other blocks of a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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


def similarity(source: Mapping[str, float], replay: Mapping[str, float]) -> Similarity:
    """Compare two sides factor by factor; both have the same names and no negative values."""
    compared = {}
    for name, here in source.items():
        there, larger = replay[name], max(here, replay[name])
        compared[name] = Factor(source=here, replay=there, difference=(here - there) / larger if larger > 0 else None)
    workload = [factor for name, factor in compared.items() if name not in STORAGE_FACTORS]
    return Similarity(cosine=_cosine(compared.values()), workload_cosine=_cosine(workload), factors=compared)


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
