from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.fidelity.timing import drift, span_kinds, span_limits, step_error
from tests.capture_builder import Span, spans_table

S = 1_000_000_000


def recorded(count: int = 5000, seconds: float = 100, seed: int = 0) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).integers(0, int(seconds * S), count))


@given(st.floats(-5000, 5000), st.integers(-(10**9), 10**9))
def test_a_clock_that_runs_wrong_is_measured(ppm: float, offset: int) -> None:
    start = recorded()
    found = drift(start, np.rint(start * (1 + ppm * 1e-6)).astype(np.int64) + offset)
    assert found is not None
    assert found.ppm == pytest.approx(ppm, abs=0.01)
    assert found.low_ppm <= found.ppm <= found.high_ppm


def test_late_operations_do_not_look_like_drift() -> None:
    start = recorded()
    rng = np.random.default_rng(1)
    late = rng.exponential(20_000, len(start)) + np.where(rng.random(len(start)) < 0.1, 50_000_000, 0)
    found = drift(start, start + late.astype(np.int64))
    assert found is not None
    assert abs(found.ppm) < 1
    assert found.low_ppm < 0 < found.high_ppm


def test_drift_is_told_with_noise_on_top() -> None:
    start = recorded()
    noise = np.random.default_rng(2).exponential(50_000, len(start))
    found = drift(start, np.rint(start * (1 + 30e-6) + noise).astype(np.int64))
    assert found is not None
    assert found.low_ppm > 20
    assert found.ppm == pytest.approx(30, abs=2)


def test_speed_is_not_drift() -> None:
    start = recorded()
    found = drift(start, np.rint(start / 4).astype(np.int64), speed=4)
    assert found is not None
    assert abs(found.ppm) < 0.1


@pytest.mark.parametrize("start", [[], [5], [7, 7, 7], [0, 1, 10**9]])
def test_too_few_moments_tell_no_drift(start: list[int]) -> None:
    assert drift(np.array(start, dtype=np.int64), np.array(start, dtype=np.int64)) is None


def steps(durations: list[int], *, numbered: bool = True, first: int = 0) -> list[Span]:
    starts = np.cumsum([0, *durations])
    return [
        Span("step", start_ns=int(start), end_ns=int(start) + length, step=first + place if numbered else 7)
        for place, (start, length) in enumerate(zip(starts, durations, strict=False))
    ]


@pytest.mark.parametrize("numbered", [True, False])
def test_steps_are_matched_by_number_or_place(numbered: bool) -> None:
    source = spans_table(steps([100, 200, 400], numbered=numbered))
    replay = spans_table(steps([110, 200, 300], numbered=numbered))
    found = step_error(source, replay)
    assert found is not None
    assert (found.p50, found.max, found.steps) == (pytest.approx(10), pytest.approx(25), 3)


def test_steps_that_one_side_lacks_do_not_count() -> None:
    found = step_error(spans_table(steps([100, 200])), spans_table(steps([200, 100], first=1)))
    assert found is not None
    assert (found.max, found.steps) == (0, 1)
    assert step_error(spans_table(steps([100])), spans_table([])) is None


def test_step_error_is_relative_to_the_speed() -> None:
    found = step_error(spans_table(steps([100, 200])), spans_table(steps([50, 100])), speed=2)
    assert found is not None
    assert found.max == 0


def test_limits_of_spans_of_some_kinds() -> None:
    table = spans_table([Span("step", 5, 9), Span("compute", 1, 7), Span("other", 0, 100)])
    assert span_kinds(table) == {"step", "compute", "other"}
    assert span_limits(table, {"step", "compute"}) == (1, 9)
    assert span_limits(table, {"checkpoint"}) is None
    assert span_limits(table, set()) is None
