"""Fits of recorded applications: those that come with the package, and others beside it.

recordings.json has the keys of each. They were held against the applications' own parameters when they were recorded:
format, batch size, samples, epochs, readers and checkpoints are those of the programs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.merge import merge
from tests.places import CAPTURES

KEYS = json.loads(Path(__file__).with_name("recordings.json").read_text(encoding="utf-8"))
OWN = Path(__file__).parents[2] / "data" / "captures"
SIMILAR = {"imagenet": 0.95, "cosmictagger": 0.95, "cosmoflow": 0.95, "torch_hdf5": 0.95}
"""Recording -> least similarity of what the fitted description generates."""


@pytest.mark.parametrize("name", KEYS)
def test_a_recording_gives_its_keys(tmp_path, name):
    if name in ("imagenet", "cosmictagger"):
        sample = dxt_replay.sample(name)
        logs, profiles = [sample.log], list(sample.profiles)
    else:
        folder = next((place / name for place in (OWN, CAPTURES) if (place / name / "profile").is_dir()), None)
        if folder is None:
            pytest.skip("no recorded captures beside this checkout")
        logs = sorted((folder / "logs").glob("*.darshan")) or [folder / "job.darshan"]
        profiles = list(find_profiles(folder / "profile"))
    merge(logs, profiles, tmp_path / "run.capture")
    fitted = dxt_replay.fit(tmp_path / "run.capture", tmp_path / "run.yaml")
    assert {key: value for key, (value, _) in fitted.keys.items()} == KEYS[name]
    text = (tmp_path / "run.yaml").read_text()
    assert f"{fitted.similarity:.4f}" in text
    assert all("#" in line for line in text.splitlines() if ": " in line)
    assert fitted.similarity is not None
    assert fitted.similarity > SIMILAR.get(name, 0)
