"""Whether runs may be compared. Pure.

An obstacle forbids a verdict: the sides did different work, met different caches, or were delayed by the replayer. A
warning does not. A doubt forbids one verdict only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from dxt_replay.replay.regress.metrics import MeasuredRun
from dxt_replay.replay.regress.statistics import Verdict, change_text, unpaired_ratio
from dxt_replay.replay.run.result import WARM_PCT
from dxt_replay.traces.records import LATE_US, allowed_lag_us
from dxt_replay.traces.units import NS_PER_US, format_duration

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


def examine(
    runs: Sequence[MeasuredRun], *, threshold_pct: float, closed_loop: bool, direct: bool
) -> tuple[list[str], list[str]]:
    """The obstacles and the warnings of `runs`, those that count.

    `closed_loop`: operations are due after the ones before (any pace but `timed`), so that lag is the replayer's own.
    `direct`: data do not pass through the page cache.
    """
    if not runs:
        return [], []
    obstacles, warnings = [], []
    for name, label in _WORK.items():
        found = {getattr(run, name) for run in runs}
        if len(found) > 1:
            obstacles.append(f"the runs did not do the same work: {label} from {min(found):,} to {max(found):,}")
    starved = max((100 * run.starved_s / run.whole_s for run in runs if run.whole_s), default=0.0)
    if starved > threshold_pct:
        obstacles.append(f"the replayer could not feed its lanes for {starved:.1f} % of a run: use more processes")
    if failed := max(run.failed for run in runs):
        of = f"{failed:,} of {runs[0].operations:,} operations"
        warnings.append(f"up to {of} of a run failed: see `dxt-replay run`")
    warm = [run.resident_pct or 0.0 for run in runs if run.cache_policy == "cold"]
    if warm := [share for share in warm if share > WARM_PCT]:
        share = f"up to {max(warm):.0f} % of the data"
        warnings.append(f"{len(warm)} of {len(runs)} cold runs began with {share} in the page cache")
    if (overhead := max(run.overhead_pct or 0.0 for run in runs)) > threshold_pct:
        warnings.append(f"the replayer's own work may be up to {overhead:.1f} % of a run, more than the threshold")
    judged = [run for run in runs if run.lag_us and run.jitter_us] if closed_loop else []
    if late := sum((run.lag_us or {})["p99"] > allowed_lag_us(run.jitter_us) for run in judged):
        warnings.append(
            f"in {late} of {len(runs)} runs 1 % of the operations began more than {LATE_US / 1000:g} ms late for the "
            "replayer's own reasons"
        )
    kept = direct or any(run.keeps_pages for run in runs)
    (warnings if kept else obstacles).extend(_different_caches(runs))
    warnings += [text for run in runs for text in run.warnings]
    return obstacles, list(dict.fromkeys(warnings))


def _different_caches(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    shares = {
        side: [run.resident_pct for run in runs if run.side == side and run.resident_pct is not None]
        for side in sorted({run.side for run in runs})
    }
    if len(shares) > 1 and all(shares.values()):
        medians = {side: statistics.median(found) for side, found in shares.items()}
        if max(medians.values()) - min(medians.values()) > CACHE_DIFFERENCE_PCT:
            shown = ", ".join(f"{share:.0f} % ({side})" for side, share in medians.items())
            yield f"the page cache held different shares of the data before the runs: {shown}"


def session_warnings(recorded: Sequence[MeasuredRun], runs: Sequence[MeasuredRun], primary: str) -> list[str]:
    """Sentences on what two sessions cannot show, and on a session that drifted while it was measured."""
    found = [
        "the runs of the record were made in another session: whatever differed between both, such as other users, is "
        "part of the change; --baseline and --candidate measure both sides in turn and exclude it"
    ]
    for name, session in (("the record", recorded), ("this session", runs)):
        counted = [run for run in session if run.counts and primary in run.metrics]
        values = [run.metrics[primary] for run in sorted(counted, key=lambda run: run.start_ns)]
        half = len(values) // 2
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
        f"the machine was {'busier' if busier else 'quieter'}: an idle thread woke up to {_us(after)} late "
        f"(90th percentile, median of the runs), and up to {_us(before)} before"
    )
    return text, Verdict.REGRESSION if busier else Verdict.IMPROVEMENT


def jitter_doubt(recorded: Sequence[MeasuredRun], runs: Sequence[MeasuredRun]) -> Mapping[Verdict, str]:
    """The verdict that a busier or quieter machine may have made, and why; empty where it was alike."""
    if (found := jitter_difference(recorded, runs)) is None:
        return {}
    text, verdict = found
    return {verdict: f"{text}; repeat it when the machine is as busy as it was for the record, or make a new record"}


def busy_warning(runs: Sequence[MeasuredRun]) -> list[str]:
    """A sentence where the machine was busy for these runs, which as a record hide what a quieter session finds."""
    jitter = _jitter_us(runs)
    if jitter is None or jitter < LATE_US:
        return []
    return [
        f"the machine was busy: an idle thread woke up to {_us(jitter)} late (90th percentile, median of the "
        "runs); do not keep these runs as a record, since later runs on a quiet machine seem faster than they are"
    ]


def _jitter_us(runs: Sequence[MeasuredRun]) -> float | None:
    known = [run.jitter_us["p90"] for run in runs if run.jitter_us]
    return statistics.median(known) if known else None


def _us(value: float) -> str:
    return format_duration(value * NS_PER_US)
