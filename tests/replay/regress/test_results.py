"""The result of an experiment from its runs: verdict, obstacles, and what a person, a forge and a CI server read.

`tests/golden` has the text of each verdict."""

import json
import xml.etree.ElementTree as xml
from dataclasses import replace

import numpy as np
import pytest

from dxt_replay.replay.regress.comparison import BASELINE, CANDIDATE
from dxt_replay.replay.regress.health import busy_warning, jitter_doubt, session_warnings
from dxt_replay.replay.regress.statistics import Rule, Verdict
from dxt_replay.replay.show.regress import junit_document, regress_page, regression_markdown, regression_sections
from dxt_replay.replay.show.section import seconds
from tests.replay.regress.builder import ON_TIME, TARGET, merged, pairs, record, result_of, run, slower
from tests.replay.show.page.pages import HOSTILE, SHOWN, Elements, carried

STEADY = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98]
SLOW_IO = (slower(3.0, "io_time_s"), slower(0.5, "bandwidth_mib_s"))
WARM_UPS = [run(BASELINE, 0, elapsed_s=99.0), run(CANDIDATE, 0, elapsed_s=1.0)]
UNFINISHED = run(BASELINE, 11, elapsed_s=0.1, stopped=True)
OTHER_WORK = [replace(each, operations=99) if each.side == CANDIDATE else each for each in slower(1.5)]
STOOD_STILL = slower(1.0)
STOOD_STILL[4] = replace(STOOD_STILL[4], metrics={"elapsed_s": 4.0}, whole_s=4.0, stood_still_s=3.0)


@pytest.mark.parametrize(
    ("runs", "changes", "verdict", "counted", "statuses"),
    [
        (slower(1.5), {}, "regression", 10, (1, 1)),
        (slower(0.8), {}, "improvement", 10, (0, 0)),
        (slower(1.0), {}, "no change", 10, (0, 0)),
        (slower(1.3), {"rule": Rule(threshold_pct=50.0)}, "no change", 10, (0, 0)),
        (OTHER_WORK, {}, "inconclusive", 10, (0, 1)),
        ([*slower(1.5), UNFINISHED], {}, "inconclusive", 10, (1, 1)),
        ([UNFINISHED], {}, "inconclusive", 0, (1, 1)),
        ([], {}, "inconclusive", 0, (0, 1)),
        (merged(slower(1.0), *SLOW_IO), {}, "no change", 10, (0, 0)),
        (merged(slower(1.0), *SLOW_IO), {"primary": "io_time_s"}, "regression", 10, (1, 1)),
        ([*WARM_UPS, *slower(1.0)], {}, "no change", 10, (0, 0)),
        (slower(1.2)[:-1], {}, "regression", 9, (1, 1)),
        (STOOD_STILL, {}, "no change", 9, (0, 0)),
    ],
)
def test_the_verdict_its_status_and_its_junit_document(runs, changes, verdict, counted, statuses):
    found = result_of(runs, **changes)
    assert found.verdict.value == verdict
    assert len(found.metrics[found.primary].baseline if found.metrics else ()) == counted
    for choice, status in zip((False, True), statuses, strict=True):
        assert found.fails(inconclusive_fails=choice) == status
        assert int(suite_of(found, inconclusive_fails=choice).attrib["failures"]) == status
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert (document["verdict"], document["valid"]) == (verdict, runs is not OTHER_WORK)
    assert (len(document["runs"]), len(document["order"])) == (len(runs), sum(bool(each.pair) for each in runs))


def suite_of(found, *, inconclusive_fails=False):
    """The suite of a document that is as junit-10.xsd wants it."""
    root = xml.fromstring(junit_document(found, inconclusive_fails=inconclusive_fails))
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    for key, path in (("tests", "testcase"), ("failures", "testcase/failure"), ("skipped", "testcase/skipped")):
        assert int(suite.attrib[key]) == len(suite.findall(path))
    assert all(root.attrib[key] == suite.attrib[key] for key in ("tests", "failures", "errors", "time"))
    return suite


def test_a_metric_that_a_run_lacks_is_not_compared():
    runs = merged(slower(1.0), slower(1.0, "io_time_s"))
    runs[3] = run(runs[3].side, runs[3].pair, elapsed_s=1.0)
    assert list(result_of(runs).metrics) == ["elapsed_s"]
    assert result_of(runs, primary="io_time_s").reason == "the runs have no io_time_s to compare"


def test_both_verdicts_are_said_everywhere():
    """Storage that is three times slower, which this training does not notice."""
    found = result_of(merged(slower(1.0), slower(3.0, "io_time_s")))
    assert found.headline.startswith("This training would not notice: the candidate is as fast as the baseline, within")
    assert found.storage.startswith("The storage itself is 3.0 times slower (")
    assert regression_sections(found)[0].rows[1] == (found.storage,)
    opens = result_of(merged(slower(1.0), slower(1.0, "io_time_s"), slower(9.0, "metadata_time_s")))
    assert opens.storage.startswith("The storage itself is 5.0 times slower ("), "1 s and 9 s, not 1 s and 1 s"
    case = suite_of(found).find("testcase[@name='elapsed_s']/system-out")
    assert case.text.splitlines()[:2] == [found.headline, found.storage]
    root = replace(TARGET, mount_point="/", file_system="overlay")
    on_root = result_of(slower(1.0), targets={"baseline": root, "candidate": root})
    assert "Both sides lie on the root file system (overlay)" in regression_sections(on_root)[0].rows[1][0]


def test_metrics_that_do_not_decide_share_their_probability_of_an_error():
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
    assert result_of(runs[:6]).as_json()["metrics"]["elapsed_s"]["ci"] == [None, None]


def warned(runs, text):
    return [replace(runs[0], warnings=(text,)), *runs[1:]]


def test_names_command_neither_a_forge_nor_a_ci_server():
    hostile = "/a|b`c`<img src=x>@somebody #17 [x](y) ~~z~~\x1b[2J\n**bold**"
    lines = regression_markdown(result_of(warned(slower(1.2), "mind"), candidate=hostile)).splitlines()
    shown = next(line for line in lines if line.startswith("- candidate"))
    assert r"a\|b\`c\`\<img src=x\>@<!-- -->somebody #<!-- -->17 \[x\](y) \~\~z\~\~\\x1b\[2J\\n\*\*bold\*\*" in shown
    assert lines[0].startswith("**This training would notice: the candidate is 19.7 % slower (19.0 to 20.4 %): regress")
    table = [line for line in lines if line.startswith("|")]
    assert table[1] == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert {line.count(" | ") for line in table} == {5}
    assert "- mind" in lines
    name = "/data/<&\"'\x00\x1b[31m\udcff ]]> \ufffe é 字 \U0001f600"
    suite = suite_of(result_of(warned(slower(1.5), name), candidate=name))
    shown = "/data/<&\"'\\x00\\x1b[31m\\udcff ]]> \\ufffe é 字 \U0001f600"
    assert suite.attrib["name"] == f"run.capture: {shown} against /mnt/old"
    failure = suite.find("testcase[@name='elapsed_s']/failure")
    assert (failure.attrib["type"], "ratio 1.49" in failure.text) == ("regression", True)


# ------------------------------------------------------------------------------------------------------------ the page

BEFORE = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98, 1.01]
AFTER = [1.21, 1.19, 1.20, 1.25, 1.18, 1.20, 1.22]
WARMED_UP = [run(BASELINE, 0, elapsed_s=2.0), run(CANDIDATE, 0, elapsed_s=2.5), *pairs(BEFORE, AFTER)]


def test_the_page_has_verdicts_a_dot_for_each_run_and_all_figures_and_runs_nothing():
    result = result_of(WARMED_UP)
    page = regress_page(result)
    assert len(page.encode()) < 100_000
    elements = Elements(page)
    assert elements.open == []
    assert [section["id"] for section in elements.of("section")] == ["verdict", "figures", "runs"]
    assert f"<h1>{result.headline}</h1>" in page
    change = 100 * (result.metrics["elapsed_s"].found.ratio - 1)
    assert f"<strong>{change:+.1f} %</strong>" in page
    dots = [line for line in elements.of("line") if str(line["class"]).startswith("dot ")]
    assert [str(dot["class"]) for dot in dots] == ["dot baseline"] * len(BEFORE) + ["dot candidate"] * len(AFTER)
    highest = min(dots, key=lambda dot: float(str(dot["y1"])))
    assert highest == dots[len(BEFORE) + AFTER.index(max(AFTER))], "the slowest run is at the top"
    joined = [line for line in elements.of("line") if line["class"] == "pair"]
    assert [pair["x1"] for pair in joined] == [dot["x1"] for dot in dots[: len(BEFORE)]]
    times = {seconds(value) for value in (*BEFORE, *AFTER)}
    assert {"/mnt/old", "/mnt/new", "steps, speed 1", "elapsed time *", "elapsed time", "warm-up", *times} <= set(
        elements.cells
    )
    assert carried(page, "summary") == {"schema_version": 1, **result.as_json()}
    assert not [attributes for _, attributes in elements.tags if "src" in attributes]
    assert [script["type"] for script in elements.of("script")] == ["application/json"]


@pytest.mark.parametrize("metric", [{"elapsed_s": 1.0}, {}])
def test_the_page_of_an_experiment_that_was_stopped_at_once_shows_what_there_is(metric):
    page = regress_page(result_of([run(BASELINE, 1, **metric), run(CANDIDATE, 1, stopped=True)]))
    assert "candidate, stopped" in Elements(page).cells
    assert "the experiment was stopped after 0 pairs" in page


@pytest.mark.parametrize(("name", "shown"), list(zip(HOSTILE, SHOWN, strict=True)))
def test_names_of_directories_stay_text(name, shown):
    elements = Elements(regress_page(result_of(WARMED_UP, baseline=name)))
    assert shown in elements.cells
    assert (len(elements.of("script")), elements.of("img")) == (1, [])


# ---------------------------------------------------------------------------------------------------------- the health

LATE = {"lag_us": {"p99": 5_000.0}, "jitter_us": {**ON_TIME, "p99": 20.0}}
KEPT = {"resident_pct": 100.0, "keeps_pages": True}


@pytest.mark.parametrize(
    ("different", "choices", "obstacle", "warning"),
    [
        ({}, {}, "", ""),
        ({"operations": 99}, {}, "operations from 99 to 100", ""),
        ({"failed": 3}, {}, "failed operations from 0 to 3", "up to 3 of 100 operations of a run failed"),
        ({"failed": 3}, {"of_both": {"failed": 3}}, "", "up to 3 of 100 operations of a run failed"),
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
        (LATE, {"pace": "timed"}, "", ""),
        ({**LATE, "jitter_us": {**ON_TIME, "p99": 4_000.0}}, {}, "", ""),  # the machine's
        ({**LATE, "jitter_us": None}, {}, "", ""),
        ({"overhead_pct": 7.0}, {}, "", "7.0 %"),
        ({"overhead_pct": 7.0}, {"rule": Rule(threshold_pct=10.0)}, "", ""),
        ({"warnings": ("2 files are on tmpfs",)}, {}, "", "2 files are on tmpfs"),
    ],
)
def test_what_makes_a_comparison_invalid_or_doubtful(different, choices, obstacle, warning):
    both = ((BASELINE, choices.get("of_both", {})), (CANDIDATE, different))
    runs = [run(side, pair, **fields) for side, fields in both for pair in (1, 2, 3)]
    found = result_of(runs, **{name: value for name, value in choices.items() if name != "of_both"})
    for told, expected in ((found.obstacles, obstacle), (found.warnings, warning)):
        assert (len(told), expected in "".join(told)) == (bool(expected), True)


# ---------------------------------------------------------------------------------------------------- against a record


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.3, "regression"), (0.7, "improvement"), (1.001, "no change"), (1.03, "inconclusive")]
)
def test_the_runs_of_the_record_are_the_baseline(factor, verdict):
    earlier, runs = record(STEADY), record([factor * value for value in STEADY], day=1).runs
    found = result_of(runs, against=earlier, differences=["kernel 6.1.0 -> 6.8.0"], targets={"candidate": TARGET})
    assert (found.verdict.value, found.fails()) == (verdict, verdict == "regression")
    assert found.metrics["elapsed_s"].found.ratio == pytest.approx(factor, rel=0.02)
    assert "Mann-Whitney" in found.as_json()["rule"]["test"]
    assert found.as_json()["against"] == {"record": "day-0.json", "start_ns": earlier.start_ns, "runs": 6}
    assert float(suite_of(found).attrib["time"]) == pytest.approx(factor * sum(STEADY), abs=1e-3), "its own runs"
    made = found.record()
    assert [one.start_ns for one in made.runs] == [one.start_ns for one in runs], "the runs of this session alone"
    assert (made.result.against, set(made.targets)) == (earlier.start_ns, {"candidate"})
    markdown = regression_markdown(found)
    assert "Not as it was for the record: kernel 6.1.0 -\\> 6.8.0" in markdown.split("\n\n")[1]
    assert "record: day-0.json, 6 runs of 2025-10-09 08:53 UTC" in markdown
    assert found.compared_with == "the record day-0.json"


def test_a_session_that_drifted_is_named():
    steady, drifting = record([1.0, 1.01] * 6), record([*np.linspace(1.0, 1.5, 12).tolist()])
    assert len(session_warnings(steady.runs, steady.runs, "elapsed_s")) == 1
    assert "the runs of the record drifted by +2" in session_warnings(drifting.runs, steady.runs, "elapsed_s")[1]
    assert "this session drifted" in session_warnings(steady.runs, drifting.runs, "elapsed_s")[1]


def on_machine(us, factor=1.0):
    jitter = None if us is None else {"p90": us, "p99": us}
    values = enumerate((factor * value for value in STEADY), start=1)
    return tuple(run("candidate", pair, elapsed_s=value, jitter_us=jitter) for pair, value in values)


@pytest.mark.parametrize(
    ("recorded_us", "us", "factor", "verdict"),
    [
        (1120.0, 100.0, 1.5, Verdict.REGRESSION),  # in spite of a quieter machine: no reason to pass for ever
        (1120.0, 100.0, 0.5, Verdict.INCONCLUSIVE),
        (100.0, 1120.0, 1.5, Verdict.INCONCLUSIVE),
        (100.0, 1120.0, 0.5, Verdict.IMPROVEMENT),
    ],
)
def test_another_load_of_the_machine_voids_only_what_it_explains(recorded_us, us, factor, verdict):
    recorded, runs = on_machine(recorded_us), on_machine(us, factor)
    found = result_of(runs, against=record(runs=recorded))
    assert (found.verdict, found.as_json()["valid"]) == (verdict, verdict is not Verdict.INCONCLUSIVE)
    word = "quieter" if us < recorded_us else "busier"
    assert " ".join((*found.obstacles, *found.warnings)).count(f"the machine was {word}: an idle thread") == 1
    for before, after in ((300.0, 300.0), (9000.0, 4000.0), (300.0, 950.0), (300.0, None)):
        assert jitter_doubt(on_machine(before), on_machine(after)) == {}
    assert busy_warning(on_machine(300.0)) == busy_warning(on_machine(None)) == []
    assert busy_warning(on_machine(1120.0))[0].startswith("the machine was busy: an idle thread woke up to 1.12 ms")


@pytest.mark.parametrize("factor", [1.5, 0.5, 1.0])
def test_the_same_directory_twice_is_noise(factor):
    found = result_of(slower(factor), same_place=True)
    assert found.headline.startswith("The same directory twice: this is noise. ")
    assert not found.fails()
    assert [*found.obstacles, *found.warnings] == ["both sides are the same directory, so the difference is noise"]
