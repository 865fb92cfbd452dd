"""What a replayed window says of a prediction."""

from __future__ import annotations

import pytest

from dxt_replay.replay.simulation.check import Agreement, first_steps
from dxt_replay.replay.simulation.predict import StepTime

S = 10**9


def agreement(measured_s: float, *, free_s: float = 8.0) -> Agreement:
    return Agreement(steps=(0, 9), simulated_ns=10 * S, free_ns=round(free_s * S), measured_ns=round(measured_s * S))


@pytest.mark.parametrize(
    ("measured_s", "verdict"),
    [
        (10, "agrees"),
        (10.4, "agrees"),
        (9.6, "agrees"),
        (10.6, "differs"),
        (14, "differs"),
        (16, "contradicts"),
        (6, "contradicts"),
    ],
)
def test_the_verdict(measured_s: float, verdict: str) -> None:
    assert agreement(measured_s).verdict == verdict


def test_the_interval_holds_the_whole_time_scaled_and_the_cost_of_storage_scaled() -> None:
    """Of 10 s storage costs 2, and 3 in the replay. In the job of 100 s it costs 50: so 110 s, or 125 s."""
    assert agreement(11).widened((95 * S, 105 * S), 50 * S) == (95 * S, round(132.5 * S))
    assert agreement(9).widened((95 * S, 105 * S), 50 * S) == (round(72.5 * S), 105 * S)


def test_the_window_is_the_first_steps_that_take_so_long() -> None:
    half_s = {"compute": 250.0, "input_wait": 200.0, "loading": 50.0}
    others = dict.fromkeys(("meetings", "checkpoints", "evaluation"), 0.0)
    steps = [StepTime(step=number, **half_s, **others) for number in range(5, 25)]
    assert first_steps(steps, 3.0) == (5, 10)
    assert first_steps(steps, 10.0) is None
    assert first_steps(steps, 60.0) is None
    assert first_steps([], 1.0) is None
