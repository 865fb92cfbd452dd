"""No finding promises more than infinitely fast storage saves, by the same model that `summary` begins with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import dxt_replay
from tests.places import recorded

_TENSORFLOW = ("candle", "climate", "cosmictagger", "cosmoflow", "ffn", "frnn", "imagenet", "l2hmc")
_PYTORCH = ("torch_eval", "torch_hdf5", "torch_images", "torch_shards")
_KERAS = ("keras_plain/slow", "keras_shuffle/slow")


def _within_the_limit(logs: Sequence[Path], profiles: Sequence[Path], path: Path) -> None:
    dxt_replay.merge(logs, path, profiles=profiles)
    capture = dxt_replay.open_capture(path)
    loop, run_s = dxt_replay.summary(capture).loop, capture.info.job.run_time_s
    assert loop is not None
    try:
        saved_s = dxt_replay.storage_limit(capture).saved_ns / 1e9
    except dxt_replay.ReplayError:
        saved_s = loop.storage_gain_s
    for finding in dxt_replay.findings(capture):
        if finding.at_stake_s is None or finding.code in ("checkpoint-blocking", "warm-up"):
            continue
        if finding.code == "input-bound" and finding.values["io_in_wait_pct"] < 50:
            continue  # prepared too slowly
        whole_s = 0.0 if finding.at_stake_of == "training loop" else run_s - loop.loop_s
        assert finding.at_stake_s <= saved_s + whole_s + 1e-9, finding


@pytest.mark.parametrize("name", ["cosmictagger", "imagenet"])
def test_of_a_sample(name: str, tmp_path: Path) -> None:
    files = dxt_replay.sample(name)
    _within_the_limit([files.log], files.profiles, tmp_path / "a.capture")


@pytest.mark.parametrize("name", [*_TENSORFLOW, *_PYTORCH, *_KERAS])
def test_of_a_recorded_job(name: str, tmp_path: Path) -> None:
    folder = recorded(f"captures/{name}")
    if not (folder / "profile").exists():
        pytest.skip("the checkout has no profile of it")
    logs = sorted(folder.glob("**/*.darshan"))
    _within_the_limit(logs, [folder / "profile"], tmp_path / "a.capture")
