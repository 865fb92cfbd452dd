"""The table of costs at scale: what its inputs hold, and a short form of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dxt_replay
from benchmarks.large_log import FILES_PER_RANK, PATTERNS, write_large_log
from benchmarks.scale_table import captures
from benchmarks.scale_table.__main__ import is_same, main, measure, table
from benchmarks.scale_table.captures import even_capture, files_capture, mixed_capture
from benchmarks.scale_table.inputs import INPUTS
from benchmarks.scale_table.rows import ROWS, SHORT
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.log_rows import read_log_rows


@pytest.mark.parametrize("version", [1, 2])
def test_a_large_log_has_the_segments_of_each_rank(tmp_path: Path, version: int) -> None:
    ranks, each = PATTERNS + 2, FILES_PER_RANK * 5
    assert write_large_log(tmp_path / "job.darshan", ranks * each + 3, ranks, version) == ranks * each
    log = open_log(tmp_path / "job.darshan")
    found = read_log_rows(log)
    assert found.ranks.tolist() == list(range(ranks))
    assert set(np.diff(found.first).tolist()) == {each}
    assert len(log.names) == ranks * FILES_PER_RANK
    files = [np.unique(found.of_rank(rank)["file"]).tolist() for rank in range(ranks)]
    of_rank = [{found.clock.names[file] for file in used} for used in files]
    assert b"/scratch/data/00003-1.bin" in of_rank[3]
    assert sum(map(len, of_rank)) == len(set().union(*of_rank))
    assert found.unthreaded == (set(range(ranks)) if version == 1 else set())


def test_operations_of_a_lane_never_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "_BATCH", 50)  # so that a lane goes on in the next batch
    path = tmp_path / "job.capture"
    assert mixed_capture(path, 403, ranks=3, files=5) == 403
    for batch in dxt_replay.open_capture(path).operations():
        lane, start, end = (batch[name].to_numpy() for name in ("lane", "start_ns", "end_ns"))
        for each in range(captures.LANES):
            assert (start[lane == each][1:] >= end[lane == each][:-1]).all()
        assert (end > start).all()


@pytest.mark.parametrize(
    ("write", "operations"),
    [
        (lambda path: mixed_capture(path, 1_003), 1_003),
        (lambda path: mixed_capture(path, 5, ranks=2, files=3), 5),
        (lambda path: even_capture(path, 20, 7, 1_000), 140),
        (lambda path: files_capture(path, 1_100, 1 << 14), 1_100),
    ],
)
def test_captures_pass_verify(tmp_path: Path, write: captures.Callable[[Path], int], operations: int) -> None:
    path = tmp_path / "job.capture"
    assert write(path) == operations
    found = dxt_replay.verify(path)
    assert found.passed
    assert (
        sum(part.checked for place in found.places for part in place.parts if part.part == "operations") == operations
    )


def test_every_row_has_an_input_and_every_peer_a_row() -> None:
    assert {row.input for row in ROWS} == set(INPUTS)
    assert {row.peer for row in ROWS if row.peer} <= {row.name for row in ROWS}
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert set(SHORT) <= {row.name for row in ROWS}


@pytest.mark.slow
def test_a_short_table_has_the_same_bytes_in_every_way(tmp_path: Path) -> None:
    result = measure(("job", "log", "open", "archive", "rows"), 0.0001, tmp_path)
    assert is_same(result)
    assert {run["row"] for run in result["runs"]} == {
        row.name for row in ROWS if row.input in ("job", "log", "open", "archive", "rows")
    }
    merged = [run for run in result["runs"] if run["row"] == "merge --each"]
    assert {run["way"] for run in merged} >= {"one", "processes", "pickled"}
    text = table(result, result)
    assert "\n| summary | `dxt-replay summary job.capture --json --workers 1` | 100 / 300 / 1,000 operations | " in text
    assert "| yes: one, processes" in text
    assert not list(tmp_path.iterdir())


def test_another_output_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        {"row": "merge --each", "way": way, "workers": 1, "units": 2, "unit": "log", "size": 2, "cpu_s": 1.0,
         "wall_s": 1.0, "alone_s": 1.0, "peak_bytes": 1, "sha256": way, "pieces": 2, "pieces_s": 0.5,
         "returned_bytes": 10, "command": "merge"}
        for way in ("one", "processes", "pickled")
    ]  # fmt: skip
    result = {"runs": runs, "version": "1", "date": "", "processors": 2, "load": 0.0, "seconds": 1.0}
    shown = tmp_path / "result.json"
    shown.write_text(json.dumps(result))
    assert main(["--show", str(shown), "--all"]) == 1
    assert "| NO: one, processes |" in capsys.readouterr().out
    assert main(["--show", str(shown)]) == 1
    assert "\n| merge --each | 2 logs | 1.00 |  | 1 B |  | 1.00 | 1.00 | 250,000,000 | 5 |\n" in (
        out := capsys.readouterr().out
    )
    assert "processes, MPI and Dask: NOT the same." in out
    for run in runs:
        run["sha256"] = "equal"
    shown.write_text(json.dumps(result))
    assert main(["--show", str(shown)]) == 0
