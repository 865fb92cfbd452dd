"""The page of an experiment as text; a browser opens it in tests/replay/show/page/test_browser.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dxt_replay.replay.regression.comparison import BASELINE, CANDIDATE
from dxt_replay.replay.regression.experiment_page import experiment_page
from dxt_replay.replay.regression.run_metrics import MeasuredRun
from tests.replay.regression.run_builder import pairs, result_of, run
from tests.replay.show.page.pages import HOSTILE, SHOWN, Elements, carried

BEFORE = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98, 1.01]
AFTER = [1.21, 1.19, 1.20, 1.25, 1.18, 1.20, 1.22]


def warmed_up() -> list[MeasuredRun]:
    return [run(BASELINE, 0, elapsed_s=2.0), run(CANDIDATE, 0, elapsed_s=2.5), *pairs(BEFORE, AFTER)]


def traces(page: str, figure: str) -> Mapping[str, Mapping[str, Any]]:
    """Curves and points of a figure by name; lines that have no name as `lines`."""
    return {trace.get("name", "lines"): trace for trace in carried(page, "data")["figures"][figure]["data"]}


def test_the_verdict_the_charts_the_figures_and_the_settings_are_there() -> None:
    result = result_of(warmed_up())
    page = experiment_page(result)
    elements = Elements(page)
    assert elements.open == []
    assert [section["id"] for section in elements.of("section")] == [
        "verdict", "by-run", "by-pair", "metrics", "settings", "table",
    ]  # fmt: skip
    assert {link["href"] for link in elements.of("a")} == {f"#{section['id']}" for section in elements.of("section")}
    assert f'<p class="verdict">{result["headline"]}</p>' in page
    assert "regression" in result["headline"]
    assert {"/mnt/old", "/mnt/new", "steps, speed 1", "elapsed time *"} <= set(elements.cells)


def test_it_is_small_and_fetches_nothing() -> None:
    page = experiment_page(result_of(warmed_up()))
    assert len(page.encode()) < 1_000_000
    elements = Elements(page)
    assert not [attributes for _, attributes in elements.tags if "src" in attributes]
    assert [link["href"] for link in elements.of("link")] == ["data:,"]
    policy = next(meta["content"] for meta in elements.of("meta") if "http-equiv" in meta)
    assert str(policy).startswith("default-src 'none'; script-src 'nonce-")


def test_programs_find_the_result_in_it() -> None:
    result = result_of(warmed_up())
    assert carried(experiment_page(result), "summary") == {"schema_version": 1, **result}


def test_all_runs_are_drawn_in_their_order_and_pairs_are_joined() -> None:
    found = traces(experiment_page(result_of(warmed_up())), "runs")
    assert (found["baseline"]["x"], found["baseline"]["y"]) == ([*range(3, 17, 2)], BEFORE)
    assert (found["candidate"]["x"], found["candidate"]["y"]) == ([*range(4, 18, 2)], AFTER)
    assert (found["baseline, warm-up"]["x"], found["baseline, warm-up"]["y"]) == ([1], [2.0])
    assert (found["candidate, warm-up"]["x"], found["candidate, warm-up"]["y"]) == ([2], [2.5])
    assert found["lines"]["x"][:6] == [3, 4, None, 5, 6, None], "the warm-up is not a pair"


def test_other_metrics_are_drawn_by_run_and_all_intervals_beside_each_other() -> None:
    runs = [replace(one, metrics={**one.metrics, "io_time_s": one.metrics["elapsed_s"] / 2}) for one in warmed_up()]
    result = result_of(runs)
    page = experiment_page(result)
    assert traces(page, "runs-io_time_s")["baseline"]["y"] == [value / 2 for value in BEFORE]
    assert traces(page, "runs")["candidate, median"]["y"] == [1.20, 1.20]
    assert "other-runs" in [section["id"] for section in Elements(page).of("section")]
    figure = carried(page, "data")["figures"]["intervals"]
    (points,) = figure["data"]
    metric = result["metrics"]["elapsed_s"]
    assert points["y"] == ["elapsed time", "I/O time per rank (union)"]
    assert points["x"][0] + points["error_x"]["array"][0] == pytest.approx(100 * (metric["ci"][1] - 1))
    assert points["x"][0] - points["error_x"]["arrayminus"][0] == pytest.approx(100 * (metric["ci"][0] - 1))
    assert [line["x0"] for line in figure["layout"]["shapes"]] == pytest.approx([5, 100 * (1 / 1.05 - 1)])


def test_runs_of_a_record_are_no_pairs() -> None:
    page = experiment_page({**result_of(warmed_up()), "against": {"record": "a.json", "start_ns": 1, "runs": 7},
                            "environment": {"targets": {}, "differences": []}})  # fmt: skip
    assert "ratios" not in carried(page, "data")["figures"]
    assert "lines" not in traces(page, "runs")


def test_the_change_of_each_pair_stands_beside_the_interval_and_the_threshold() -> None:
    result = result_of(warmed_up())
    page = experiment_page(result)
    metric = result["metrics"]["elapsed_s"]
    drawn = carried(page, "data")["figures"]["ratios"]["data"]
    points = traces(page, "ratios")["pair of runs"]
    assert points["y"] == pytest.approx(
        [100 * (after / before - 1) for before, after in zip(BEFORE, AFTER, strict=True)]
    )
    levels = {
        name: sorted(trace["y"][0] for trace in drawn if trace["name"] == name) for name in traces(page, "ratios")
    }
    assert levels["95 % interval"] == pytest.approx([100 * (end - 1) for end in metric["ci"]])
    assert levels["estimate"] == pytest.approx([100 * (metric["ratio"] - 1)])
    assert levels["threshold"] == pytest.approx([100 / 1.05 - 100, 5.0])


def test_too_few_pairs_have_no_interval() -> None:
    page = experiment_page(result_of(pairs(BEFORE[:3], AFTER[:3])))
    assert "95 % interval" not in traces(page, "ratios")
    assert "3 pairs are too few" in page


@pytest.mark.parametrize("metric", [{"elapsed_s": 1.0}, {}])
def test_an_experiment_that_was_stopped_at_once_shows_what_there_is(metric: dict[str, float]) -> None:
    page = experiment_page(result_of([run(BASELINE, 1, **metric), run(CANDIDATE, 1, stopped=True)]))
    assert list(carried(page, "data")["figures"]) == ["runs"]
    assert "candidate, stopped" in Elements(page).cells
    assert "the experiment was stopped after 0 pairs" in page


def test_names_of_directories_stay_text() -> None:
    for name, shown in zip(HOSTILE, SHOWN, strict=True):
        page = experiment_page(result_of(warmed_up(), baseline=name))
        elements = Elements(page)
        assert shown in elements.cells
        assert len(elements.of("script")) == 4
        assert not elements.of("img")
        assert not elements.of("svg")
