from __future__ import annotations

import pytest

from dxt_replay.replay.commands.session import of_run, progress
from dxt_replay.replay.run.feeder import Progress
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S


def test_a_timed_run_says_how_late_it_is_and_how_long_it_will_take() -> None:
    done = Progress(done=1500, total=6000, elapsed_ns=3 * NS_PER_S, expected_ns=10 * NS_PER_S, lag_ns=1500 * NS_PER_MS)
    assert of_run(done) == "replaying 1,500 of 6,000 operations, 500/s, lag 1.500 s, 8 s left"


@pytest.mark.parametrize(("done", "left"), [(1500, "9 s left"), (0, "time left unknown")])
def test_a_run_without_due_times_is_judged_by_its_rate(done: int, left: str) -> None:
    done = Progress(done=done, total=6000, elapsed_ns=3 * NS_PER_S, expected_ns=10 * NS_PER_S)
    assert of_run(done).endswith(f"/s, {left}")


def test_nothing_is_shown_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(of_run) as report:
        report(Progress(done=1, total=2, elapsed_ns=1, expected_ns=2))
    assert capsys.readouterr() == ("", "")
