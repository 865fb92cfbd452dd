from __future__ import annotations

import xml.etree.ElementTree as xml
from typing import Any

import pytest

from dxt_replay.replay.regression.comparison import Regression, compare_sides
from dxt_replay.replay.regression.health import Health
from dxt_replay.replay.regression.interval_verdict import Rule
from dxt_replay.replay.regression.reports import junit_document
from tests.replay.regression.run_builder import run, setting

HOSTILE = "/data/<&\"'\x00\x1b[31m\udcff ]]> \ufffe é 字 \U0001f600"


HEALTHY = Health()


def result(factor: float, health: Health = HEALTHY, *, stopped: bool = False, **changes: Any) -> Regression:
    runs = []
    for pair in range(1, 9):
        value = 1 + pair / 1000
        runs += [run("baseline", pair, elapsed_s=value, io_time_s=value)]
        runs += [run("candidate", pair, elapsed_s=factor * value, io_time_s=2 * value)]
    if stopped:
        runs.append(run("candidate", 9, elapsed_s=0.1, stopped=True))
    return compare_sides(runs, primary="elapsed_s", rule=Rule(), health=health, setting=setting(**changes))


def suite_of(found: Regression, *, inconclusive_fails: bool = False) -> xml.Element:
    root = xml.fromstring(junit_document(found, inconclusive_fails=inconclusive_fails))
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite"
    assert {key: suite.attrib[key] for key in ("tests", "failures", "errors", "time")} == {
        key: root.attrib[key] for key in ("tests", "failures", "errors", "time")
    }
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
    assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped"))
    return suite


def test_a_regression_fails_with_its_figures() -> None:
    suite = suite_of(result(1.5))
    failure = suite.find("testcase[@name='elapsed_s']/failure")
    assert failure is not None
    assert failure.attrib["type"] == "regression"
    assert "+50.0 %" in failure.attrib["message"]
    assert failure.text is not None
    assert "ratio 1.5000" in failure.text
    assert "1.001" in failure.text
    assert suite.attrib["failures"] == "1"  # io_time_s is twice as long, and does not decide
    told = suite.find("testcase[@name='io_time_s']/system-out")
    assert told is not None
    assert told.text is not None
    assert told.text.startswith("slower")


def test_no_change_passes() -> None:
    suite = suite_of(result(1.0))
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("2", "0", "0")
    assert float(suite.attrib["time"]) == pytest.approx(2 * sum(1 + pair / 1000 for pair in range(1, 9)), abs=1e-3)


def test_without_a_verdict_it_is_skipped_or_fails_as_the_command_does() -> None:
    found = result(1.5, Health(obstacles=("other work",)))
    skipped = suite_of(found).find("testcase[@name='elapsed_s']/skipped")
    assert skipped is not None
    assert "other work" in skipped.attrib["message"]
    failure = suite_of(found, inconclusive_fails=True).find("testcase[@name='elapsed_s']/failure")
    assert failure is not None
    assert failure.attrib["type"] == "inconclusive"
    assert suite_of(result(1.5, stopped=True)).attrib["failures"] == "1"


def test_the_deciding_metric_has_its_case_without_figures_too() -> None:
    found = compare_sides([], primary="elapsed_s", rule=Rule(), health=Health(), setting=setting())
    case = suite_of(found).find("testcase")
    assert case is not None
    assert case.attrib["name"] == "elapsed_s"


def test_elements_come_in_the_order_of_the_schema() -> None:
    suite = suite_of(result(1.0, Health(warnings=("w",))))
    assert [child.tag for child in suite] == ["properties", "testcase", "testcase", "system-out"]
    assert suite[0][0].tag == "property"


def test_hostile_names_stay_within_their_place() -> None:
    suite = suite_of(result(1.0, Health(warnings=(HOSTILE,)), candidate=HOSTILE))
    name = suite.attrib["name"].removeprefix("run.capture: ").removesuffix(" against /mnt/old")
    assert name == "/data/<&\"'\\x00\\x1b[31m\\udcff ]]> \\ufffe é 字 \U0001f600"
    found = {entry.attrib["name"]: entry.attrib["value"] for entry in suite.iter("property")}
    assert found["candidate"] == name
