"""The result of an experiment in one sentence, and its ratios in words. Pure."""

from __future__ import annotations

from dxt_replay.replay.regression.interval_verdict import Verdict
from dxt_replay.replay.regression.ratio import Ratio
from dxt_replay.traces.units import format_signed

MANY = 2.0
"""From this ratio on (and below its inverse) a change is named in multiples and not in per cent."""


def headline(verdict: Verdict, reason: str, found: Ratio | None, *, more_is_better: bool) -> str:
    """`The candidate is 38 % slower (34 to 42 %): regression.`

    `found`: of the deciding metric; `more_is_better`: of that metric, such as a bandwidth. `reason`: why there is no
    verdict.
    """
    if verdict is Verdict.INCONCLUSIVE or found is None or found.low is None or found.high is None:
        return f"No verdict, {verdict.value}: {reason}."
    ratio, low, high = (1 / value if more_is_better else value for value in (found.ratio, found.low, found.high))
    if verdict is Verdict.NO_CHANGE:
        most = 100 * (max(low, high, 1 / low, 1 / high) - 1)
        return f"The candidate is as fast as the baseline, within {most:.1f} %: no change."
    word = "slower" if ratio > 1 else "faster"
    if ratio >= MANY or ratio <= 1 / MANY:
        times = sorted(max(value, 1 / value) for value in (low, high))
        size = f"{max(ratio, 1 / ratio):.1f} times {word} ({times[0]:.1f} to {times[1]:.1f})"
    else:
        shares = sorted(abs(100 * (value - 1)) for value in (low, high))
        size = f"{abs(100 * (ratio - 1)):.1f} % {word} ({shares[0]:.1f} to {shares[1]:.1f} %)"
    return f"The candidate is {size}: {verdict.value}."


def interval_text(low: float | None, high: float | None) -> str:
    """`-12.3 to +19.7 %`, `+92.1 % to 2.09 x`: one unit where both ends have the same; `-` for None."""
    if low is None or high is None:
        return "-"
    first, last = change_text(low), change_text(high)
    return f"{first[:-2]} to {last}" if first[-2:] == last[-2:] else f"{first} to {last}"


def change_text(ratio: float) -> str:
    """`1.031` -> `+3.1 %`, `66.2` -> `66.2 x`: candidate against baseline."""
    return f"{ratio:.3g} x" if ratio >= MANY else f"{format_signed(100 * (ratio - 1), 1)} %"
