"""The model of the cost: it finds the constants of runs that follow it, and more workers gain what they can."""

from __future__ import annotations

import math

import pytest

from benchmarks.cost_model import Cost, Work, fit, fit_work, predicted_s
from dxt_replay.traces.workers.workers import PIECE_OPERATIONS

ALONE = Work(once_s=1.0, operation_s=1e-7, rank_s=2e-3)
FIRST = Work(once_s=0.8, operation_s=1e-9, rank_s=1e-3)
SHARED = Work(once_s=0.5, operation_s=1e-7, rank_s=1e-3)
COST = Cost(first=FIRST, shared=SHARED, alone=ALONE, operation_bytes=12.0, is_shared=True)
SIZES = [(10**7, 100), (10**8, 100), (10**6, 1_000), (10**6, 10_000)]


def _run(operations: int, ranks: int, workers: int) -> dict[str, float | str]:
    first_s = ALONE.seconds(operations, ranks) if workers == 1 else FIRST.seconds(operations, ranks)
    others_s = 0.0 if workers == 1 else SHARED.seconds(operations, ranks) + SHARED.once_s * (workers - 1)
    sizes = {"log_bytes": 9 * operations, "capture_bytes": 12 * operations}
    times = {"cpu_s": first_s + others_s, "first_s": first_s, "busiest_s": others_s / 2}
    return {"command": "summary", "operations": operations, "ranks": ranks, "workers": workers, **times, **sizes}


def test_the_constants_of_runs_are_found() -> None:
    runs = [_run(*size, workers) for size in SIZES for workers in (1, 2)]
    found = fit(runs)["summary"]
    assert found.is_shared
    assert found.operation_bytes == 12.0
    for work, expected in ((found.alone, ALONE), (found.first, FIRST), (found.shared, SHARED)):
        assert work.once_s == pytest.approx(expected.once_s)
        assert work.operation_s == pytest.approx(expected.operation_s)
        assert work.rank_s == pytest.approx(expected.rank_s)


def test_no_constant_is_negative() -> None:
    work = fit_work([1e6, 2e6, 4e6], [10, 10, 20], [0.9, 2.0, 4.4])
    assert min(work.once_s, work.operation_s, work.rank_s) == 0.0


def test_three_runs_are_needed() -> None:
    with pytest.raises(ValueError, match="three runs"):
        fit_work([1, 2], [1, 2], [1.0, 2.0])


def test_workers_share_whole_pieces_and_the_first_process_does_its_part_alone() -> None:
    operations, ranks = 10 * PIECE_OPERATIONS, 1_000
    once = FIRST.seconds(operations, ranks) + SHARED.once_s
    divided = SHARED.operation_s * operations + SHARED.rank_s * ranks
    for workers, rounds in ((2, 5), (4, 3), (10, 1), (64, 1)):
        assert predicted_s(COST, operations, ranks, workers, math.inf) == pytest.approx(once + divided * rounds / 10)
    assert predicted_s(COST, operations, ranks, 1, math.inf) == ALONE.seconds(operations, ranks)
    assert predicted_s(COST, 1_000, ranks, 64, math.inf) == ALONE.seconds(1_000, ranks)


def test_a_slow_disk_is_a_limit_for_any_number_of_workers() -> None:
    reading_s = 1e9 * 12.0 / 1e6
    assert predicted_s(COST, 1e9, 1_000, 1, 1e6) == reading_s
    assert predicted_s(COST, 1e9, 1_000, 1_024, 1e6) > reading_s


def test_a_command_without_workers_takes_what_it_takes_alone() -> None:
    merge = Cost(first=ALONE, shared=ALONE, alone=ALONE, operation_bytes=9.0, is_shared=False)
    assert predicted_s(merge, 1e9, 1_000, 1_024, math.inf) == ALONE.seconds(1e9, 1_000)
