"""The result of an experiment from its runs: verdict, obstacles, what a person and a CI server read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dxt_replay.replay.regress.comparison import BASELINE, CANDIDATE, Regression, compare_sides, record_of
from dxt_replay.replay.regress.environment import machine_changes, target_changes
from dxt_replay.replay.regress.health import Health, busy_warning, examine, jitter_doubt, session_warnings
from dxt_replay.replay.regress.metrics import MeasuredRun
from dxt_replay.replay.regress.record import Conditions, ExperimentRecord, check_comparable
from dxt_replay.replay.regress.reports import junit_document, regression_markdown
from dxt_replay.replay.regress.sections import regression_sections
from dxt_replay.replay.regress.statistics import Rule, Verdict
from dxt_replay.traces.errors import UsageError
from tests.replay.regress.builder import (
    DAY_NS,
    MACHINE,
    OPTIONS,
    START_NS,
    TARGET,
    merged,
    pairs,
    record,
    result_of,
    run,
    setting,
    slower,
)

STEADY = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98]
HOSTILE = "/data/<&\"'\x00\x1b[31m\udcff ]]> \ufffe é 字 \U0001f600"


def test_the_primary_metric_decides() -> None:
    for factor, verdict in ((1.2, Verdict.REGRESSION), (0.8, Verdict.IMPROVEMENT), (1.0, Verdict.NO_CHANGE)):
        assert result_of(slower(factor)).verdict is verdict
    beside = merged(slower(1.0), slower(3.0, "io_time_s"), slower(0.5, "bandwidth_mib_s"))
    found = result_of(beside)
    assert found.verdict is Verdict.NO_CHANGE
    assert list(found.metrics) == ["elapsed_s", "io_time_s", "bandwidth_mib_s"]
    assert {found.metrics[name].judgement.verdict for name in ("io_time_s", "bandwidth_mib_s")} == {Verdict.SLOWER}
    assert result_of(beside, primary="io_time_s").verdict is Verdict.REGRESSION


def test_both_verdicts_are_said_everywhere() -> None:
    """Storage that is three times slower, which this training does not notice."""
    found = result_of(merged(slower(1.0), slower(3.0, "io_time_s")))
    assert found.headline.startswith("This training would not notice: the candidate is as fast as the baseline, within")
    assert found.storage.startswith("The storage itself is 3.0 times slower (")
    assert regression_sections(found)[0].rows[1] == (found.storage,)
    assert regression_markdown(found).splitlines()[2] == found.storage.replace("(", "(")
    case = suite_of(found).find("testcase[@name='elapsed_s']/system-out")
    assert case is not None
    assert (case.text or "").splitlines()[:2] == [found.headline, found.storage]


def test_metrics_that_do_not_decide_share_their_probability_of_an_error() -> None:
    """What alone would be told is not told among as many."""
    names = ["io_time_s", "metadata_time_s", "latency_mean_us", "read_latency_p50_us", "read_latency_p99_us"]
    doubtful = [1.2] * 7 + [0.99, 0.98, 0.97]
    runs = merged(slower(1.0), *(pairs([1.0] * 10, [x + i / 1e6 for x in doubtful], n) for i, n in enumerate(names)))
    found = result_of(runs)
    for name in names:
        metric = found.metrics[name]
        assert metric.found.p_value < 0.05
        assert metric.p_adjusted == pytest.approx(min(5 * metric.found.p_value, 1), rel=1e-6)
        assert metric.judgement.verdict is Verdict.INCONCLUSIVE
    assert found.metrics["elapsed_s"].p_adjusted == found.metrics["elapsed_s"].found.p_value
    alone = result_of(merged(slower(1.0), pairs([1.0] * 10, doubtful, "io_time_s")))
    assert alone.metrics["io_time_s"].judgement.verdict is Verdict.SLOWER
    # Six pairs can judge one metric; of two others, the smaller p-value is doubled by Holm's correction.
    runs = merged(slower(1.2), slower(66.0, "io_time_s"), slower(5.0, "read_latency_p99_us"))
    few = result_of(runs[:12])
    assert few.secondary_pairs_needed == 7
    assert "certain by this metric alone" in few.metrics["io_time_s"].judgement.reason
    figures = regression_sections(few)[1]
    assert {row[0]: row for row in figures.rows}["I/O time per rank (union)"][3::2] == ("65.8 x", "-")
    assert any("7 pairs are the least" in note for note in figures.notes)
    assert result_of(runs).secondary_pairs_needed is None


def test_runs_that_do_not_count() -> None:
    warmups = [run("baseline", 0, elapsed_s=99.0), run("candidate", 0, elapsed_s=1.0)]
    found = result_of([*warmups, *slower(1.0)])
    assert len(found.metrics["elapsed_s"].baseline) == 10
    assert (len(found.as_json()["order"]), len(found.as_json()["runs"])) == (20, 22)
    assert len(result_of(slower(1.2)[:-1]).metrics["elapsed_s"].candidate) == 9
    runs = slower(1.0)
    runs[4] = replace(runs[4], metrics={"elapsed_s": 4.0}, whole_s=4.0, stood_still_s=3.0)
    still = result_of(runs)
    assert (still.verdict, len(still.metrics["elapsed_s"].baseline)) == (Verdict.NO_CHANGE, 9)
    runs = merged(slower(1.0), slower(1.0, "io_time_s"))
    runs[3] = run(runs[3].side, runs[3].pair, elapsed_s=1.0)
    assert list(result_of(runs).metrics) == ["elapsed_s"]
    assert result_of(runs, primary="io_time_s").verdict is Verdict.INCONCLUSIVE


def test_a_stopped_experiment_has_no_verdict() -> None:
    found = result_of([*slower(1.5), run(BASELINE, 11, elapsed_s=0.1, stopped=True)])
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "the experiment was stopped after 10 pairs")
    nothing = result_of([run(BASELINE, 1, elapsed_s=0.1, stopped=True)])
    assert nothing.metrics == {}
    text = regression_markdown(nothing)
    assert text.startswith("**No verdict, inconclusive: the experiment was stopped after 0 pairs.**")
    assert "|" not in text


@pytest.mark.parametrize(
    ("factor", "obstacles", "stopped", "threshold_pct", "statuses"),
    [
        (1.5, (), False, 5.0, (True, True)),
        (0.7, (), False, 5.0, (False, False)),
        (1.0, (), False, 5.0, (False, False)),
        (1.3, (), False, 50.0, (False, False)),
        (1.5, ("other work",), False, 5.0, (False, True)),
        (1.0, (), True, 5.0, (True, True)),
    ],
)
def test_the_command_and_its_junit_document_fail_together(
    factor: float, obstacles: tuple[str, ...], stopped: bool, threshold_pct: float, statuses: tuple[bool, bool]
) -> None:
    runs = slower(factor)
    runs[-1] = replace(runs[-1], stopped=stopped)
    found = result_of(runs, Health(obstacles=obstacles), rule=Rule(threshold_pct=threshold_pct))
    assert tuple(found.fails(inconclusive_fails=choice) for choice in (False, True)) == statuses
    for choice, status in zip((False, True), statuses, strict=True):
        assert int(suite_of(found, inconclusive_fails=choice).attrib["failures"]) == status


def test_the_json_object_has_the_fixed_keys() -> None:
    document = json.loads(json.dumps(result_of(slower(1.2)).as_json(), allow_nan=False))
    metric = document["metrics"]["elapsed_s"]
    low, high = metric["ci"]
    assert (document["verdict"], document["rule"]["alpha"]) == ("regression", 0.05)
    assert 1.15 < low < metric["ratio"] < high < 1.25
    assert metric["minimum_detectable_pct"] < 5
    few = result_of(slower(1.2)[:6]).as_json()["metrics"]["elapsed_s"]
    assert (few["ci"], few["minimum_detectable_pct"]) == ([None, None], None)
    invalid = result_of(slower(1.5), Health(obstacles=("the sides did other work",))).as_json()
    assert (invalid["verdict"], invalid["valid"]) == ("inconclusive", False)
    assert "the sides did other work" in invalid["reason"]
    assert invalid["metrics"]["elapsed_s"]["verdict"] == "regression", "the figures are told all the same"


def test_what_a_person_reads() -> None:
    health = Health(warnings=("mind | <b>`this`</b>",))
    found = result_of(merged(slower(1.2), slower(1.0, "io_time_s")), health)
    verdict, figures, warnings, facts, rule = regression_sections(found)
    said = "This training would notice: the candidate is 19.7 % slower (19.0 to 20.4 %): regression."
    assert verdict.rows[0][0] == said
    assert "in 8 of 10 such experiments of 10 pairs" in verdict.rows[3][0]
    assert (figures.rows[0][0], figures.rows[0][-1]) == ("elapsed time *", "regression")
    assert dict(facts.rows)["order"].startswith("BC BC ")
    assert "seed 7" in dict(facts.rows)["order"]
    assert dict(facts.rows)["page cache"] == "cold; held before a run: baseline 0 %, candidate 0 %"
    assert warnings.rows == (health.warnings,)
    assert rule.rows[0][0].startswith("Regression: the whole 95 % interval")
    first, *lines = regression_markdown(found).splitlines()
    assert first == f"**{said}**"
    table = [line for line in lines if line.startswith("|")]
    assert table[0].split(" | ")[1:3] == ["baseline", "candidate"]
    assert table[1] == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert table[2].startswith("| elapsed time \\* | ")
    assert {line.count(" | ") for line in table} == {5}
    assert "- mind \\| \\<b\\>\\`this\\`\\</b\\>" in lines


def test_names_cannot_command_a_forge() -> None:
    hostile = "/a|b`c`<img src=x>@somebody #17 [x](y) ~~z~~\x1b[2J\n**bold**"
    lines = regression_markdown(result_of(slower(1.0), candidate=hostile)).splitlines()
    shown = next(line for line in lines if line.startswith("- candidate"))
    assert r"a\|b\`c\`\<img src=x\>@<!-- -->somebody #<!-- -->17 \[x\](y) \~\~z\~\~\\x1b\[2J\\n\*\*bold\*\*" in shown


def suite_of(found: Regression, *, inconclusive_fails: bool = False) -> xml.Element:
    """The suite of a document that is as junit-10.xsd wants it."""
    root = xml.fromstring(junit_document(found, inconclusive_fails=inconclusive_fails))
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    counts = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
    assert {key: int(suite.attrib[key]) for key in counts} == {
        key: len(suite.findall(path)) for key, path in counts.items()
    }
    assert all(root.attrib[key] == suite.attrib[key] for key in ("tests", "failures", "errors", "time"))
    tags = [child.tag for child in suite]
    assert tags == sorted(tags, key=["properties", "testcase", "system-out"].index)
    return suite


def test_the_junit_document() -> None:
    beside = slower(2.0, "io_time_s")
    suite = suite_of(result_of(merged(slower(1.5), beside)))
    failure = suite.find("testcase[@name='elapsed_s']/failure")
    assert failure is not None
    assert failure.attrib["type"] == "regression"
    assert "ratio 1.49" in (failure.text or "")
    told = suite.find("testcase[@name='io_time_s']/system-out")
    assert told is not None
    assert (told.text or "").startswith("slower"), "it does not decide"
    assert float(suite.attrib["time"]) == pytest.approx(25, abs=0.5)
    found = result_of(slower(1.5), Health(obstacles=("other work",), warnings=(HOSTILE,)), candidate=HOSTILE)
    skipped = suite_of(found).find("testcase[@name='elapsed_s']/skipped")
    assert skipped is not None
    assert "other work" in skipped.attrib["message"]
    failed = suite_of(found, inconclusive_fails=True).find("testcase[@name='elapsed_s']/failure")
    assert failed is not None
    assert failed.attrib["type"] == "inconclusive"
    name = suite_of(found).attrib["name"].removeprefix("run.capture: ").removesuffix(" against /mnt/old")
    assert name == "/data/<&\"'\\x00\\x1b[31m\\udcff ]]> \\ufffe é 字 \U0001f600"
    case = suite_of(result_of([])).find("testcase")
    assert case is not None
    assert case.attrib["name"] == "elapsed_s", "without figures too"


def examined(candidate: dict[str, Any], baseline: dict[str, Any] | None = None, **choices: Any) -> Health:
    """Three pairs whose sides have these fields."""
    runs = [run(BASELINE, pair, **(baseline or {})) for pair in (1, 2, 3)]
    runs += [run(CANDIDATE, pair, **candidate) for pair in (1, 2, 3)]
    return examine(runs, **{"threshold_pct": 5.0, "closed_loop": True, "direct": False, **choices})


LATE = {"lag_us": {"p99": 5_000.0}, "jitter_us": {"p99": 20.0}}
KEPT = {"resident_pct": 100.0, "keeps_pages": True}


@pytest.mark.parametrize(
    ("different", "choices", "obstacle", "warning"),
    [
        ({}, {}, "", ""),
        ({"operations": 99}, {}, "operations from 99 to 100", ""),
        ({"failed": 3}, {}, "failed operations from 0 to 3", "up to 3 of 100 operations of a run failed"),
        ({"failed": 3}, {"baseline": {"failed": 3}}, "", "up to 3 of 100 operations of a run failed"),
        ({"failed_closes": 1}, {}, "files whose close failed from 0 to 1", ""),
        ({"short": 2}, {}, "fewer bytes than recorded from 0 to 2", ""),
        ({"bytes_read": 8192}, {}, "bytes read from 4,096 to 8,192", ""),
        ({"bytes_written": 1}, {}, "bytes written from 0 to 1", ""),
        ({"starved_s": 0.2}, {}, "could not feed its lanes for 20.0 %", ""),
        ({"resident_pct": 50.0, "cache_policy": "as found"}, {}, "0 % (baseline), 50 % (candidate)", ""),
        ({"resident_pct": 50.0, "cache_policy": "as found"}, {"direct": True}, "", "0 % (baseline), 50 % (candidate)"),
        ({**KEPT, "cache_policy": "as found"}, {}, "", "0 % (baseline), 100 % (candidate)"),
        ({"resident_pct": None}, {}, "", ""),
        ({"resident_pct": 8.0}, {}, "", "3 of 6 cold runs began with up to 8 % of the data in the page cache"),
        ({"resident_pct": 8.0, "cache_policy": "as found"}, {}, "", ""),
        (LATE, {}, "", "in 3 of 6 runs"),
        (LATE, {"closed_loop": False}, "", ""),
        ({**LATE, "jitter_us": {"p99": 4_000.0}}, {}, "", ""),  # the machine's
        ({**LATE, "jitter_us": None}, {}, "", ""),
        ({"overhead_pct": 7.0}, {}, "", "7.0 %"),
        ({"overhead_pct": 7.0}, {"threshold_pct": 10.0}, "", ""),
        ({"warnings": ("2 files are on tmpfs",)}, {}, "", "2 files are on tmpfs"),
    ],
)
def test_what_makes_a_comparison_invalid_or_doubtful(
    different: dict[str, Any], choices: dict[str, Any], obstacle: str, warning: str
) -> None:
    found = examined(different, **choices)
    for told, expected in ((found.obstacles, obstacle), (found.warnings, warning)):
        assert len(told) == bool(expected)
        assert expected in "".join(told)
    assert examine([], threshold_pct=5, closed_loop=True, direct=False) == Health()


def against(earlier: ExperimentRecord, values: list[float], **changes: Any) -> Regression:
    runs, recorded = record(values, day=1).runs, earlier.counted_runs()
    machine, target = replace(MACHINE, **changes), replace(TARGET, options=("noatime", "rw"))
    differences = *machine_changes(earlier.machine, machine), *target_changes(earlier.targets["candidate"], target)
    conditions = Conditions(
        capture=earlier.capture,
        options=OPTIONS,
        machine=machine,
        targets={"candidate": target},
        against=earlier,
        differences=differences,
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
    values = [factor * value for value in STEADY]
    found = against(record(STEADY), values)
    assert (found.verdict, found.fails()) == (verdict, verdict is Verdict.REGRESSION)
    assert found.metrics["elapsed_s"].found.ratio == pytest.approx(factor, rel=0.02)
    assert "Mann-Whitney" in found.as_json()["rule"]["test"]
    assert float(suite_of(found).attrib["time"]) == pytest.approx(sum(values), abs=1e-3), "of its own runs"
    made = record_of(found)
    assert [one.start_ns >= START_NS + DAY_NS for one in made.runs] == [True] * 6, "the runs of this session alone"
    assert (made.result.against, set(made.targets)) == (record(STEADY).start_ns, {"candidate"})


def test_differences_of_the_environment_stand_beside_the_verdict() -> None:
    found = against(record(STEADY), [1.3 * value for value in STEADY], kernel="6.8.0")
    first = " ".join(row[0] for row in regression_sections(found)[0].rows)
    assert "Not as it was for the record: kernel 6.1.0 -> 6.8.0; mount option noatime added." in first
    assert "6 runs and of 6" in first
    assert found.compared_with == "the record day-0.json"
    markdown = regression_markdown(found)
    assert "kernel 6.1.0 -\\> 6.8.0" in markdown.split("\n\n")[1]
    assert "record: day-0.json, 6 runs of 2025-10-09 08:53 UTC" in markdown
    few = against(record([1.0]), [1.3 * value for value in STEADY])
    assert "2 runs a side are too few, as fewer than 39" in few.headline


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
    assert "the runs of the record drifted by +2" in session_warnings(drifting.runs, steady.runs, "elapsed_s")[1]
    assert "this session drifted" in session_warnings(steady.runs, drifting.runs, "elapsed_s")[1]


def on_machine(us: float | None, factor: float = 1.0) -> list[MeasuredRun]:
    jitter = None if us is None else {"p90": us}
    return [run("candidate", pair, elapsed_s=factor * value, jitter_us=jitter) for pair, value in enumerate(STEADY, 1)]


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
    health = Health(doubts=jitter_doubt(recorded, runs))
    found = compare_sides(runs, primary="elapsed_s", rule=Rule(), health=health, setting=setting(), recorded=recorded)
    assert (found.verdict, found.as_json()["valid"]) == (verdict, verdict is not Verdict.INCONCLUSIVE)
    word = "quieter" if us < recorded_us else "busier"
    assert f"the machine was {word}: an idle thread" in " ".join((*found.health.obstacles, *found.health.warnings))


def test_a_machine_that_was_alike_or_busy() -> None:
    for before, after in ((300.0, 300.0), (9000.0, 4000.0), (300.0, 950.0), (300.0, None)):
        assert jitter_doubt(on_machine(before), on_machine(after)) == {}
    assert busy_warning(on_machine(300.0)) == busy_warning(on_machine(None)) == []
    assert busy_warning(on_machine(1120.0))[0].startswith("the machine was busy: an idle thread woke up to 1.12 ms")
