"""`dxt-replay generate`: from a description to a capture that can be staged, replayed and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main

SMALL = ("dataset.num_files_train=8", "dataset.num_files_eval=4", "train.epochs=1", "train.computation_time=0.001")


def test_a_workload_is_generated_staged_replayed_and_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, twin, replay = (str(tmp_path / name) for name in ("w.capture", "twin", "r.capture"))
    assert main(["generate", "default", *SMALL, "--ranks", "2", "-o", source]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Generated 2 ranks, ")
    assert printed.endswith(f"next: dxt-replay stage {source} --target twin\n")
    Path(twin).mkdir()
    assert main(["stage", source, "--target", twin]) == 0
    assert main(["run", source, "--target", twin, "-o", replay, "--pace", "steps"]) == 0
    assert main(["compare", source, replay]) == 0


def test_what_is_not_followed_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "w.capture"
    keys = ["reader.batchsize=3", "reader.pin_memory=false", "checkpoint.fsync=true", "storage.storage_type=s3"]
    line = ["generate", "default", *SMALL, *keys, "--reading", "head", "--ranks", "1", "-o", str(source)]
    assert main(line) == 0
    printed = capsys.readouterr().out
    for title in ("Unknown keys", "Without effect", "Not expressed by the capture", "Keys that change no request"):
        assert f"\n{title}\n" in printed
    assert "did you mean reader.batch_size?" in printed
    warnings = " ".join(dxt_replay.open_capture(source).info.warnings)
    assert "reader.batchsize 3 is unknown" in warnings
    assert "checkpoint.fsync True is without effect" in warnings
    assert "pin_memory" not in warnings


def test_what_was_read_is_kept_in_the_capture(tmp_path: Path) -> None:
    dxt_replay.generate("default", 1, tmp_path / "w.capture", overrides=SMALL, reading="v2.0", seed=7)
    info = dxt_replay.open_capture(tmp_path / "w.capture").info
    made_by = info.made_by
    assert (made_by["workload"], made_by["reading"], made_by["seed"]) == ("default", "v2.0", 7)
    assert made_by["overrides"] == list(SMALL)
    assert info.sources[0].kind == "workload"
    assert len(info.sources[0].sha256) == 64


def test_the_list_as_json_says_what_each_workload_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--list", "--json"]) == 0
    workloads = {each["name"]: each for each in json.loads(capsys.readouterr().out)["workloads"]}
    assert "3D U-Net" in workloads["unet3d_h100"]["title"]
    assert workloads["llama3_8b"]["needs_bytes_per_s"] is None
    needed = {name: round(each["needs_bytes_per_s"] / 1e6) for name, each in workloads.items() if each["compute_s"]}
    published = {
        "unet3d_h100": 3177,
        "resnet50_a100": 105,
        "cosmoflow_h100": 808,
        "retinanet_b200": 163,
        "flux_b200": 77,
    }
    assert published.items() <= needed.items()
