"""Which number of ranks to try next, and what the tries say. Pure.

The utilisation falls as ranks are added. So bisection finds the largest number that keeps it above the limit, and two
more runs at both sides of the border, after all others, show whether the machine drifted meanwhile.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Search:
    """The tries of a search between 1 and `most` ranks.

    limit_pct: least utilisation that passes. guess: number of ranks to begin with.
    tried: by number of ranks, the utilisation of each run there, in per cent.

    It takes one run at the guess, ceil(log2(most + 1)) to bisect and two to confirm; a border that moves meanwhile ends
    the search there, with an interval.
    """

    limit_pct: float
    most: int
    guess: int = 1
    tried: dict[int, list[float]] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many runs there were."""
        return sum(map(len, self.tried.values()))

    def put(self, ranks: int, utilisation_pct: float) -> None:
        """Add the result of a run."""
        self.tried.setdefault(ranks, []).append(utilisation_pct)

    def next_ranks(self) -> int | None:
        """Number of ranks of the next run; None once the border lies between two neighbours and both were confirmed."""
        if self.runs >= math.ceil(math.log2(self.most + 1)) + 3:
            return None
        if not self.tried:
            return min(max(self.guess, 1), self.most)
        passed = max((ranks for ranks in self.tried if self._passes(ranks)), default=0)
        failed = min((ranks for ranks in self.tried if ranks > passed), default=self.most + 1)
        if failed - passed > 1:
            return (passed + failed) // 2
        # The higher number first: in A B ... B A the drift of the machine acts on both alike.
        return next((ranks for ranks in (failed, passed) if len(self.tried.get(ranks, ())) == 1), None)

    def _passes(self, ranks: int) -> bool:
        return statistics.median(self.tried[ranks]) >= self.limit_pct

    @property
    def sustained(self) -> int:
        """The most ranks at which, and below which, every run passed; 0 if none did."""
        return max(_leading(sorted(self.tried), self._all_pass), default=0)

    @property
    def failing(self) -> int | None:
        """The fewest ranks at which, and above which, every run failed; None if none did."""
        return min(_leading(sorted(self.tried, reverse=True), self._all_fail), default=None)

    @property
    def interval(self) -> tuple[int, int]:
        """The capacity lies between these numbers, both included; the upper one is `most` if no number failed."""
        failing = self.failing
        return self.sustained, self.most if failing is None else max(failing - 1, self.sustained)

    def _all_pass(self, ranks: int) -> bool:
        return min(self.tried[ranks]) >= self.limit_pct

    def _all_fail(self, ranks: int) -> bool:
        return max(self.tried[ranks]) < self.limit_pct


def _leading(ordered: Sequence[int], holds: Callable[[int], bool]) -> Iterable[int]:
    """The first of `ordered` for which `holds` is true without a break."""
    for ranks in ordered:
        if not holds(ranks):
            return
        yield ranks


def largest_that_passes(most: int, passes: Callable[[int], bool]) -> int:
    """The largest number from 1 to `most` for which the function `passes`, which is true up to some number; else 0."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low
