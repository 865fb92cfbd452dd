"""The page of a capacity holds the points of its result, and the answer and the curves first."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from plotly.graph_objects import Figure

from dxt_replay.replay.capacity.result import STORAGE, Capacity, LoadRun, SimulatedRun
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.show.capacity_sections import capacity_headline
from dxt_replay.replay.show.page.capacity_page import capacity_figure, capacity_page
from tests.replay.show.page.pages import HOSTILE, Elements, carried


def run(ranks: int, utilisation_pct: float, *, storage: bool = True) -> LoadRun:
    latency = {"p50": 10.0 * ranks, "p90": 20.0 * ranks, "p99": 50.0 * ranks, "max": 90.0 * ranks}
    return LoadRun(
        ranks=ranks, utilisation_pct=utilisation_pct, training_s=1.0, mib_s=7.0 * ranks,
        latency_us=latency if storage else None, processors_pct=12.0, storage=storage,
    )  # fmt: skip


FOUND = Capacity(
    capture=Path("run.capture"), target=Path("/lustre/twin"), limit_pct=90.0, most=8, scaling="weak", ranks=2,
    interval=(2, 2), limited_by=STORAGE, free_utilisation_pct=99.0, simulated_ranks=3,
    simulated=[SimulatedRun(ranks=3, utilisation_pct=91.5), SimulatedRun(ranks=4, utilisation_pct=80.5)],
    runs=[run(4, 70.0), run(2, 95.0), run(3, 85.0), run(3, 87.0), run(2, 96.0), run(3, 98.5, storage=False)],
)  # fmt: skip


def points(page: str, name: str, mode: str = "markers") -> list[tuple[int, float]]:
    figure = carried(page, "data")["figures"]["capacity-ranks"]
    trace = next(each for each in figure["data"] if (each["name"], each["mode"]) == (name, mode))
    return list(zip(trace["x"], trace["y"], strict=True))


def test_every_run_is_a_point_of_each_curve() -> None:
    page, runs = capacity_page(FOUND), FOUND.runs[:5]
    assert points(page, "utilisation") == [(each.ranks, each.utilisation_pct) for each in runs]
    assert points(page, "throughput") == [(each.ranks, each.mib_s) for each in runs]
    for name in ("p50", "p99"):
        assert points(page, f"latency {name}") == [(each.ranks, (each.latency_us or {})[name]) for each in runs]
    assert points(page, "utilisation", "lines") == [(2, 95.5), (3, 86.0), (4, 70.0)]
    assert points(page, "utilisation without I/O") == [(3, 98.5)]
    assert points(page, "simulated utilisation") == [(3, 91.5), (4, 80.5)]
    assert points(page, "limit", "lines") == [(2, 90.0), (4, 90.0)]


def test_the_answer_and_the_curves_come_first() -> None:
    page = capacity_page(FOUND)
    elements = Elements(page)
    assert elements.open == []
    assert [section["id"] for section in elements.of("section")] == ["answer", "figures"]
    answer = page[page.index('<section id="answer"') : page.index('<section id="figures"')]
    assert f'<p class="verdict">{capacity_headline(FOUND)}</p>' in answer
    assert 'id="capacity-ranks"' in answer
    assert carried(page, "summary") == {"schema_version": 1, **FOUND.as_json()}
    assert {"3, without I/O", "98.5 %", "21.0 MiB/s"} <= set(elements.cells)


def test_a_dry_run_shows_utilisation_alone() -> None:
    dry = dataclasses.replace(FOUND, runs=(), ranks=None, interval=None, limited_by=None, target=None)
    figure = capacity_figure(dry)
    assert [trace["name"] for trace in figure["data"]] == ["simulated utilisation", "limit"]
    assert "yaxis2" not in figure["layout"]
    for each in (figure, capacity_figure(FOUND)):
        Figure(each, skip_invalid=False)
    assert "by simulation" in capacity_page(dry)


def test_names_of_captures_stay_text() -> None:
    scripts = len(Elements(capacity_page(FOUND)).of("script"))
    for name in HOSTILE:
        elements = Elements(capacity_page(dataclasses.replace(FOUND, capture=Path(name))))
        assert len(elements.of("script")) == scripts
        assert not elements.of("img")
        assert not elements.of("svg")


def test_the_command_writes_the_page_and_keeps_an_earlier_one(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    page = tmp_path / "capacity.html"
    words = ["capacity", "unet3d_h100", "dataset.num_files_train=8", "train.epochs=1", "--storage", "nvme"]
    words += ["--dry-run", "--most", "1", "--utilisation", "1", "--html", str(page)]
    assert main(words) == 0
    first = page.read_text()
    assert capsys.readouterr().out.splitlines()[0] in first
    assert points(first, "simulated utilisation")[0][0] == 1
    assert main(words) != 0
    assert page.read_text() == first
    assert main([*words, "--force"]) == 0
