from __future__ import annotations

from dxt_replay.traces.records import allowed_lag_us, kept_times_limit_us, machine_jitter_us


def test_a_lag_is_allowed_as_far_as_the_machine_explains_it() -> None:
    assert allowed_lag_us(None) == 1_000
    assert allowed_lag_us({"p99": 20.0}) == 1_000
    assert allowed_lag_us({"p99": 4_000.0}) == 40_000
    assert allowed_lag_us({"p99": 3_500_000.0}) == 500_000, "a replay that starves the idle thread is not on time"


def test_recorded_times_may_be_missed_by_a_share_of_the_run_or_by_what_the_machine_explains() -> None:
    assert kept_times_limit_us(8.0, 1.0, 1_000) == 80_000
    assert kept_times_limit_us(0.05, 1.0, 1_000) == 1_000, "1 % of 50 ms is less than an idle thread is late"


def test_a_replay_that_takes_the_machine_is_held_to_the_jitter_before_it() -> None:
    before, during = {"p99": 20.0}, {"p99": 4_000.0}
    assert machine_jitter_us(before, during, 95.0) == before
    assert machine_jitter_us(before, during, 30.0) == during, "others keep the idle thread from waking"
    assert machine_jitter_us(None, during, 95.0) == during
    assert machine_jitter_us(before, during, None) == during
