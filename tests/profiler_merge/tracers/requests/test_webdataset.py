"""The shards that a job reads with webdataset over HTTP, against the log of the server; curl itself is not seen."""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import open_capture
from tests.object_servers import ObjectServer

pytest.importorskip("webdataset", reason="webdataset is not installed")
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="webdataset needs curl")

JOB = """
import sys, webdataset
from torch.utils.data import DataLoader

if __name__ == "__main__":
    urls = [f"{sys.argv[1]}/bucket/shards/{number}.tar" for number in range(4)]
    data = webdataset.WebDataset(urls, shardshuffle=False).map(lambda sample: len(sample["bin"]))
    assert sum(int(batch.sum()) for batch in DataLoader(data, batch_size=5, num_workers=2)) == 4 * 10 * 3000
"""


def shard() -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for number in range(10):
            about = tarfile.TarInfo(f"{number}.bin")
            about.size = 3000
            archive.addfile(about, io.BytesIO(bytes(3000)))
    return found.getvalue()


def test_each_shard_is_a_request_of_the_worker_that_read_it(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = ObjectServer()
    server.objects = {f"shards/{number}.tar": shard() for number in range(4)}
    Path("job.py").write_text(JOB)
    with server.running():
        assert main(["record", "--with", "requests", "--", sys.executable, "job.py", server.endpoint]) == 0
    capture = open_capture(tmp_path / "run.capture")
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    paths = dict(zip(capture.files["file_id"].to_pylist(), capture.files["path"].to_pylist(), strict=True))
    found = sorted((row["op"], paths[row["file_id"]], row["offset"], row["status"]) for row in rows)
    logged = sorted(("read", f"s3://bucket/{each.key}", 0, each.status) for each in server.log)
    assert found == logged
    assert all(10 * 3000 <= row["length"] <= len(shard()) for row in rows)
    assert len({row["lane"] for row in rows}) == 2
