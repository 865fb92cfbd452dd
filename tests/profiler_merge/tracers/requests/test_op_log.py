"""Operation logs of s3dlio: what its format states, and that it is read from Zstandard."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.given_files import kind_of
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import open_capture

HEADER = "idx\tthread\top\tclient_id\tn_objects\tbytes\tendpoint\tfile\terror\tstart\tfirst_byte\tend\tduration_ns\n"
"""src/s3_logger.rs of s3dlio, HEADER; the lines are those of `to_log_line`."""


def line(idx: int, op: str, moved: int, file: str, begin: str, first: str, end: str, **more: str) -> str:
    client, endpoint, error = (more.get(name, default) for name, default in DEFAULTS)
    times = [f"2026-11-23T10:00:{each}Z" if each else "" for each in (begin, first, end)]
    return "\t".join(map(str, (idx, 17, op, client, 1, moved, endpoint, file, error, *times, 0))) + "\n"


DEFAULTS = (("client", "agent-1"), ("endpoint", "s3://bucket"), ("error", ""))
TEXT = HEADER + "".join(
    [
        line(0, "LIST", 0, "bucket/data", "00.000000001", "", "00.5"),
        line(1, "GET", 700, "bucket/data/a.npz", "01.000000000", "01.250000000", "01.250000007"),
        line(2, "GET_RANGE", 50, "bucket/data/b.npz", "02", "02.1", "02.1"),
        line(3, "GET", 0, "bucket/data/c.npz", "03", "03.1", "03.2", error="NoSuchKey"),
        line(4, "PUT", 9, "bucket/out", "04", "04", "04.3", client="agent-2"),
        line(5, "GET", 9, "/tmp/x", "05", "05", "05.3", endpoint="file://"),
    ]
)


@pytest.mark.parametrize("packed", [True, False], ids=["zstd", "plain"])
def test_a_log_of_s3dlio_becomes_a_capture(packed, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / ("ops.tsv.zst" if packed else "ops.tsv")
    log.write_bytes(pa.compress(TEXT.encode(), "zstd", asbytes=True) if packed else TEXT.encode())
    assert kind_of(log) == "s3dlio"
    assert main(["merge", str(log), "-o", "a.capture"]) == 0
    capture = open_capture(tmp_path / "a.capture")
    paths = capture.files["path"].to_pylist()
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    found = [
        (row["rank"], row["op"], paths[row["file_id"]], row["offset"], row["length"], row["first_byte_ns"])
        for row in rows
    ]
    assert found == [
        (0, "list", "s3://bucket/", -1, 0, None),
        (0, "read", "s3://bucket/data/a.npz", 0, 700, 250_000_000),
        (0, "read", "s3://bucket/data/b.npz", -1, 50, 100_000_000),
        (0, "read", "s3://bucket/data/c.npz", 0, 0, 100_000_000),
        (1, "write", "s3://bucket/out", 0, 9, None),
    ]
    assert rows[1]["start_ns"] - rows[0]["start_ns"] == 999_999_999
    assert rows[1]["end_ns"] - rows[1]["start_ns"] == 250_000_007
    assert [row["status"] for row in rows] == [None, None, None, 0, None]
    assert [row["api"] for row in rows] == ["S3", "S3", "S3", "S3_REFUSED", "S3"]
    assert all(row["connection"] is None for row in rows)
    assert any("file:// left out" in text for text in capture.info.warnings)
    assert any("without an offset" in text for text in capture.info.warnings)


def test_a_log_that_is_cut_off_is_read_up_to_there(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = HEADER + "".join(line(n, "GET", n, f"bucket/{n % 7}", "01", "01", "02") for n in range(200_000))
    packed = pa.compress(whole.encode(), "zstd", asbytes=True)
    (tmp_path / "ops.tsv.zst").write_bytes(packed[: len(packed) // 2])
    assert main(["merge", "ops.tsv.zst", "-o", "a.capture"]) == 0
    capture = open_capture(tmp_path / "a.capture")
    assert 0 < sum(batch.num_rows for batch in capture.operations()) < 200_000
    assert any("cut off" in text for text in capture.info.warnings)
