"""A log without traced reads and writes: was tracing off, or did the job move nothing through calls?"""

from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.output import RECORDING_MARK
from tests.darshan_writer import ModuleSpec, encode_counters, write_log

NOTHING = "the job read and wrote no file through calls: a replay has nothing to read or write"
NO_DXT = "no DXT in this log"


@pytest.mark.parametrize(
    ("recorded", "moved", "said"),
    [(True, 0, NOTHING), (False, 0, NO_DXT), (True, 100, NO_DXT), (False, 100, NO_DXT)],
)
def test_a_recording_without_reads_and_writes_is_not_told_to_turn_tracing_on(
    tmp_path: Path, recorded: bool, moved: int, said: str
) -> None:
    """`record` tries DXT before the job starts. What was counted and not traced contradicts that."""
    if recorded:
        (tmp_path / RECORDING_MARK).write_text("python train.py")
    rows = [{"record_id": 1, "POSIX_OPENS": 1, "POSIX_READS": bool(moved), "POSIX_BYTES_READ": moved}]
    posix = ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)])
    log = write_log(tmp_path / "job.darshan", modules={"POSIX": posix}, names={1: b"/data/mapped.bin"})
    warnings = merge([log], [], tmp_path / "a.capture").info.warnings
    assert [text for text in (NOTHING, NO_DXT) if any(each.startswith(text) for each in warnings)] == [said]
