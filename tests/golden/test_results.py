"""What `run`, `run --repeat` and `regress` print, at 80 and 120 columns, of fixed results.

The figures of a real replay differ each time: here `results/run.json` is what `dxt-replay run --json` printed once, and
the pairs of an experiment are written below. After a wanted change: run with GOLDEN=write in the environment, and read
the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dxt_replay.replay.commands.session import OUTPUT_SCHEMA_VERSION
from dxt_replay.replay.regress.comparison import BASELINE, CANDIDATE, Regression
from dxt_replay.replay.regress.metrics import MeasuredRun
from dxt_replay.replay.run.result import Repeats
from dxt_replay.replay.show.regress import regression_sections
from dxt_replay.replay.show.run import repeat_sections, run_sections
from dxt_replay.replay.show.section import in_brief
from dxt_replay.replay.show.terminal import print_sections
from tests.golden.golden_file import check_golden
from tests.replay.regress.builder import result_of, run
from tests.run_results import RUN, run_result

LATE = {"p50": 1800.5, "p90": 9_230.0, "p99": 41_250.0, "max": 88_125.5}

RUNS: Mapping[str, Mapping[str, Any]] = {
    "run-on-time": {},
    "run-late": {
        "lag_us": LATE,
        "response_us": {name: value + 30 for name, value in LATE.items()},
    },
    "run-failed": {
        "failed": 13,
        "errors": {"ENOENT": 12, "EIO": 1},
        "close_errors": {"ENOSPC": 1},
        "short": 2,
    },
    "run-stopped": {"stopped": True, "operations": 210, "elapsed_s": 2.104},
    "run-faster": {"speed": 4.0, "compute_speed": 4.0, "io_speed": 4.0, "elapsed_s": 1.884},
    "run-as-fast-as-it-goes": {"pace": "none", "elapsed_s": 0.046, "lag_us": None},
    "run-direct": {"direct": True, "backends": ["mpi_io", "posix"]},
    "run-empty": {
        "operations": 0,
        "elapsed_s": 0.0,
        "overhead": {"fraction_pct": None, "per_operation_ns": 26.316},
        "lag_us": None,
        "latency_us": None,
        "latency_by_operation_us": {},
        "response_us": None,
    },
}
"""Name of a golden file -> what differs from RUN."""


def repeats(**last: Any) -> Repeats:
    """Three runs, of which the last one differs by `last`."""
    runs = [{**RUN, "elapsed_s": elapsed} for elapsed in (7.533, 7.541, 7.602)]
    runs[-1] |= last
    return Repeats(runs=tuple(map(run_result, runs)))


REPEATS: Mapping[str, Mapping[str, Any]] = {
    "repeat": {},
    "repeat-failed": {"failed": 13, "errors": {"EIO": 13}, "short": 2},
    "repeat-late": {"lag_us": LATE},
    "repeat-stopped": {"stopped": True, "operations": 210, "elapsed_s": 2.104},
}

ELAPSED_S = (7.412, 7.533, 7.498, 7.461, 7.577, 7.440, 7.512, 7.489, 7.530, 7.455, 7.502, 7.471)
"""Of the baseline, by pair."""

STEADY = (1.000, 1.003, 0.998, 1.001, 0.997, 1.002, 0.999, 1.004, 0.996, 1.000, 1.002, 0.999)
NOISY = (1.00, 1.21, 0.83, 1.08, 0.91, 1.17, 0.88, 1.30, 0.79, 1.02, 1.12, 0.95)
"""The candidate in each pair, as a multiple of the baseline, before the change of a case."""

CASES: Mapping[str, Mapping[str, Any]] = {
    "regress-regression": {"change": 1.18},
    "regress-several-times": {"change": 3.4},
    "regress-improvement": {"change": 0.85},
    "regress-no-change": {"change": 1.0},
    "regress-inconclusive": {"change": 1.0, "spread": NOISY},
    "regress-too-few-pairs": {"change": 1.18, "pairs": 3},
    "regress-few-pairs": {"change": 1.18, "pairs": 6},
    "regress-stopped": {"change": 1.18, "pairs": 7, "stopped": True},
    "regress-not-valid": {"change": 1.18, "resident_pct": 64.0, "failed": 3},
}
"""Name of a golden file -> arguments of `experiment`."""


def measured(side: str, pair: int, factor: float, **changes: Any) -> MeasuredRun:
    elapsed_s = ELAPSED_S[pair - 1] * factor
    of_elapsed = {"latency_mean_us": 24.5, "read_latency_p50_us": 5.1, "read_latency_p99_us": 700}
    metrics = {name: times * elapsed_s for name, times in of_elapsed.items()}
    metrics |= {"elapsed_s": elapsed_s, "io_time_s": elapsed_s / 3, "bandwidth_mib_s": 2900 / elapsed_s}
    late = {"lag_us": {"p50": 1.0, "p90": 4.0, "p99": 60.0, "max": 300.0}, "jitter_us": RUN["jitter_us"]}
    fields = {"operations": 704, "bytes_read": 131_169_920, "bytes_written": 926, "whole_s": elapsed_s}
    return run(side, pair, **{**metrics, **late, **fields, "overhead_pct": 0.02, **changes})


def experiment(
    *, change: float, spread: tuple[float, ...] = STEADY, pairs: int = 12, stopped: bool = False, **candidate: Any
) -> Regression:
    """The result of an experiment. `candidate`: what else its runs differ in; `stopped`: within the last run."""
    runs = []
    for pair in range(1, pairs + 1):
        times = change * spread[pair - 1]
        both = [
            measured(BASELINE, pair, 1.0),
            measured(CANDIDATE, pair, times, stopped=stopped and pair == pairs, **candidate),
        ]
        runs += both if pair % 2 else both[::-1]
    return result_of(runs, baseline="/mnt/old/twin", candidate="/mnt/new/twin")


@pytest.fixture(params=[80, 120])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Width of the terminal."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def check(case: str, columns: int, printed: str) -> None:
    assert max(len(line) for line in printed.splitlines()) <= columns
    check_golden(f"{case}-{columns}", printed)


def test_the_json_of_a_run_keeps_its_shape() -> None:
    printed = {"schema_version": OUTPUT_SCHEMA_VERSION, **run_result(RUN).as_json()}
    assert list(printed) == list(RUN)
    assert printed == {**RUN, "overhead": pytest.approx(RUN["overhead"])}


def test_the_json_of_repeated_runs_has_the_spread_of_those_that_ended() -> None:
    printed = repeats(stopped=True, elapsed_s=2.104).as_json()
    assert printed["elapsed_s"] == {"median": pytest.approx(7.537), "min": 7.533, "max": 7.541}
    assert [run["elapsed_s"] for run in printed["runs"]] == [7.533, 7.541, 2.104]


@pytest.mark.parametrize("case", RUNS)
def test_a_run(case: str, columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(run_sections(run_result({**RUN, **RUNS[case]})))
    check(case, columns, capsys.readouterr().out)


@pytest.mark.parametrize("case", REPEATS)
def test_repeated_runs(case: str, columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(repeat_sections(repeats(**REPEATS[case])))
    check(case, columns, capsys.readouterr().out)


@pytest.mark.parametrize("case", CASES)
def test_an_experiment(case: str, columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    """In brief at 80 columns, with all details at 120."""
    sections = regression_sections(experiment(**CASES[case]))
    print_sections(in_brief(sections) if columns == 80 else sections)
    printed = capsys.readouterr().out
    assert columns != 80 or len(printed.splitlines()) <= 15
    check(case, columns, printed)
