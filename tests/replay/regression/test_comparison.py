from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from dataclasses import replace

import numpy as np
import pytest

from dxt_replay.replay.regression.comparison import BASELINE, Regression, compare_sides
from dxt_replay.replay.regression.health import Health
from dxt_replay.replay.regression.interval_verdict import Rule, Verdict
from dxt_replay.replay.regression.regression_sections import regression_markdown, regression_sections
from dxt_replay.replay.regression.reports import junit_document
from dxt_replay.replay.regression.run_metrics import MeasuredRun
from tests.replay.regression.run_builder import pairs, run, setting

HEALTHY = Health()


def compared(runs: list[MeasuredRun], health: Health = HEALTHY, primary: str = "elapsed_s") -> Regression:
    return compare_sides(runs, primary=primary, rule=Rule(), health=health, setting=setting())


def slower(factor: float, name: str = "elapsed_s") -> list[MeasuredRun]:
    before = np.random.default_rng(1).normal(1.0, 0.01, 10)
    after = factor * np.random.default_rng(2).normal(1.0, 0.01, 10)
    return pairs(before.tolist(), after.tolist(), name)


def merged(*rows: list[MeasuredRun]) -> list[MeasuredRun]:
    """Runs that have the metrics of all of these."""
    return [
        run(same[0].side, same[0].pair, **{name: value for one in same for name, value in one.metrics.items()})
        for same in zip(*rows, strict=True)
    ]


def test_the_primary_metric_decides() -> None:
    assert compared(slower(1.2)).verdict is Verdict.REGRESSION
    assert compared(slower(0.8)).verdict is Verdict.IMPROVEMENT
    assert compared(slower(1.0)).verdict is Verdict.NO_CHANGE
    beside = merged(slower(1.0), slower(3.0, "io_time_s"))
    found = compared(beside)
    assert found.verdict is Verdict.NO_CHANGE
    assert found.metrics["io_time_s"].judgement.verdict is Verdict.SLOWER
    assert found.headline.startswith("This training would not notice: the candidate is as fast as the baseline, within")
    assert found.storage.startswith("The storage itself is 3.0 times slower (")
    assert regression_sections(found)[0].rows[1] == (found.storage,)
    assert list(found.metrics) == ["elapsed_s", "io_time_s"]
    assert compared(beside, primary="io_time_s").verdict is Verdict.REGRESSION


def test_less_bandwidth_is_worse() -> None:
    found = compared(merged(slower(1.0), slower(0.5, "bandwidth_mib_s")))
    assert found.metrics["bandwidth_mib_s"].judgement.verdict is Verdict.SLOWER


def test_a_pair_in_which_the_machine_stood_still_does_not_count() -> None:
    runs = slower(1.0)
    runs[4] = replace(runs[4], metrics={"elapsed_s": 4.0}, whole_s=4.0, stood_still_s=3.0)
    found = compared(runs)
    assert found.verdict is Verdict.NO_CHANGE
    assert len(found.metrics["elapsed_s"].baseline) == 9


def test_metrics_that_do_not_decide_share_their_probability_of_an_error() -> None:
    """What alone would be told is not told among as many."""
    names = ["io_time_s", "metadata_time_s", "latency_mean_us", "read_latency_p50_us", "read_latency_p99_us"]
    doubtful = [1.2] * 7 + [0.99, 0.98, 0.97]
    runs = merged(slower(1.0), *(pairs([1.0] * 10, [x + i / 1e6 for x in doubtful], n) for i, n in enumerate(names)))
    found = compared(runs)
    for name in names:
        metric = found.metrics[name]
        assert metric.found.p_value < 0.05
        assert metric.p_adjusted == pytest.approx(min(5 * metric.found.p_value, 1), rel=1e-6)
        assert metric.judgement.verdict is Verdict.INCONCLUSIVE
    assert found.metrics["elapsed_s"].p_adjusted == found.metrics["elapsed_s"].found.p_value
    assert (
        compared(merged(slower(1.0), pairs([1.0] * 10, doubtful, "io_time_s"))).metrics["io_time_s"].judgement.verdict
        is Verdict.SLOWER
    )


def test_what_may_not_be_compared_has_no_verdict() -> None:
    found = compared(slower(1.5), Health(obstacles=("the sides did other work",), warnings=("w",)))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "the sides did other work" in found.reason
    document = found.as_json()
    assert document["valid"] is False
    assert document["metrics"]["elapsed_s"]["verdict"] == "regression"  # the figures are told all the same


def test_runs_that_do_not_count() -> None:
    warmups = [run("baseline", 0, elapsed_s=99.0), run("candidate", 0, elapsed_s=1.0)]
    found = compared([*warmups, *slower(1.0)])
    assert len(found.metrics["elapsed_s"].baseline) == 10
    assert len(found.as_json()["order"]) == 20
    assert len(found.as_json()["runs"]) == 22
    half = compared(slower(1.2)[:-1])
    assert len(half.metrics["elapsed_s"].candidate) == 9


def test_a_stopped_experiment_has_no_verdict() -> None:
    found = compared([*slower(1.5), run(BASELINE, 11, elapsed_s=0.1, stopped=True)])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason == "the experiment was stopped after 10 pairs"
    nothing = compared([run(BASELINE, 1, elapsed_s=0.1, stopped=True)])
    assert nothing.metrics == {}
    assert regression_sections(nothing)


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
    found = compare_sides(
        runs,
        primary="elapsed_s",
        rule=Rule(threshold_pct=threshold_pct),
        health=Health(obstacles=obstacles),
        setting=setting(),
    )
    assert tuple(found.fails(inconclusive_fails=choice) for choice in (False, True)) == statuses
    for choice, status in zip((False, True), statuses, strict=True):
        document = xml.fromstring(junit_document(found, inconclusive_fails=choice))
        assert int(document.attrib["failures"]) == status


def test_a_metric_that_a_run_lacks_is_not_compared() -> None:
    runs = merged(slower(1.0), slower(1.0, "io_time_s"))
    runs[3] = run(runs[3].side, runs[3].pair, elapsed_s=1.0)
    found = compared(runs)
    assert list(found.metrics) == ["elapsed_s"]
    assert compared(runs, primary="io_time_s").verdict is Verdict.INCONCLUSIVE


def test_the_json_object_has_the_fixed_keys() -> None:
    document = json.loads(json.dumps(compared(slower(1.2)).as_json(), allow_nan=False))
    assert document["verdict"] == "regression"
    metric = document["metrics"]["elapsed_s"]
    assert {"baseline", "candidate", "ratio", "ci", "p_value", "minimum_detectable_pct"} <= metric.keys()
    low, high = metric["ci"]
    assert 1.15 < low < metric["ratio"] < high < 1.25
    assert metric["minimum_detectable_pct"] < 5
    assert {"runs", "order"} <= document.keys()
    few = compared(slower(1.2)[:6]).as_json()["metrics"]["elapsed_s"]
    assert (few["ci"], few["minimum_detectable_pct"]) == ([None, None], None)


def test_what_a_person_reads() -> None:
    found = compared(merged(slower(1.2), slower(1.0, "io_time_s")), Health(warnings=("mind this",)))
    verdict, medians, warnings, runs, rule = regression_sections(found)
    assert verdict.rows[0][0] == (
        "This training would notice: the candidate is 19.7 % slower (19.0 to 20.4 %): regression."
    )
    assert "in 8 of 10 experiments" in verdict.rows[3][0]
    assert medians.rows[0][0] == "elapsed time *"
    assert medians.rows[0][-1] == "regression"
    facts = dict(runs.rows)
    assert facts["order"].startswith("BC BC ")
    assert "seed 7" in facts["order"]
    assert facts["page cache"] == "cold; held before a run: baseline 0 %, candidate 0 %"
    assert warnings.rows == (("mind this",),)
    assert rule.rows[0][0].startswith("Regression: the whole 95 % interval")


def test_metrics_beside_the_deciding_one_that_so_few_pairs_cannot_judge_are_named_so() -> None:
    """Six pairs can judge one metric; of two others, the smaller p-value is doubled by Holm's correction."""
    runs = merged(merged(slower(1.2), slower(66.0, "io_time_s")), slower(5.0, "read_latency_p99_us"))
    few = compared(runs[:12])
    assert few.secondary_pairs_needed == 7
    assert few.metrics["io_time_s"].judgement.verdict is Verdict.INCONCLUSIVE
    assert "certain by this metric alone" in few.metrics["io_time_s"].judgement.reason
    figures = regression_sections(few)[1]
    rows = {row[0]: row for row in figures.rows}
    assert rows["I/O time per rank (union)"][3::2] == ("65.8 x", "-")
    assert any("7 pairs are the least" in note for note in figures.notes)
    many = compared(runs).as_json()
    assert many["secondary_pairs_needed"] is None
    assert many["metrics"]["io_time_s"]["verdict"] == "slower"


def test_the_result_as_markdown() -> None:
    health = Health(warnings=("odd | <b>`name`</b>",))
    text = regression_markdown(compared(merged(slower(1.2), slower(1.0, "io_time_s")), health))
    first, *lines = text.splitlines()
    assert first.startswith("**This training would notice: the candidate is 19.7 % slower")
    table = [line for line in lines if line.startswith("|")]
    assert table[0].split(" | ")[1:3] == ["baseline", "candidate"]
    assert table[1] == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert table[2].startswith("| elapsed time \\* | ")
    assert {line.count(" | ") for line in table} == {5}
    assert "odd \\| \\<b\\>\\`name\\`\\</b\\>" in text


def test_an_experiment_without_a_figure_has_a_markdown_too() -> None:
    text = regression_markdown(compared([run(BASELINE, 1, elapsed_s=0.1, stopped=True)]))
    assert text.startswith("**No verdict, inconclusive: the experiment was stopped after 0 pairs.**")
    assert "|" not in text
