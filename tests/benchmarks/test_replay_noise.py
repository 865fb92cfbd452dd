"""The tables of noise and of what Darshan counts: their rows, from what the commands print."""

from __future__ import annotations

from pathlib import Path

from benchmarks.replay_noise import SHOWN, noise_row, recordings, witness_row


def test_a_row_of_noise_has_both_values_of_each_measure() -> None:
    measures = {name: {"value": 2.0, "floor": 1.0, "within": False} for name in SHOWN}
    measures["storage.io_time_s"] = {"value": None, "floor": 1.5, "within": None}
    relaxed = [{"limit": "drift_ppm", "asked": 20.0, "allowed": 33.333}]
    row = noise_row("ffn", {"floor": {"measures": measures, "relaxed": relaxed}, "passed": True})
    assert row.count("2 / 1 beyond") == len(SHOWN) - 1
    assert row.startswith("| ffn | ")
    assert row.endswith("| drift_ppm 33.3 | passed |")
    assert "| - / 1.5 |" in row


def test_a_row_of_a_witness_has_the_totals_of_all_three() -> None:
    totals = {"reads": 1000, "writes": 1, "bytes_read": 5, "bytes_written": 0}
    found = {"recorded": {}, "expected": totals, "counted": totals, "equal_files": 3, "files": 4, "verdict": "differs"}
    assert witness_row("ffn", found) == "| ffn | 3 of 4 | 0 / 1,001 / 1,001 | 0 / 5 / 5 | differs |"


def test_recordings_are_folders_with_logs(tmp_path: Path) -> None:
    (tmp_path / "one" / "logs").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "job.darshan").touch()
    (tmp_path / "none").mkdir()
    assert [(each.name, each.logs.name) for each in recordings(tmp_path, [])] == [
        ("one", "logs"),
        ("other", "job.darshan"),
    ]
    assert [each.name for each in recordings(None, [])] == ["imagenet", "cosmictagger"]
