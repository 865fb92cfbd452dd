"""The requests of a job with s3torchconnector in DataLoader workers, against the log of the server that answered."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import open_capture
from tests.object_servers import BUCKET, ObjectServer

pytest.importorskip("s3torchconnector", reason="s3torchconnector is not installed")

PART = 8 << 20
JOB = """
import sys
import s3torchconnector
from s3torchconnectorclient import S3Exception
from s3torchconnector._s3client import S3Client, S3ClientConfig
from torch.utils.data import DataLoader

config = S3ClientConfig(unsigned=True, force_path_style=True, max_attempts=1)

def size(reader):
    return len(reader.read())

if __name__ == "__main__":
    data = s3torchconnector.S3MapDataset.from_prefix(
        "s3://bucket/data/", region="us-east-1", endpoint=sys.argv[1], transform=size, s3client_config=config)
    assert sum(int(batch.sum()) for batch in DataLoader(data, batch_size=4, num_workers=2)) == int(sys.argv[2])
    client = S3Client("us-east-1", endpoint=sys.argv[1], s3client_config=config)
    assert len(client.get_object("bucket", "big").read()) == 20_000_000
    ranged = s3torchconnector.S3ReaderConstructor.range_based(buffer_size=0)
    reader = client.get_object("bucket", "big", reader_constructor=ranged)
    reader.seek(1000)
    assert len(reader.read(500)) == 500
    for key in ("none", "refused"):
        try:
            client.get_object("bucket", key).read()
        except S3Exception:
            pass
    writer = client.put_object("bucket", "new")
    for _ in range(10):
        writer.write(b"x" * 1_000_000)
    writer.close()
    client.delete_object("bucket", "new")
"""
OF_METHOD = {"GET": "read", "HEAD": "stat", "PUT": "write", "DELETE": "delete"}


def test_a_job_with_workers_has_the_requests_of_the_servers_log(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = ObjectServer()
    server.objects = {f"data/{number}": bytes(1000 + number) for number in range(20)}
    total = sum(map(len, server.objects.values()))
    server.objects["big"] = bytes(20_000_000)
    server.refused["GET", "refused"] = 403
    Path("job.py").write_text(JOB)
    with server.running():
        assert main(["record", "--with", "requests", "--", sys.executable, "job.py", server.endpoint, str(total)]) == 0
    capture = open_capture(tmp_path / "run.capture")
    paths = dict(zip(capture.files["file_id"].to_pylist(), capture.files["path"].to_pylist(), strict=True))
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    names = ("read", "stat", "write", "delete")
    found = Counter(
        (row["op"], paths[row["file_id"]].removeprefix(f"s3://{BUCKET}/"), row["status"])
        for row in rows
        if row["op"] in names
    )
    expected = Counter(
        (OF_METHOD[each.method], each.key, 200 if each.method == "PUT" else each.status)
        for each in server.log
        if each.method in OF_METHOD and each.key
    )
    assert found == expected
    of_big = [row for row in rows if paths[row["file_id"]].endswith("/big") and row["op"] == "read"]
    assert sorted((row["offset"], row["length"]) for row in of_big) == [
        (0, PART), (1000, 500), (PART, PART), (2 * PART, 20_000_000 - 2 * PART),
    ]  # fmt: skip
    assert [row["offset"] for row in rows if row["op"] == "write"] == [0, PART]
    lists = sum(each.method == "GET" and not each.key for each in server.log)
    assert sum(row["op"] == "list" for row in rows) == lists > 1
    assert {row["status"] for row in rows if row["length"] == 0 and row["op"] == "read"} == {403, 404}
