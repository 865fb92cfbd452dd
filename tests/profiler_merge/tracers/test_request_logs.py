"""Logs of requests: beside a Darshan log of the same job, where each operation and byte counts once, and of s3dlio."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.given_files import kind_of
from dxt_replay.profiler_merge.request_hooks.log import MARK
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.files import record_id
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import (
    DxtRecord,
    JobSpec,
    ModuleSpec,
    encode_counters,
    encode_dxt,
    posix_rows,
    segment_dtype,
    write_log,
)

START_S, PID = 1_700_000_000, 77
READS, READ_BYTES = 10, 4096
REQUESTS, REQUEST_BYTES = 6, 1000
NAME = b"/scratch/data/local.bin"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of one rank that reads a file and gets ranges of an object of the same name at the same time."""
    reads = np.zeros(READS, dtype=segment_dtype("DXT_POSIX", 2))
    reads["offset"], reads["length"] = np.arange(READS) * READ_BYTES, READ_BYTES
    reads["start_s"] = 1 + 0.1 * np.arange(READS)
    reads["end_s"], reads["pthread_id"] = reads["start_s"] + 0.05, 1_000
    records = [DxtRecord(record_id=record_id(NAME), rank=0, reads=reads)]
    modules = {
        "DXT_POSIX": ModuleSpec(version=2, streams=[encode_dxt(records, "DXT_POSIX", 2)]),
        "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", posix_rows(records), 4)]),
    }
    folder = tmp_path / "logs"
    folder.mkdir()
    job = JobSpec(nprocs=1, start_s=START_S, end_s=START_S + 60)
    write_log(
        folder / f"me_python_id{PID}-{PID}_11-24-1.darshan", job=job, names={record_id(NAME): NAME}, modules=modules
    )
    lines = [MARK, f"P\t{PID}\t1\t\thost\t{PID}", f"A\t{START_S * 10**9}\t0"]
    for number in range(REQUESTS):
        begin = 1_020_000_000 + number * 100_000_000
        end, status = begin + 50_000_000, 503 if number == 0 else 206
        length = 0 if status == 503 else REQUEST_BYTES
        row = ("R", "GetObject", "scratch/data/local.bin", number * REQUEST_BYTES, length, length, 1 << 20, begin,
               begin + 10_000_000 * (number + 1) // 2, end, status, 1, PID, "", "", "")  # fmt: skip
        lines.append("\t".join(map(str, row)))
    (folder / f"host.{PID}.1.requests").write_text("\n".join(lines) + "\n")
    return folder


def test_nothing_counts_twice(logs, tmp_path, capsys):
    capture = tmp_path / "both.capture"
    assert main(["merge", str(logs), "-o", str(capture)]) == 0
    opened = open_capture(capture)
    rows = [row for batch in opened.operations() for row in batch.to_pylist() if row["origin"] == "traced"]
    moved = {api: sum(row["length"] for row in rows if row["api"] == api) for api in ("POSIX", "S3")}
    assert moved == {"POSIX": READS * READ_BYTES, "S3": (REQUESTS - 1) * REQUEST_BYTES}
    assert [sum(row["api"] == api for row in rows) for api in ("S3", "S3_REFUSED")] == [REQUESTS - 1, 1]
    lanes = {api: {row["lane"] for row in rows if row["api"] == api} for api in moved}
    assert not lanes["POSIX"] & lanes["S3"]
    capsys.readouterr()
    assert main(["summary", str(capture), "--show", "requests", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: each["bytes"] for name, each in found["interfaces"].items()} == moved
    assert found["interfaces"]["S3"]["reads"] == REQUESTS - 1
    assert [
        (row["op"], row["status"], row["answer"], row["requests"], row["bytes"]) for row in found["tables"]["requests"]
    ] == [
        ("read", 206, "done", REQUESTS - 1, (REQUESTS - 1) * REQUEST_BYTES),
        ("read", 503, "error", 1, 0),
    ]
    done, refused = found["tables"]["requests"]
    assert (done["first_byte_p50_ns"], done["first_byte_p99_ns"]) == (20_000_000, 30_000_000)
    assert (refused["first_byte_p50_ns"], refused["time_p50_ns"]) == (5_000_000, 50_000_000)


def test_requests_that_an_earlier_release_inferred_are_left_out(logs, tmp_path):
    """0.2.0 wrote a field more, with the name of a client that showed its calls and not its requests."""
    (log,) = logs.glob("*.requests")
    head, *rows = log.read_text().splitlines(keepends=True)
    of_old = [row.replace("\n", "\t\n" if number else "\tobstore\n") for number, row in enumerate(rows[2:])]
    log.write_text("".join([head, *rows[:2], *of_old]))
    capture = tmp_path / "both.capture"
    assert main(["merge", str(logs), "-o", str(capture)]) == 0
    opened = open_capture(capture)
    rows = [row for batch in opened.operations() for row in batch.to_pylist()]
    assert sum(row["api"] in ("S3", "S3_REFUSED") for row in rows) == REQUESTS - 1
    assert any("1 request left out: dxt-replay 0.2.0 inferred" in text for text in opened.info.warnings)


@pytest.mark.parametrize(
    ("call", "status", "received", "length", "api"),
    [
        ("GetObject", "206", 700, 700, "S3"),
        ("GetObject", "", 700, 700, "S3"),
        ("GetObject", "0", 700, 700, "S3"),  # it broke off after 700 bytes, which the job did receive
        ("GetObject", "0", 0, 0, "S3_REFUSED"),
        ("GetObject", "403", 250, 0, "S3_REFUSED"),  # the bytes of the error's own text are no data
        ("HeadObject", "404", 0, 0, "S3"),
    ],
)
def test_a_read_that_broke_off_keeps_its_bytes(call, status, received, length, api, logs, tmp_path):
    (log,) = logs.glob("*.requests")
    row = ("R", call, "b/k", 0, received, received, "", 1_020_000_000, "", 1_030_000_000, status, 1, PID, "", "", "")
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]) + "\t".join(map(str, row)) + "\n")
    assert main(["merge", str(log), "-o", str(tmp_path / "a.capture")]) == 0
    (batch,) = open_capture(tmp_path / "a.capture").operations()
    assert [(row["length"], row["api"]) for row in batch.to_pylist()] == [(length, api)]


def test_a_part_behind_one_that_no_log_has_has_no_offset(logs, tmp_path):
    (log,) = logs.glob("*.requests")
    rows = [
        ("R", "UploadPart", "b/k", 0, length, 0, "", 1000 + part, "", 2000, 200, 1, PID, 9, part, "")
        for part, length in ((1, 5), (2, 6), (4, 7))
    ]
    text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]) + text)
    assert main(["merge", str(log), "-o", str(tmp_path / "a.capture")]) == 0
    (batch,) = open_capture(tmp_path / "a.capture").operations()
    assert batch["offset"].to_pylist() == [0, 5, -1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# dxt-replay requests 9\n", "is not a log of requests, or of another release"),
        (f"{MARK}\nQ\t1\n", "does not say which process wrote it"),
        (f"{MARK}\nP\t7\t1\t\thost\t7\n", "has no date"),
    ],
)
def test_a_log_that_cannot_be_used_says_why(text, said, tmp_path, capfd):
    (tmp_path / "a.requests").write_text(text)
    assert main(["merge", str(tmp_path / "a.requests"), "-o", str(tmp_path / "a.capture")]) == 2
    assert said in capfd.readouterr().err


# Operation logs of s3dlio.

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
