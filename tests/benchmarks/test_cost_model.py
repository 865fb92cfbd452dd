"""The model of the cost: it finds the constants of runs that follow it, and more workers gain what they can."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import cost_model
from benchmarks.cost_model import Cost, Work, collected_s, fit, fit_work, predicted_s, started_s, table
from benchmarks.scale_table.captures import RANKS
from benchmarks.scale_table.inputs import READS_OF_RANK
from dxt_replay.traces.workers import AHEAD, PIECE_OPERATIONS

ALONE = Work(once_s=1.0, operation_s=1e-7, rank_s=2e-3)
FIRST = Work(once_s=0.8, operation_s=1e-9, rank_s=1e-3)
SHARED = Work(once_s=0.5, operation_s=1e-7, rank_s=1e-3)
RETURNED = Work(once_s=0.0, operation_s=0.1, rank_s=3_000.0)
COST = Cost(first=FIRST, shared=SHARED, alone=ALONE, returned=RETURNED, operation_bytes=12.0)


def _runs(name: str, unit: str, units: int) -> list[dict[str, float | str]]:
    """A run of one process, and one that counts what its pieces take, which do not start."""
    size = (units * READS_OF_RANK, units) if unit == "rank" else (units, RANKS)
    pieces_s = SHARED.seconds(*size) - SHARED.once_s
    row: dict[str, float | str] = {"row": name, "unit": unit, "units": units, "capture_bytes": 12 * size[0]}
    counted = {"pieces": 4, "pieces_s": pieces_s, "returned_bytes": RETURNED.seconds(*size)}
    return [
        row | {"way": "one", "cpu_s": ALONE.seconds(*size)},
        row | {"way": "pickled", "cpu_s": FIRST.seconds(*size) + pieces_s} | counted,
    ]


def _all_runs() -> list[dict[str, float | str]]:
    runs = [run for units in (10**7, 3 * 10**7) for run in _runs("summary", "operation", units)]
    return runs + [run for units in (1_000, 10_000) for run in _runs("summary, many ranks", "rank", units)]


def test_the_constants_of_runs_are_found() -> None:
    found = fit(_all_runs(), SHARED.once_s)["summary"]
    assert found.operation_bytes == 12.0
    pairs = ((found.alone, ALONE), (found.first, FIRST), (found.shared, SHARED), (found.returned, RETURNED))
    for work, expected in pairs:
        assert work.once_s == pytest.approx(expected.once_s, abs=1e-6)
        assert work.operation_s == pytest.approx(expected.operation_s)
        assert work.rank_s == pytest.approx(expected.rank_s)


def test_the_tables_are_made_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "NODES", (1, 2))
    text = table(_all_runs(), 1e10)
    assert "| summary | first process | 0.80 s | 1 ns | 1.00 ms |" in text
    assert "\n| 2 | 128 | " in text
    assert "merge" not in text


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


def test_the_start_of_one_worker_takes_the_sum_of_its_requests() -> None:
    assert started_s(1, 640, 0.3, server_per_s=1_000, latency_s=0.01).tolist() == pytest.approx([0.3 + 640 * 0.011])
    assert started_s(3, 0, 0.3).tolist() == [0.3] * 3


@pytest.mark.parametrize("workers", [10, 1_000])
def test_the_start_of_many_workers_takes_what_the_server_takes(workers: int) -> None:
    """A server that is never idle once the first requests arrived, and idle before: the bounds of a queue."""
    found = started_s(workers, 640, 0.0, server_per_s=1_000, latency_s=1e-6)
    busy_s = workers * 640 / 1_000
    assert busy_s <= found[-1] <= busy_s + 640e-6
    assert (np.diff(found) >= 0).all()


def test_results_are_received_one_after_the_other() -> None:
    assert collected_s(np.array([2.0]), 5, 3.0, 0.1) == pytest.approx((17.0, 17.1))
    done_s, all_s = collected_s(np.full(4, 2.0), 4, 3.0, 1.0)
    assert (done_s, all_s) == pytest.approx((5.0, 9.0))
    # A first process that receives slower than the workers work sets the pace: no more than AHEAD pieces a worker wait.
    workers, pieces = 10, 100
    done_s, all_s = collected_s(np.zeros(workers), pieces, 0.1, 1.0)
    assert all_s == pytest.approx(0.1 + pieces)
    assert done_s == pytest.approx(0.1 + (pieces - AHEAD * workers) + 0.1)
