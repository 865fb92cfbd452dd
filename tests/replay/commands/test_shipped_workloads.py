"""Each shipped workload at a small scale: generated, staged, replayed, and compared, as a user would.

All of them take a minute and run with `make test-workloads`; one of each kind runs in every test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import dxt_replay
from tests.workloads.small_workloads import RANKS, small_overrides

KINDS = {
    "default": "npz in sub-folders, evaluation",
    "resnet50_h100": "TFRecord",
    "paper_cosmic_tagger": "HDF5 in chunks, shared by the ranks",
    "dlrm": "indexed binary",
    "llama_70b_zero3": "checkpoints that are written and read",
}
NAMES = [listed.name for listed in dxt_replay.workloads()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in KINDS else [pytest.mark.slow]) for name in NAMES]
)
def test_a_replay_does_what_was_generated(name: str, tmp_path: Path) -> None:
    source, replay = tmp_path / "source.capture", tmp_path / "replay.capture"
    made = dxt_replay.generate(name, RANKS, source, overrides=small_overrides(name)).generated
    (tmp_path / "twin").mkdir(exist_ok=True)
    dxt_replay.stage(source, tmp_path / "twin")
    dxt_replay.run(source, tmp_path / "twin", replay, pace="steps")
    comparison = dxt_replay.compare(source, replay)

    # Not the verdict on the times, because a busy machine makes operations late.
    assert (comparison.verdict.similarity, comparison.verdict.exact) == ("pass", "pass"), comparison.headline
    replayed = dxt_replay.summary(replay)
    assert made.steps > 0
    assert sum(replayed.as_json()["operations"].values()) == made.operations
    assert replayed.as_json()["bytes"] == {"read": made.bytes_read, "written": made.bytes_written}
