"""The table of noise: its rows, from what the command prints."""

from __future__ import annotations

from pathlib import Path

from benchmarks.replay_noise import SHOWN, noise_row, recordings


def test_a_row_of_noise_has_both_values_of_each_measure() -> None:
    measures = {name: {"value": 2.0, "floor": 1.0, "within": False} for name in SHOWN}
    measures["storage.io_time_s"] = {"value": None, "floor": 1.5, "within": None}
    relaxed = [{"limit": "drift_ppm", "asked": 20.0, "allowed": 33.333}]
    row = noise_row("ffn", {"floor": {"measures": measures, "relaxed": relaxed}, "passed": True})
    assert row.count("2 / 1 beyond") == len(SHOWN) - 1
    assert row.startswith("| ffn | ")
    assert row.endswith("| drift_ppm 33.3 | passed |")
    assert "| - / 1.5 |" in row


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
