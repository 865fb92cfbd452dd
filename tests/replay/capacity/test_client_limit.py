"""A replay that keeps its processors busy is the limit, not the storage."""

from __future__ import annotations

from typing import Any

import pytest

from dxt_replay.replay.capacity.measuring import searched
from dxt_replay.replay.capacity.result import MACHINE, STORAGE, LoadRun


class _Search:
    """One run of four ranks, which misses the limit."""

    failing, limit_pct = None, 90.0

    def __init__(self) -> None:
        self.tried: dict[int, list[float]] = {}

    def next_ranks(self) -> int | None:
        return None if self.tried else 4

    def put(self, ranks: int, utilisation_pct: float) -> None:
        self.tried[ranks], self.failing = [utilisation_pct], ranks


class _Measure:
    in_memory, free_pct = False, 99.0

    def __init__(self, target: str, processors_pct: float | None) -> None:
        self.target, self._busy_pct = target, processors_pct

    def __call__(self, ranks: int, *, storage: bool = True) -> LoadRun:
        return LoadRun(
            ranks=ranks, utilisation_pct=50.0 if storage else 98.0, training_s=1.0, mib_s=1.0, latency_us=None,
            processors_pct=self._busy_pct if storage else 2.0, storage=storage,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "processors_pct", "limit"),
    [
        ("s3://bucket/twin", 97.0, MACHINE),
        ("s3://bucket/twin", 40.0, STORAGE),
        ("s3://bucket/twin", None, STORAGE),
        ("/scratch", 97.0, MACHINE),
    ],
)
def test_the_client_is_the_limit_if_it_takes_the_machine(target: str, processors_pct: float | None, limit: str) -> None:
    search: Any = _Search()
    measure: Any = _Measure(target, processors_pct)
    assert searched(search, measure, []) == limit
