"""Answers in brief: lines of each command on recorded jobs, what a notebook shows, and the reference of each figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.show import compare, make, notebook, predict, run, summary
from tests.places import ROOT
from tests.schemas import schema

DATA = ROOT / "tests" / "data"
JOBS = {
    "cosmoflow_threads": (
        [DATA / "captures/cosmoflow_threads/job.darshan"],
        sorted((DATA / "jobs/cosmoflow_threads").glob("rank*.gz")),
    ),
    "torch_images": ([DATA / "jobs/torch_images/logs"], [DATA / "jobs/torch_images/profile"]),
    "torch_shards": ([DATA / "jobs/torch_shards/logs"], [DATA / "jobs/torch_shards/profile"]),
    "torch_eval": ([DATA / "captures/torch_eval/logs"], [DATA / "captures/torch_eval/profile"]),
    "torch_mmap": ([DATA / "captures/torch_mmap/mmap/logs"], [DATA / "captures/torch_mmap/mmap/profile"]),
    "workers": ([DATA / "jobs/workers"], []),
    "counters": ([DATA / "jobs/counters/hdf5_file_opens_only.darshan"], []),
    "strace": ([DATA / "other-sources/strace/one.strace.gz"], []),
    "dftracer": ([DATA / "jobs/dftracer"], []),
}
"""Name of a recorded job -> its logs and profiles."""


def lines(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    main([*map(str, arguments)])
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", JOBS)
def test_a_recorded_job_is_summed_up_in_few_lines(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, profiles = JOBS[name]
    capture = dxt_replay.merge(logs, tmp_path / "a.capture", profiles=profiles).capture
    said = lines(capsys, "summary", capture)
    assert len(said) <= 15, "\n".join(said)
    said = lines(capsys, "summary", capture, "--show", "findings")
    assert len(said) <= 20 or name in ("torch_eval",), "\n".join(said)
    said = lines(capsys, "simulate", capture, "--storage", "nvme")
    assert len(said) <= 12, "\n".join(said)
    shown = dxt_replay.summary(capture)
    assert len(repr(shown)) <= 300
    assert "<table>" in shown._repr_html_()


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A capture, a twin of it, and a replay."""
    folder = tmp_path_factory.mktemp("brief")
    sample = dxt_replay.sample("imagenet")
    capture = dxt_replay.merge(sample.log, folder / "i.capture", profiles=sample.profiles).capture
    (folder / "twin").mkdir()
    dxt_replay.stage(capture, folder / "twin", sparse=True)
    return capture, folder / "twin", dxt_replay.run(capture, folder / "twin", folder / "r.capture", pace="none").capture


def test_a_replay_its_comparison_and_a_machine_are_summed_up_in_few_lines(
    replayed: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, twin, replay = replayed
    run = ("run", capture, "--target", twin, "-o", tmp_path / "r.capture", "--pace", "steps")
    for most, arguments in (
        (8, run),
        (12, ("compare", capture, replay)),
        (15, ("doctor", twin)),
        (15, ("calibrate", "--target", twin, "-o", tmp_path / "m.yaml", "--minutes", "0.04")),
    ):
        said = lines(capsys, *arguments)
        assert 0 < len(said) <= most, "\n".join(said)


def test_each_result_shows_itself_in_a_notebook(replayed: tuple[Path, Path, Path], tmp_path: Path) -> None:
    capture, twin, replay = replayed
    results = [
        dxt_replay.tables(capture, ["files"]),
        dxt_replay.storage_limit(capture, curve=True),
        dxt_replay.simulate(capture, "theta_lustre"),
        dxt_replay.compare(capture, replay),
        dxt_replay.transform(capture, tmp_path / "t.capture", prefetch=1),
        dxt_replay.anonymize(capture, tmp_path / "a.capture"),
        dxt_replay.fit(capture, tmp_path / "w.yaml"),
        dxt_replay.verify(capture, twin),
    ]
    for result in results:
        first = repr(result)
        assert first.startswith(f"<{type(result).__name__}: "), first
        assert len(first) <= 300
        assert "<table>" in result._repr_html_()
    assert {type(each).__name__ for each in results} <= set(notebook.WORDS)


FIGURES = {
    "summary": summary.FIGURES,
    "run": run.FIGURES,
    "compare": compare.FIGURES,
    **predict.FIGURES,
    **make.FIGURES,
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_the_name_in_the_reference_that_it_has_in_text(name: str) -> None:
    text = json.dumps(schema(name))
    assert FIGURES[name]
    for figure in FIGURES[name]:
        for key in figure.keys[:1]:
            if key != "overhead.fraction_pct":  # of an object whose keys the schema does not list
                assert f'"title": {json.dumps(figure.label)}' in text, (name, key)
