"""The benchmark of the paper's figures: its numbers hang together, and a small figure comes out as its rule says."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from benchmarks.paper_figures.conditions import conditions
from benchmarks.paper_figures.measured import outcomes
from benchmarks.paper_figures.optimum import falls_like, jump, optimum
from benchmarks.paper_figures.published import PRINTED, sweep_pages
from benchmarks.paper_figures.scaling import APPLICATIONS, scaling, scaling_table
from benchmarks.paper_figures.sweeps import SWEEPS
from benchmarks.paper_figures.tables import sweep_table, verdict
from tests.places import ROOT


def chunks(side, chunk_size):
    """Chunks of a square sample, and the elements of one: the rule of DLIO's generator."""
    edge = min(math.ceil(math.sqrt(chunk_size)), side)
    return math.ceil(side / edge) ** 2, edge**2


@pytest.mark.parametrize(("figure", "side", "samples"), [("11a", 202, 6000), ("12a", 181, 43008)])
def test_the_pages_of_the_chunk_sweeps_follow_the_rule_of_chunks(figure, side, samples):
    for page in sweep_pages()[figure]:
        count, elements = chunks(side, int(page.at))
        assert page.operations == pytest.approx(count * samples, rel=0.045)
        assert page.gib * 2**30 == pytest.approx(8 * elements * count * samples, rel=0.015)


def test_the_page_says_on_which_format_each_panel_was_made_and_what_was_fitted():
    page = (ROOT / "benchmarks" / "paper_figures" / "README.md").read_text(encoding="utf-8")
    other_format = {figure for figure, sweep in SWEEPS.items() if conditions(sweep)[1] != conditions(sweep)[2]}
    assert other_format == {"9b", "9c", "10b", "10c"}
    for figure in other_format:
        assert re.search(rf"^\| {figure} .*\(on HDF5\) \|", page, flags=re.MULTILINE)
    assert "reader.preprocess_time=0.00195" in SWEEPS["9c"].overrides
    assert "0.00195*" in conditions(SWEEPS["9c"])


def test_every_figure_has_what_was_printed_and_points_that_include_its_base():
    assert set(SWEEPS) | {"14", "15"} <= set(PRINTED)
    for sweep in SWEEPS.values():
        assert sweep.base_at in sweep.points
    assert {application.figure for application in APPLICATIONS.values()} == {"14", "15"}


def test_optimum_flat_region_and_gain():
    found = optimum(["1", "2", "4", "8"], [10.0, 5.1, 5.0, 6.0], "1")
    assert (found.best_at, found.flat, found.gain) == ("4", ("2", "4"), 2.0)
    assert found.has("2")
    assert not found.has("8")
    assert jump(["a", "b", "c"], [8.0, 4.0, 1.0]) == ("c", 4.0)
    assert falls_like([4, 8, 16], [8.0, 4.0, 4.0]) == [1.0, 1.0, 0.5]


def test_a_small_chunk_sweep_reads_every_chunk_and_is_fastest_where_a_chunk_holds_the_record(tmp_path):
    sweep = dataclasses.replace(
        SWEEPS["11a"],
        points=("1024", "65536"),
        base_at="1024",
        overrides=("dataset.num_samples_per_file=60", "reader.batch_size=15", "train.computation_time=0.001"),
        ranks=2,
    )
    found = outcomes(sweep, tmp_path)

    small, large = found
    assert small.reads - large.reads == pytest.approx(60 * (49 - 1), abs=20)
    assert small.elapsed_s > 5 * large.elapsed_s
    judged = verdict(sweep, found, sweep_pages()["11a"])
    assert judged["here"]["best_elapsed"] == "65536"
    assert "65536" in sweep_table(sweep, found, sweep_pages()["11a"])


def test_more_ranks_take_less_time_for_the_same_data(tmp_path, monkeypatch):
    small = dataclasses.replace(
        APPLICATIONS["FFN"], overrides=(*APPLICATIONS["FFN"].overrides, "dataset.num_samples_per_file=64")
    )
    monkeypatch.setitem(APPLICATIONS, "small", small)

    first, second = scaling("small", tmp_path, "theta_lustre", nodes=(1, 2))

    assert second.elapsed_s < 0.7 * first.elapsed_s
    assert "efficiency" in scaling_table([first, second])
