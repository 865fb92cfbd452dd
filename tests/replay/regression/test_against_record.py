"""New runs beside those of a record: what is compared, what is refused, and what is said beside the verdict."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dxt_replay.replay.regression.against_record import (
    busy_warning,
    check_comparable,
    environment_differences,
    jitter_doubt,
    session_warnings,
)
from dxt_replay.replay.regression.comparison import Regression, compare_sides, record_of
from dxt_replay.replay.regression.conditions import Conditions
from dxt_replay.replay.regression.experiment_record import ExperimentRecord
from dxt_replay.replay.regression.health import Health, examine
from dxt_replay.replay.regression.interval_verdict import Rule, Verdict
from dxt_replay.replay.regression.regression_sections import regression_markdown, regression_sections
from dxt_replay.replay.regression.reports import junit_document
from dxt_replay.replay.regression.run_metrics import MeasuredRun
from dxt_replay.traces.errors import UsageError
from tests.replay.regression.record_builder import DAY_NS, MACHINE, OPTIONS, START_NS, TARGET, record
from tests.replay.regression.run_builder import run, setting

STEADY = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98]


def against(earlier: ExperimentRecord, values: list[float], **changes: Any) -> Regression:
    runs = record(values, day=1).runs
    recorded = earlier.counted_runs()
    machine, target = replace(MACHINE, **changes), replace(TARGET, options=("noatime", "rw"))
    conditions = Conditions(
        capture=earlier.capture,
        options=OPTIONS,
        machine=machine,
        targets={"candidate": target},
        against=earlier,
        differences=environment_differences(earlier, machine, target),
    )
    health = examine([*recorded, *runs], threshold_pct=5.0, closed_loop=True, direct=False)
    made = setting(baseline="/mnt/t", candidate="/mnt/t", warmup=0)
    return compare_sides(
        runs, primary="elapsed_s", rule=Rule(), health=health, setting=made, recorded=recorded, conditions=conditions
    )


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.3, Verdict.REGRESSION), (0.7, Verdict.IMPROVEMENT), (1.001, Verdict.NO_CHANGE), (1.03, Verdict.INCONCLUSIVE)],
)
def test_the_runs_of_the_record_are_the_baseline(factor: float, verdict: Verdict) -> None:
    found = against(record(STEADY), [factor * value for value in STEADY])
    assert found.verdict is verdict
    assert found.fails() == (verdict is Verdict.REGRESSION)
    assert found.metrics["elapsed_s"].found.ratio == pytest.approx(factor, rel=0.02)
    assert "Mann-Whitney" in found.as_json()["rule"]["test"]


def test_differences_of_the_environment_stand_beside_the_verdict() -> None:
    found = against(record(STEADY), [1.3 * value for value in STEADY], kernel="6.8.0")
    first = " ".join(row[0] for row in regression_sections(found)[0].rows)
    assert "Not as it was for the record: kernel 6.1.0 -> 6.8.0; mount option noatime added." in first
    assert "6 runs and of 6" in first
    assert found.compared_with == "the record day-0.json"
    markdown = regression_markdown(found)
    assert markdown.startswith("**This training would notice: the candidate is 30")
    assert "kernel 6.1.0 -\\> 6.8.0" in markdown.split("\n\n")[1]
    assert "record: day-0.json, 6 runs of 2025-10-09 08:53 UTC" in markdown


def test_its_own_record_holds_the_runs_of_this_session_alone() -> None:
    earlier = record(STEADY)
    made = record_of(against(earlier, STEADY))
    assert [one.start_ns >= START_NS + DAY_NS for one in made.runs] == [True] * 6
    assert (made.result.against, set(made.targets)) == (earlier.start_ns, {"candidate"})


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        (record(capture=replace(record().capture, digest="e" * 64)), "is other work with 100"),
        (record(options=replace(OPTIONS, cache="as found")), "with cache as found and these runs with cache cold"),
        (record(options=replace(OPTIONS, pace="none")), "with pace none and these runs with pace steps"),
        (record(runs=(run("candidate", 1, elapsed_s=1.0, stopped=True),)), "has no finished run"),
    ],
)
def test_what_cannot_be_compared_is_refused(recorded: ExperimentRecord, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_comparable(recorded, record().capture, OPTIONS)
    check_comparable(record(), record().capture, OPTIONS)


def test_a_session_that_drifted_is_named() -> None:
    steady, drifting = record([1.0, 1.01] * 6), record([*np.linspace(1.0, 1.5, 12).tolist()])
    assert len(session_warnings(steady.runs, steady.runs, "elapsed_s")) == 1
    drift = session_warnings(drifting.runs, steady.runs, "elapsed_s")[1]
    assert "the runs of the record drifted by +2" in drift
    assert "this session drifted" in session_warnings(steady.runs, drifting.runs, "elapsed_s")[1]


def on_machine(us: float, factor: float = 1.0) -> list[MeasuredRun]:
    return [
        run("candidate", pair, elapsed_s=factor * value, jitter_us={"p90": us}) for pair, value in enumerate(STEADY, 1)
    ]


def test_a_machine_that_was_busier_is_named() -> None:
    quiet, loaded = on_machine(300.0), on_machine(9000.0)
    assert jitter_doubt(quiet, quiet) == {}
    assert jitter_doubt(loaded, [run("candidate", jitter_us={"p90": 4000.0})]) == {}
    assert jitter_doubt(quiet, [run("candidate", jitter_us={"p90": 950.0})]) == {}
    assert jitter_doubt(quiet, [run("candidate", jitter_us=None)]) == {}
    busier = jitter_doubt(quiet, loaded)[Verdict.REGRESSION]
    assert busier.startswith("the machine was busier: an idle thread woke up to 9.00 ms")
    assert jitter_doubt(loaded, quiet)[Verdict.IMPROVEMENT].startswith("the machine was quieter")


@pytest.mark.parametrize(
    ("recorded_us", "us", "factor", "verdict"),
    [
        (1120.0, 100.0, 1.5, Verdict.REGRESSION),  # in spite of a quieter machine: no reason to pass for ever
        (1120.0, 100.0, 0.5, Verdict.INCONCLUSIVE),
        (100.0, 1120.0, 1.5, Verdict.INCONCLUSIVE),
        (100.0, 1120.0, 0.5, Verdict.IMPROVEMENT),
    ],
)
def test_another_load_of_the_machine_voids_only_what_it_explains(
    recorded_us: float, us: float, factor: float, verdict: Verdict
) -> None:
    recorded, runs = on_machine(recorded_us), on_machine(us, factor)
    found = compare_sides(
        runs,
        primary="elapsed_s",
        rule=Rule(),
        health=Health(doubts=jitter_doubt(recorded, runs)),
        setting=setting(),
        recorded=recorded,
    )
    assert found.verdict is verdict
    assert found.as_json()["valid"] is (verdict is not Verdict.INCONCLUSIVE)
    assert "the machine was" in " ".join((*found.health.obstacles, *found.health.warnings))


def test_a_busy_machine_is_said_when_the_record_is_made() -> None:
    assert busy_warning(on_machine(300.0)) == []
    assert busy_warning([run("candidate", jitter_us=None)]) == []
    assert busy_warning(on_machine(1120.0))[0].startswith("the machine was busy: an idle thread woke up to 1.12 ms")


def test_too_few_runs_of_a_record_are_no_verdict() -> None:
    found = against(record([1.0]), [1.3 * value for value in STEADY])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "2 runs a side are too few, as fewer than 39" in found.headline


def test_names_cannot_command_a_forge() -> None:
    hostile = "/a|b`c`<img src=x>@somebody #17 [x](y) ~~z~~\x1b[2J\n**bold**"
    found = against(record(STEADY), STEADY)
    result = replace(found, setting=replace(found.setting, candidate=hostile))
    shown = next(line for line in regression_markdown(result).splitlines() if line.startswith("- candidate"))
    assert r"a\|b\`c\`\<img src=x\>@<!-- -->somebody #<!-- -->17 \[x\](y) \~\~z\~\~\\x1b\[2J\\n\*\*bold\*\*" in shown


def test_the_time_of_the_junit_file_is_that_of_its_own_runs() -> None:
    values = [1.1 * value for value in STEADY]
    root = xml.fromstring(junit_document(against(record(STEADY), values), inconclusive_fails=False))
    assert float(root.attrib["time"]) == pytest.approx(sum(values), abs=1e-3)
