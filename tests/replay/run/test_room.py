"""A run looks whether the disk has room for what it will write, before it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.writer import OpsWriter
from tests.capture_builder import File, build_capture, write
from tests.places import open_below

PIB = 1 << 50


@pytest.mark.parametrize(
    ("offset", "counted", "refused"),
    [(PIB, PIB, True), (PIB, 4096, False), (PIB, None, False), (0, PIB, False)],
    ids=["more than there is", "a hole", "not counted", "written again and again"],
)
def test_a_run_that_the_disk_has_no_room_for_is_refused(
    tmp_path: Path, offset: int, counted: int | None, refused: bool
) -> None:
    file = File("/out/result.bin", size=4096, counters={} if counted is None else {"posix_bytes_written": counted})
    capture = build_capture(tmp_path, ops=[write(0, offset=offset, length=4096)], files=[file], name="source")
    twin, output = tmp_path / "twin", tmp_path / "replay.capture"
    stage(plan_stage(capture, twin))
    if not refused:
        dxt_replay.run(capture, twin, output, pace="none")
        assert output.exists()
        return
    with pytest.raises(TargetError, match=r"the run writes 1\.00 PiB and .* are free"):
        dxt_replay.run(capture, twin, output, pace="none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.capture", "twin"]
    dxt_replay.run(capture, twin, output, pace="none", api="null")


def test_a_replay_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an open file without a name, as long as the error is looked at: NFS and FUSE keep its directory."""
    capture = build_capture(tmp_path, ops=[write(0, length=4096)], files=["/out/a"], name="source")
    stage(plan_stage(capture, tmp_path / "twin"))

    def refuse(*_: object) -> None:
        raise TargetError("no space left")

    monkeypatch.setattr(OpsWriter, "write", refuse)
    with pytest.raises(TargetError, match="no space left") as held:
        dxt_replay.run(capture, tmp_path / "twin", tmp_path / "replay.capture", pace="none")
    assert held.value.__traceback__ is not None
    assert not [name for name in open_below(tmp_path) if "/.replay.capture." in name]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.capture", "twin"]
