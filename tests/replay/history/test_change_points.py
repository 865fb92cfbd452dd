"""Change points of simulated series: found where they are, and at most the promised share where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dxt_replay.replay.history.change_points import change_points

MARGIN = math.log(1.05)
ALPHA = 0.05


def samples(rng: np.random.Generator, levels: np.ndarray, noise: float, runs: int = 10) -> list[np.ndarray]:
    return [rng.normal(level, noise, runs) for level in levels]


def sessions(rng: np.random.Generator, count: int) -> np.ndarray:
    """Levels anywhere within the margin."""
    return rng.uniform(-MARGIN / 2, MARGIN / 2, count)


def opposite(rng: np.random.Generator, count: int) -> np.ndarray:
    """The worst case that the promise allows: two stretches that are just one margin apart."""
    return np.where(np.arange(count) < rng.integers(1, count), -MARGIN / 2, MARGIN / 2)


@pytest.mark.parametrize(("count", "noise"), [(3, 0.005), (3, 0.1), (8, 0.03), (30, 0.01)])
@pytest.mark.parametrize("levels", [sessions, opposite])
def test_no_more_false_alarms_than_promised(levels, count: int, noise: float) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(count)
    trials = 150
    alarms = sum(bool(change_points(samples(rng, levels(rng, count), noise), MARGIN, ALPHA)) for _ in range(trials))
    assert alarms / trials <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ({5: 0.2}, [5]),
        ({9: 0.2}, [9]),  # the latest record alone
        ({4: 0.2, 5: -0.2}, [4, 5]),  # one bad day
        ({3: -0.3, 6: 0.5}, [3, 6]),
        ({}, []),
    ],
)
def test_changes_are_found_where_they_are(steps: dict[int, float], found: list[int]) -> None:
    levels = np.cumsum([steps.get(place, 0.0) for place in range(10)])
    rng = np.random.default_rng(3)
    assert [point.at for point in change_points(samples(rng, levels, 0.02), MARGIN, ALPHA)] == found


def test_a_small_change_that_lasts_is_found_by_looking_back() -> None:
    rng = np.random.default_rng(8)
    series = samples(rng, np.where(np.arange(40) < 20, 0.0, math.log(1.09)), 0.04, runs=4)
    found = change_points(series, MARGIN, ALPHA)
    assert len(found) == 1
    assert abs(found[0].at - 20) <= 1
    assert found[0].p_value <= ALPHA


def test_a_thousand_records() -> None:
    rng = np.random.default_rng(1)
    levels = np.where(np.arange(1000) < 700, 0.0, 0.2)
    levels[300] = 0.4
    assert [point.at for point in change_points(samples(rng, levels, 0.03), MARGIN, ALPHA)] == [300, 301, 700]


def test_unequal_and_empty_samples() -> None:
    assert change_points([], MARGIN, ALPHA) == []
    assert change_points([np.zeros(5)], MARGIN, ALPHA) == []
    rng = np.random.default_rng(2)
    series = [rng.normal(0, 0.01, size) for size in (10, 0, 3, 12)] + [rng.normal(0.5, 0.01, 10)]
    assert [point.at for point in change_points(series, MARGIN, ALPHA)] == [4]
