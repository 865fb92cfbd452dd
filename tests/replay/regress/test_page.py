"""The page of an experiment of `dxt-replay regress` as text."""

from __future__ import annotations

import pytest

from dxt_replay.replay.regress.comparison import BASELINE, CANDIDATE
from dxt_replay.replay.regress.metrics import MeasuredRun
from dxt_replay.replay.regress.page import regress_page
from dxt_replay.replay.show.section import seconds
from tests.replay.regress.builder import pairs, result_of, run
from tests.replay.show.page.pages import HOSTILE, SHOWN, Elements, carried

BEFORE = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98, 1.01]
AFTER = [1.21, 1.19, 1.20, 1.25, 1.18, 1.20, 1.22]


def warmed_up() -> list[MeasuredRun]:
    return [run(BASELINE, 0, elapsed_s=2.0), run(CANDIDATE, 0, elapsed_s=2.5), *pairs(BEFORE, AFTER)]


def test_verdicts_a_dot_for_each_run_and_all_figures_are_there() -> None:
    result = result_of(warmed_up())
    page = regress_page(result)
    elements = Elements(page)
    assert elements.open == []
    assert [section["id"] for section in elements.of("section")] == ["verdict", "figures", "runs"]
    assert f"<h1>{result.headline}</h1>" in page
    assert "regression" in result.headline
    change = 100 * (result.metrics["elapsed_s"].found.ratio - 1)
    assert f"<strong>{change:+.1f} %</strong>" in page
    dots = [line for line in elements.of("line") if str(line["class"]).startswith("dot ")]
    assert [str(dot["class"]) for dot in dots] == ["dot baseline"] * len(BEFORE) + ["dot candidate"] * len(AFTER)
    highest = min(dots, key=lambda dot: float(str(dot["y1"])))
    assert highest == dots[len(BEFORE) + AFTER.index(max(AFTER))], "the slowest run is at the top"
    pairs = [line for line in elements.of("line") if line["class"] == "pair"]
    assert [pair["x1"] for pair in pairs] == [dot["x1"] for dot in dots[: len(BEFORE)]]
    times = {seconds(value) for value in (*BEFORE, *AFTER)}
    assert {"/mnt/old", "/mnt/new", "steps, speed 1", "elapsed time *", "warm-up", *times} <= set(elements.cells)
    assert carried(page, "summary") == {"schema_version": 1, **result.as_json()}


def test_it_is_small_fetches_nothing_and_runs_nothing() -> None:
    page = regress_page(result_of(warmed_up()))
    assert len(page.encode()) < 100_000
    elements = Elements(page)
    assert not [attributes for _, attributes in elements.tags if "src" in attributes]
    assert [script["type"] for script in elements.of("script")] == ["application/json"]


@pytest.mark.parametrize("metric", [{"elapsed_s": 1.0}, {}])
def test_an_experiment_that_was_stopped_at_once_shows_what_there_is(metric: dict[str, float]) -> None:
    page = regress_page(result_of([run(BASELINE, 1, **metric), run(CANDIDATE, 1, stopped=True)]))
    assert "candidate, stopped" in Elements(page).cells
    assert "the experiment was stopped after 0 pairs" in page


def test_names_of_directories_stay_text() -> None:
    for name, shown in zip(HOSTILE, SHOWN, strict=True):
        page = regress_page(result_of(warmed_up(), baseline=name))
        elements = Elements(page)
        assert shown in elements.cells
        assert len(elements.of("script")) == 1
        assert not elements.of("img")
