"""Checks whether runs may be compared, and collects warnings. Pure.

A comparison is invalid when the sides did different work, met different caches, or were delayed by the replayer. Then
the verdict is inconclusive.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dxt_replay.replay.regress.metrics import MeasuredRun
from dxt_replay.replay.regress.statistics import Verdict, change_text, unpaired_ratio
from dxt_replay.replay.run.result import WARM_PCT
from dxt_replay.replay.show.section import microseconds
from dxt_replay.traces.records import LATE_US, allowed_lag_us

CACHE_DIFFERENCE_PCT = 10.0
"""Share of the data in the page cache by which the sides may differ."""

BUSIER = 3.0
"""Jitter that is larger by this factor, and not below `LATE_US`, is of a busier machine."""

_LEAST_HALF, _DRIFT_ALPHA = 4, 0.01
"""Runs of a half of a session from which on both halves are compared, and the probability of a false alarm."""

_WORK = {
    "operations": "operations",
    "failed": "failed operations",
    "failed_closes": "files whose close failed",
    "short": "operations that moved fewer bytes than recorded",
    "bytes_read": "bytes read",
    "bytes_written": "bytes written",
}


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
    obstacles = list(_obstacles(runs, threshold_pct))
    warnings = list(_warnings(runs, threshold_pct, closed_loop=closed_loop))
    kept = direct or any(run.keeps_pages for run in runs)
    (warnings if kept else obstacles).extend(_different_caches(runs))
    warnings += [text for run in runs for text in run.warnings]
    return Health(obstacles=tuple(obstacles), warnings=tuple(dict.fromkeys(warnings)))


def _obstacles(runs: Sequence[MeasuredRun], threshold_pct: float) -> Iterator[str]:
    for name, label in _WORK.items():
        found = {getattr(run, name) for run in runs}
        if len(found) > 1:
            yield f"the runs did not do the same work: {label} from {min(found):,} to {max(found):,}"
    starved = max((100 * run.starved_s / run.whole_s for run in runs if run.whole_s), default=0.0)
    if starved > threshold_pct:
        yield f"the replayer could not feed its lanes for {starved:.1f} % of a run: use more processes"


def _warnings(runs: Sequence[MeasuredRun], threshold_pct: float, *, closed_loop: bool) -> Iterator[str]:
    failed = max(run.failed for run in runs)
    if failed:
        yield f"up to {failed:,} of {runs[0].operations:,} operations of a run failed: see `dxt-replay run`"
    warm = [
        run.resident_pct or 0.0 for run in runs if run.cache_policy == "cold" and (run.resident_pct or 0) > WARM_PCT
    ]
    if warm:
        yield f"{len(warm)} of {len(runs)} cold runs began with up to {max(warm):.0f} % of the data in the page cache"
    overhead = max(run.overhead_pct or 0.0 for run in runs)
    if overhead > threshold_pct:
        yield f"the replayer's own work may be up to {overhead:.1f} % of a run, more than the threshold"
    judged = [run for run in runs if run.lag_us and run.jitter_us] if closed_loop else []
    late = sum((run.lag_us or {})["p99"] > allowed_lag_us(run.jitter_us) for run in judged)
    if late:
        yield (
            f"in {late} of {len(runs)} runs 1 % of the operations began more than {LATE_US / 1000:g} ms late for the "
            "replayer's own reasons"
        )


def _different_caches(runs: Sequence[MeasuredRun]) -> list[str]:
    shares: dict[str, list[float]] = {run.side: [] for run in sorted(runs, key=lambda run: run.side)}
    for run in runs:
        if run.resident_pct is not None:
            shares[run.side].append(run.resident_pct)
    if len(shares) < 2 or not all(shares.values()):
        return []
    medians = {side: statistics.median(found) for side, found in shares.items()}
    if max(medians.values()) - min(medians.values()) <= CACHE_DIFFERENCE_PCT:
        return []
    shown = ", ".join(f"{share:.0f} % ({side})" for side, share in medians.items())
    return [f"the page cache held different shares of the data before the runs: {shown}"]


def session_warnings(recorded: Sequence[MeasuredRun], runs: Sequence[MeasuredRun], primary: str) -> list[str]:
    """Sentences on what two sessions cannot show, and on a session that drifted while it was measured."""
    found = [
        "the runs of the record were made in another session: whatever differed between both, such as other users, is "
        "part of the change; --baseline and --candidate measure both sides in turn and exclude it"
    ]
    for name, session in (("the record", recorded), ("this session", runs)):
        ordered = sorted(
            (run for run in session if run.counts and primary in run.metrics), key=lambda run: run.start_ns
        )
        values, half = [run.metrics[primary] for run in ordered], len(ordered) // 2
        if half < _LEAST_HALF:
            continue
        drift = unpaired_ratio(values[:half], values[half:], _DRIFT_ALPHA)
        if drift.p_value <= _DRIFT_ALPHA:
            found.append(
                f"the runs of {name} drifted by {change_text(drift.ratio)} from its first half to its second, so that "
                "they are not independent and the interval is too narrow: repeat it when the machine is quiet"
            )
    return found


def jitter_difference(recorded: Sequence[MeasuredRun], runs: Sequence[MeasuredRun]) -> tuple[str, Verdict] | None:
    """A sentence where the machine itself was busier or quieter in the later of two sessions, and the verdict that this
    may have made; None where it was alike. A slowdown on a quieter machine is a slowdown all the same.

    The jitter is how late a thread woke that does nothing else: storage cannot delay it, other programs can.
    """
    before, after = _jitter_us(recorded), _jitter_us(runs)
    if before is None or after is None or max(before, after) < max(LATE_US, BUSIER * min(before, after)):
        return None
    busier = after > before
    text = (
        f"the machine was {'busier' if busier else 'quieter'}: an idle thread woke up to {microseconds(after)} late "
        f"(90th percentile, median of the runs), and up to {microseconds(before)} before"
    )
    return text, Verdict.REGRESSION if busier else Verdict.IMPROVEMENT


def jitter_doubt(recorded: Sequence[MeasuredRun], runs: Sequence[MeasuredRun]) -> dict[Verdict, str]:
    """The verdict that a busier or quieter machine may have made, and why; empty where it was alike."""
    if (found := jitter_difference(recorded, runs)) is None:
        return {}
    text, verdict = found
    as_then = "repeat it when the machine is as busy as it was for the record, or make a new record"
    return {verdict: f"{text}; {as_then}"}


def busy_warning(runs: Sequence[MeasuredRun]) -> list[str]:
    """A sentence where the machine was busy for these runs, which as a record hide what a quieter session finds."""
    jitter = _jitter_us(runs)
    if jitter is None or jitter < LATE_US:
        return []
    return [
        f"the machine was busy: an idle thread woke up to {microseconds(jitter)} late (90th percentile, median of the "
        "runs); do not keep these runs as a record, since later runs on a quiet machine seem faster than they are"
    ]


def _jitter_us(runs: Sequence[MeasuredRun]) -> float | None:
    known = [run.jitter_us["p90"] for run in runs if run.jitter_us]
    return statistics.median(known) if known else None
