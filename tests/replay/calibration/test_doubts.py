"""A disturbed trial is found by what lies beside it, and does not become part of a model."""

from __future__ import annotations

import numpy as np
import pytest

from dxt_replay.replay.calibration.estimates import Measured, doubtful, without_disturbance


def measured(size: int, time_us: float, *, state: str = "cached", stall_ms: float = 0.0) -> Measured:
    """Two trials of which the second has a stall amid its reads, as where another program takes the processor."""
    quiet = np.full(500, 1000.0 * time_us)
    disturbed = quiet.copy()
    disturbed[100:103] += stall_ms * 1e6
    return Measured.of("read", state, size, 1, [quiet, disturbed])


SOUND = [
    measured(4096, 1.96),
    measured(1 << 20, 134),
    measured(4096, 90, state="cold"),
    measured(65_536, 200, state="cold"),
]


def test_a_figure_above_that_of_a_larger_request_is_in_doubt() -> None:
    wrong = measured(65_536, 13.4, stall_ms=2300)
    assert wrong.time_ns.value == pytest.approx(6.9e6, rel=0.02), "the mean of two trials"
    assert doubtful([*SOUND, wrong]) == [wrong]
    mended = without_disturbance(wrong)
    assert mended.time_ns.value == pytest.approx(13_400)
    assert mended.time_ns.high > 1e7, "what was measured stays in the interval"
    assert doubtful([*SOUND, mended]) == []


def test_a_cached_read_above_the_cold_one_is_in_doubt() -> None:
    wrong = measured(65_536, 13.4, stall_ms=400)
    assert doubtful([measured(4096, 1.96), measured(65_536, 200, state="cold"), wrong]) == [wrong]


def test_the_largest_request_is_held_against_its_share() -> None:
    wrong = measured(65_536, 13.4, stall_ms=400)
    assert doubtful([measured(4096, 1.96), wrong]) == [wrong]


def test_cached_reads_that_all_were_disturbed_are_in_doubt() -> None:
    """Where the machine was busy throughout, no neighbour shows it: most reads of each size do."""
    wrong = [measured(size, time, stall_ms=5) for size, time in ((512, 1.0), (4096, 1.1), (16_384, 2.9))]
    assert doubtful(wrong) == wrong


def test_what_is_always_slow_is_a_property_of_the_storage() -> None:
    assert doubtful([*SOUND, measured(65_536, 7000)]) == []
    assert doubtful([*SOUND, measured(65_536, 13.4)]) == []
