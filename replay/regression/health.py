"""Checks whether runs may be compared, and collects warnings. Pure.

A comparison is invalid when the sides did different work, met different caches, or were delayed by the replayer. Then
the verdict is inconclusive.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dxt_replay.replay.regression.interval_verdict import Verdict
from dxt_replay.replay.regression.run_metrics import MeasuredRun
from dxt_replay.replay.run.result import WARM_PCT
from dxt_replay.traces.records import LATE_US, allowed_lag_us

CACHE_DIFFERENCE_PCT = 10.0
"""Share of the data in the page cache by which the sides may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`obstacles`: why no verdict may be given; `warnings`: what does not stand in its way; `doubts`: why a verdict of
    this kind may not be given, where any other may."""

    obstacles: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    doubts: Mapping[Verdict, str] = field(default_factory=dict)

    def settled(self, verdict: Verdict | None) -> Health:
        """With the doubts as an obstacle to this verdict, or as warnings beside any other."""
        against = tuple(text for doubted, text in self.doubts.items() if doubted is verdict)
        beside = tuple(dict.fromkeys(text for text in self.doubts.values() if text not in against))
        return Health(obstacles=(*self.obstacles, *against), warnings=(*beside, *self.warnings))


def examine(runs: Sequence[MeasuredRun], *, threshold_pct: float, closed_loop: bool, direct: bool) -> Health:
    """`runs`: those that count. `closed_loop`: operations are due after the ones before (any pace but `timed`), so that
    lag is the replayer's own. `direct`: data do not pass through the page cache."""
    if not runs:
        return Health()
    obstacles = [*_different_work(runs), *_starved(runs, threshold_pct)]
    warnings = [*_failures(runs), *_not_cold(runs), *_overhead(runs, threshold_pct)]
    if closed_loop:
        warnings += _late(runs)
    differing = _different_caches(runs)
    memory = any(run.keeps_pages for run in runs)
    (warnings if direct or memory else obstacles).extend(differing)
    warnings += dict.fromkeys(text for run in runs for text in run.warnings)
    return Health(obstacles=tuple(obstacles), warnings=tuple(dict.fromkeys(warnings)))


def _different_work(runs: Sequence[MeasuredRun]) -> Iterable[str]:
    quantities: dict[str, Callable[[MeasuredRun], int]] = {
        "operations": lambda run: run.operations,
        "failed operations": lambda run: run.failed,
        "files whose close failed": lambda run: run.failed_closes,
        "operations that moved fewer bytes than recorded": lambda run: run.short,
        "bytes read": lambda run: run.bytes_read,
        "bytes written": lambda run: run.bytes_written,
    }
    for name, quantity in quantities.items():
        found = sorted({quantity(run) for run in runs})
        if len(found) > 1:
            yield f"the runs did not do the same work: {name} from {found[0]:,} to {found[-1]:,}"


def _starved(runs: Sequence[MeasuredRun], threshold_pct: float) -> Iterable[str]:
    shares = [100 * run.starved_s / run.whole_s for run in runs if run.whole_s]
    if shares and max(shares) > threshold_pct:
        yield f"the replayer could not feed its lanes for {max(shares):.1f} % of a run: use more processes"


def _different_caches(runs: Sequence[MeasuredRun]) -> list[str]:
    shares = {side: [run.resident_pct for run in runs if run.side == side] for side in {run.side for run in runs}}
    known = {side: [share for share in found if share is not None] for side, found in shares.items()}
    if len(known) < 2 or not all(known.values()):
        return []
    medians = {side: statistics.median(found) for side, found in sorted(known.items())}
    if max(medians.values()) - min(medians.values()) <= CACHE_DIFFERENCE_PCT:
        return []
    shown = ", ".join(f"{share:.0f} % ({side})" for side, share in medians.items())
    return [f"the page cache held different shares of the data before the runs: {shown}"]


def _not_cold(runs: Sequence[MeasuredRun]) -> Iterable[str]:
    warm = [run.resident_pct for run in runs if run.cache_policy == "cold" and (run.resident_pct or 0) > WARM_PCT]
    if warm:
        shares = max(share for share in warm if share is not None)
        yield f"{len(warm)} of {len(runs)} cold runs began with up to {shares:.0f} % of the data in the page cache"


def _failures(runs: Sequence[MeasuredRun]) -> Iterable[str]:
    failed = max(run.failed for run in runs)
    if failed:
        yield f"up to {failed:,} of {runs[0].operations:,} operations of a run failed: see `dxt-replay run`"


def _overhead(runs: Sequence[MeasuredRun], threshold_pct: float) -> Iterable[str]:
    largest = max(run.overhead_pct or 0.0 for run in runs)
    if largest > threshold_pct:
        yield f"the replayer's own work may be up to {largest:.1f} % of a run, more than the threshold"


def _late(runs: Sequence[MeasuredRun]) -> list[str]:
    late = 0
    for run in runs:
        if run.lag_us and run.jitter_us:
            late += run.lag_us["p99"] > allowed_lag_us(run.jitter_us)
    if not late:
        return []
    return [
        f"in {late} of {len(runs)} runs 1 % of the operations began more than {LATE_US / 1000:g} ms late for the "
        "replayer's own reasons"
    ]
