from __future__ import annotations

from typing import Any

import pytest

from dxt_replay.replay.regression.comparison import BASELINE, CANDIDATE
from dxt_replay.replay.regression.health import Health, examine
from tests.replay.regression.run_builder import run


def examined(candidate: dict[str, Any], baseline: dict[str, Any] | None = None, **choices: Any) -> Health:
    """Three pairs whose sides have these fields."""
    runs = [run(BASELINE, pair, **(baseline or {})) for pair in (1, 2, 3)]
    runs += [run(CANDIDATE, pair, **candidate) for pair in (1, 2, 3)]
    return examine(runs, **{"threshold_pct": 5.0, "closed_loop": True, "direct": False, **choices})


def test_nothing_to_complain_of() -> None:
    assert examined({}) == Health()
    assert examine([], threshold_pct=5, closed_loop=True, direct=False) == Health()


@pytest.mark.parametrize(
    ("different", "told"),
    [
        ({"operations": 99}, "operations from 99 to 100"),
        ({"failed": 3}, "failed operations from 0 to 3"),
        ({"failed_closes": 1}, "files whose close failed from 0 to 1"),
        ({"short": 2}, "fewer bytes than recorded from 0 to 2"),
        ({"bytes_read": 8192}, "bytes read from 4,096 to 8,192"),
        ({"bytes_written": 1}, "bytes written from 0 to 1"),
        ({"starved_s": 0.2}, "could not feed its lanes for 20.0 %"),
        ({"resident_pct": 50.0}, "0 % (baseline), 50 % (candidate)"),
    ],
)
def test_what_makes_a_comparison_invalid(different: dict[str, Any], told: str) -> None:
    (obstacle,) = examined(different).obstacles
    assert told in obstacle


def test_failures_on_both_sides_alike_are_a_warning() -> None:
    health = examined({"failed": 3}, {"failed": 3})
    assert not health.obstacles
    assert health.warnings == ("up to 3 of 100 operations of a run failed: see `dxt-replay run`",)


def test_different_caches_matter_less_where_they_are_not_used() -> None:
    assert not examined({"resident_pct": 50.0}, direct=True).obstacles
    kept = {"resident_pct": 100.0, "keeps_pages": True, "warnings": ("2 files are on tmpfs, which keeps its pages",)}
    health = examined(kept)
    assert not health.obstacles
    assert any("0 % (baseline), 100 % (candidate)" in text for text in health.warnings)
    assert any("on tmpfs" in text for text in health.warnings)


def test_a_cache_that_nobody_can_see_is_no_difference() -> None:
    assert examined({"resident_pct": None}) == Health()


def test_a_cold_run_that_was_not_cold_is_told() -> None:
    health = examined({"resident_pct": 8.0})
    assert health == Health(warnings=("3 of 6 cold runs began with up to 8 % of the data in the page cache",))
    assert examined({"resident_pct": 8.0, "cache_policy": "as found"}) == Health()


def test_a_late_replayer_is_told_where_lag_is_its_own() -> None:
    late = {"lag_us": {"p99": 5_000.0}, "jitter_us": {"p99": 20.0}}
    (warning,) = examined(late).warnings
    assert warning.startswith("in 3 of 6 runs")
    assert examined(late, closed_loop=False) == Health()
    assert examined({**late, "jitter_us": {"p99": 4_000.0}}) == Health()  # the machine's
    assert examined({**late, "jitter_us": None}) == Health()


def test_the_replayers_own_work_is_told() -> None:
    (warning,) = examined({"overhead_pct": 7.0}).warnings
    assert "7.0 %" in warning
    assert examined({"overhead_pct": 7.0}, threshold_pct=10.0) == Health()
