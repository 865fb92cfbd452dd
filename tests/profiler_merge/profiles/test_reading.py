from __future__ import annotations

import os
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.profiles.reading import profile_kind, read_profile
from dxt_replay.traces.errors import ProfileError


@pytest.mark.parametrize("name", ["host.xplane.pb", "host.pt.trace.json"])
def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    assert profile_kind(path) == "xplane"
    with pytest.raises(ProfileError, match="is not a file"):
        read_profile([path])
