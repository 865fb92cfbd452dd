"""Benchmarks that make tables: figures of the DLIO paper, cost at scale, and how large jobs are written."""

import re

import pytest

import dxt_replay
from benchmarks import large_job, scale_table
from benchmarks.large_job import even_capture, files_capture, mixed_capture
from benchmarks.paper_figures import __main__ as paper
from benchmarks.paper_figures.figures import APPLICATIONS, SCALED, SWEEPS, sweep_pages
from tests.places import ROOT


def test_every_figure_has_its_base_and_the_page_says_what_was_made_otherwise():
    assert {figure for figure, *_ in APPLICATIONS.values()} == set(SCALED)
    page = (ROOT / "benchmarks" / "paper_figures" / "README.md").read_text(encoding="utf-8")
    for figure, sweep in SWEEPS.items():
        assert sweep.base_at in sweep.points
        made = re.match(r"format here: (\w+), there: (\w+);", paper.conditions(sweep))
        assert made is not None
        assert (made[1] != made[2]) == bool(re.search(rf"^\| {figure} .*\(on HDF5\) \|", page, flags=re.MULTILINE))
    assert "0.00195*" in paper.conditions(SWEEPS["9c"])


def test_optimum_flat_region_and_gain():
    found = paper.optima(["1", "2", "4", "8"], [10.0, 5.1, 5.0, 6.0], [8.0, 8.0, 2.0, 1.0], "1")
    assert (found["best_elapsed"], found["flat"], found["gain_elapsed"]) == ("4", ["2", "4"], 2.0)
    assert (found["best_io"], found["gain_io"], found["io_jump_at"], found["io_jump"]) == ("8", 8.0, "4", 4.0)


def test_a_small_chunk_sweep_reads_every_chunk_and_is_fastest_where_a_chunk_holds_the_record(tmp_path):
    few = ("dataset.num_samples_per_file=60", "reader.batch_size=15", "train.computation_time=0.001")
    sweep = SWEEPS["11a"]._replace(points=("1024", "65536"), base_at="1024", overrides=few, ranks=2)

    small, large = found = paper.outcomes(sweep, tmp_path)

    assert small.reads - large.reads == pytest.approx(60 * (49 - 1), abs=20)
    assert small.elapsed_s > 5 * large.elapsed_s
    assert paper.verdict(sweep, found, sweep_pages()["11a"])["here"]["best_elapsed"] == "65536"
    assert len(paper.sweep_table(sweep, found, sweep_pages()["11a"]).splitlines()) == 3


def test_more_ranks_take_less_time_for_the_same_data(tmp_path, monkeypatch):
    figure, workload, overrides = APPLICATIONS["FFN"]
    monkeypatch.setitem(APPLICATIONS, "small", (figure, workload, (*overrides, "dataset.num_samples_per_file=64")))

    first, second = paper.scaling("small", tmp_path, "theta_lustre", nodes=(1, 2))

    assert second.elapsed_s < 0.7 * first.elapsed_s
    assert "efficiency" in paper.scaling_table([first, second])


@pytest.mark.parametrize(
    ("write", "operations"),
    [
        (lambda path: mixed_capture(path, 403, ranks=3, files=5), 403),
        (lambda path: even_capture(path, 20, 7, 1_000), 140),
        (lambda path: files_capture(path, 1_100, 1 << 14), 1_100),
    ],
)
def test_captures_pass_verify(tmp_path, monkeypatch, write, operations):  # type: ignore[no-untyped-def]
    monkeypatch.setattr(large_job, "_BATCH", 50)  # so that a lane goes on in the next batch
    assert write(tmp_path / "job.capture") == operations
    found = dxt_replay.verify(tmp_path / "job.capture")
    assert found.passed
    parts = [part for place in found.places for part in place.parts if part.part == "operations"]
    assert sum(part.checked for part in parts) == operations


def test_the_table_compares_with_the_peer_with_two_processes_and_with_smaller_sizes():
    def run(row, units, cpu_s, **more):
        rest = {"unit": "file", "wall_s": 1.0, "peak_bytes": 1 << 20}
        return {"row": row, "units": units, "cpu_s": cpu_s, **rest, **more}

    two = {"two": {"cpu_s": 2.0, "wall_s": 1.0}, "same": False}
    runs = [run("stage", 10, 1.0), run("stage", 30, 3.0), run("cp -r", 30, 6.0, **two)]
    assert scale_table.table(runs).splitlines()[2:4] == [
        "| stage | 30 files | 3.00 | 1.00 | 1.00 MiB | cp -r: 2.00 |  |  |  |",
        "| cp -r | 30 files | 6.00 |  | 1.00 MiB |  | 3.00 | 1.00 | NO |",
    ]
    assert {row.input for row in scale_table.ROWS.values()} == set(scale_table.INPUTS)
    assert {row.peer for row in scale_table.ROWS.values()} <= {"", *scale_table.ROWS}


@pytest.mark.slow
def test_every_row_runs_and_two_processes_write_the_same(tmp_path):
    runs = list(scale_table.measure(tuple(scale_table.INPUTS), 0.001, tmp_path))
    assert {run["row"] for run in runs} == set(scale_table.ROWS)
    assert all(run.get("same", True) for run in runs)
    assert not list(tmp_path.iterdir())
