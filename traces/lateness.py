"""The rules by which a replayer counts as late: they compare its lag with the best that the machine can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dxt_replay.traces.replay_record import PERCENTILES
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from dxt_replay.traces.measures.distribution import Distribution

LATE_RATIO, LATE_US, MOST_ALLOWED_US = 10.0, 1_000.0, 500_000.0
"""The p99 of a lag counts as late beyond this many times the p99 of the machine's jitter, and beyond LATE_US. Beyond
MOST_ALLOWED_US it always counts as late: a thread that wakes seconds late lacks a processor because the replay's own
lanes use them."""


OWN_LOAD_PCT = 80.0
"""Share of the processors above which the replay itself keeps an idle thread beside it from waking in time."""


LEAST_STALL_NS = 100 * NS_PER_MS
"""Shorter times in which a process got no processor are its share of a busy machine (`replay.engine.issue`)."""

DISTURBED_PCT = 1.0
"""Share of a run, per cent, that the machine may stand still before its times are not judged."""


def machine_jitter_us(
    before: Mapping[str, float] | None, during: Mapping[str, float] | None, processors_pct: float | None
) -> Mapping[str, float] | None:
    """Percentiles in us of the jitter that the machine has without the replay; None where it is unknown.

    `before`, `during`: the lag of an idle thread before and beside the run. `processors_pct`: share of the machine's
    processors that the replay took. If it took nearly all, the replay caused the jitter during the run.
    """
    loaded = processors_pct is not None and processors_pct >= OWN_LOAD_PCT
    return before if before is not None and loaded else during


def allowed_lag_us(jitter_us: Mapping[str, float] | None) -> float:
    """The largest p99 of a lag (us) that counts as on time.

    `jitter_us`: percentiles of the lag of an idle thread on the same machine; None where it was not measured.
    """
    return min(max(LATE_US, LATE_RATIO * (jitter_us or {}).get("p99", 0.0)), MOST_ALLOWED_US)


def disturbed(stood_still_s: float, elapsed_s: float, share_pct: float = DISTURBED_PCT) -> str | None:
    """`disturbed: stood still for 3.0 s`, where that exceeds `share_pct` of the run; else None."""
    if stood_still_s <= 0 or 100 * stood_still_s <= share_pct * elapsed_s:
        return None
    return f"disturbed: stood still for {stood_still_s:.{1 if stood_still_s >= 1 else 2}f} s"


def kept_times_limit_us(recorded_elapsed_s: float, share_pct: float, allowed_us: float) -> float:
    """The largest p99 of the lag (us) with which a replay kept the recorded times.

    `share_pct`: share of the recorded time, in per cent; `allowed_us`: the limit of `allowed_lag_us`, for a short run.
    """
    return max(recorded_elapsed_s * NS_PER_S / NS_PER_US * share_pct / 100, allowed_us)


def percentiles_us(nanoseconds: Distribution) -> dict[str, float] | None:
    """p50, p90, p99 and max in us; None for an empty distribution."""
    if not nanoseconds.count:
        return None
    shares = zip(PERCENTILES, (0.5, 0.9, 0.99, 1.0), strict=True)
    return {name: nanoseconds.quantile(share) / NS_PER_US for name, share in shares}
