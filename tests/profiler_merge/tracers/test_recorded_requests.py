"""The requests of jobs, as `record` notes them, against the logs of the servers that answered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder.darshan import find_library
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.object_servers import BUCKET, ObjectServer, Request, nginx

pytest.importorskip("boto3", reason="boto3 is not installed")

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAOFTHETEST",
    "AWS_SECRET_ACCESS_KEY": "a+secret+key",
    "AWS_SESSION_TOKEN": "a+token",
}
REQUESTS = 10_000
SIZE = 1 << 20

BOTO = """
import boto3, random, sys
from botocore.config import Config
from botocore.exceptions import ClientError
from concurrent.futures import ThreadPoolExecutor

config = Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}, max_pool_connections=4)
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", config=config)

def one(seed):
    draw = random.Random(seed)
    key = f"data/{draw.randrange(4)}.bin"
    begin, kind = draw.randrange(1 << 20), draw.random()
    try:
        if kind < 0.1:
            s3.head_object(Bucket="bucket", Key=key)
        elif kind < 0.2:
            s3.get_object(Bucket="bucket", Key="data/none.bin")["Body"].read()
        elif kind < 0.21:
            s3.get_object(Bucket="bucket", Key=key)["Body"].read()
        else:
            end = begin + draw.randrange(4096)
            body = s3.get_object(Bucket="bucket", Key=key, Range=f"bytes={begin}-{end}")["Body"]
            while draw.random() < 0.5 and body.read(100):
                pass
            body.read()
    except ClientError:
        pass

with ThreadPoolExecutor(4) as pool:
    list(pool.map(one, range(int(sys.argv[2]))))
"""

WORKERS = """
import boto3, multiprocessing, sys
from botocore.config import Config

def client():
    return boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1")

def work(number):
    s3 = client()
    for n in range(20):
        span = f"bytes={number * 100 + n}-{number * 100 + n + 9}"
        s3.get_object(Bucket="bucket", Key=f"data/{n % 4}.bin", Range=span)["Body"].read()

if __name__ == "__main__":
    work(0)
    for number, method in enumerate(("fork", "spawn", "forkserver"), start=1):
        worker = multiprocessing.get_context(method).Process(target=work, args=(number,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
"""

CHANGES = """
import boto3, sys

s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1")
s3.put_object(Bucket="bucket", Key="new/a.bin", Body=b"x" * 5000)
upload = s3.create_multipart_upload(Bucket="bucket", Key="new/b.bin")["UploadId"]
parts = [
    {"PartNumber": part, "ETag": s3.upload_part(
        Bucket="bucket", Key="new/b.bin", UploadId=upload, PartNumber=part, Body=b"y" * size)["ETag"]}
    for part, size in ((2, 300), (1, 700), (3, 5))
]
parts.sort(key=lambda part: part["PartNumber"])
s3.complete_multipart_upload(Bucket="bucket", Key="new/b.bin", UploadId=upload, MultipartUpload={"Parts": parts})
s3.list_objects_v2(Bucket="bucket", Prefix="new/")
s3.copy_object(Bucket="bucket", Key="new/c.bin", CopySource={"Bucket": "bucket", "Key": "new/a.bin"})
s3.delete_object(Bucket="bucket", Key="new/a.bin")
s3.get_object(Bucket="bucket", Key="new/c.bin")["Body"].read()
s3.delete_object(Bucket="bucket", Key="new/b.bin")
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in which the command runs, with credentials in the environment."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return folder


def recorded(folder: Path, program: str, *words: str, tracer: str = "requests", status: int = 0) -> Capture:
    (folder / "job.py").write_text(program)
    command = ["record", "--force", "--with", tracer, "--", sys.executable, str(folder / "job.py"), *words]
    assert main(command) == status
    return open_capture(folder / "run.capture")


def rows_of(capture: Capture) -> list[dict]:
    return [row for batch in capture.operations() for row in batch.to_pylist()]


def of_server(requests: list[Request]) -> Counter:
    return Counter((each.method, each.key, each.range, each.status) for each in requests)


def of_capture(capture: Capture, requests: list[Request]) -> Counter:
    """The rows of a capture as the server logs them.

    A GET of a whole object has no range there, and a range that reaches beyond the end is longer there.
    """
    paths = capture.files["path"].to_pylist()
    methods = {"read": "GET", "stat": "HEAD"}
    whole = {each.key for each in requests if each.range is None}
    found: Counter = Counter()
    for row in rows_of(capture):
        assert row["api"] == ("S3_REFUSED" if row["op"] == "read" and row["status"] == 404 else "S3")
        key = paths[row["file_id"]].removeprefix(f"s3://{BUCKET}/")
        span = (row["offset"], row["offset"] + row["length"] - 1) if row["status"] == 206 else None
        assert span is not None or row["op"] == "stat" or key in whole
        found[methods[row["op"]], key, span, row["status"]] += 1
    return found


def test_nginx_logged_the_same_requests(work, tmp_path) -> None:
    place = tmp_path / "nginx"
    place.mkdir()
    with nginx(place) as server:
        (server.root / BUCKET / "data").mkdir()
        for number in range(4):
            (server.root / BUCKET / "data" / f"{number}.bin").write_bytes(os.urandom(SIZE))
        capture = recorded(work, BOTO, server.endpoint, str(REQUESTS))
        logged = server.requests()
    assert len(logged) == REQUESTS == len(rows_of(capture))
    end = {each: (each.range[0], min(each.range[1], SIZE - 1)) if each.range else None for each in set(logged)}
    expected = Counter((each.method, each.key, end[each], each.status) for each in logged)
    assert of_capture(capture, logged) == expected
    assert capture.info.coverage.bytes == 1.0


@pytest.fixture
def server(work: Path):
    made = ObjectServer()
    made.objects = {f"data/{n}.bin": os.urandom(SIZE) for n in range(4)}
    with made.running():
        yield made


def test_workers_that_fork_and_spawn_have_their_requests(server, work) -> None:
    capture = recorded(work, WORKERS, server.endpoint)
    assert of_capture(capture, server.log) == of_server(server.log)
    assert len(rows_of(capture)) == 80
    assert list(capture.ranks) == [0]
    roles = Counter(capture.lanes["role"].to_pylist())
    assert roles == {"main": 1, "worker": 3}
    assert len(set(capture.lanes["pid"].to_pylist())) == 4


def test_what_a_store_refuses_is_no_read_and_is_left_out_of_a_replay(server, work, capsys) -> None:
    """Each try is a row with its status."""
    server.refused["GET", "data/1.bin"] = 503
    program = """
import boto3, sys
from botocore.config import Config
config = Config(retries={"total_max_attempts": 2})
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", config=config)
for key in ("data/1.bin", "data/2.bin", "data/none.bin"):
    try:
        s3.get_object(Bucket="bucket", Key=key)["Body"].read()
    except Exception:
        pass
"""
    rows = rows_of(recorded(work, program, server.endpoint))
    assert [each.status for each in server.log] == [row["status"] for row in rows] == [503, 503, 200, 404]
    assert all(0 < row["first_byte_ns"] <= row["end_ns"] - row["start_ns"] for row in rows)
    capsys.readouterr()
    assert main(["summary", "run.capture", "--show", "requests", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["interfaces"]["S3"]["reads"] == 1
    assert [(row["op"], row["status"], row["requests"]) for row in found["tables"]["requests"]] == [
        ("read", 200, 1), ("read", 404, 1), ("read", 503, 2),
    ]  # fmt: skip
    target = server.url(more="")
    assert main(["stage", "run.capture", "--target", target]) == 0
    server.log.clear()
    capsys.readouterr()
    assert main(["run", "run.capture", "--target", target, "--pace", "none", "-o", "replay.capture", "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert warnings == ["the job's store refused 3 requests: such requests are left out"]
    assert [each.key.rpartition("/")[2] for each in server.of_replay("GET")] == ["2.bin"]
    assert main(["compare", "run.capture", "replay.capture"]) == 0


def test_changes_have_the_operations_of_the_table(server, work) -> None:
    capture = recorded(work, CHANGES, server.endpoint)
    paths = [path.removeprefix(f"s3://{BUCKET}/") for path in capture.files["path"].to_pylist()]
    rows = [(row["op"], paths[row["file_id"]], row["offset"], row["length"]) for row in rows_of(capture)]
    assert rows == [
        ("write", "new/a.bin", 0, 5000),
        ("open", "new/b.bin", -1, 0),
        ("write", "new/b.bin", 700, 300),
        ("write", "new/b.bin", 0, 700),
        ("write", "new/b.bin", 1000, 5),
        ("close", "new/b.bin", -1, 0),
        ("list", "new/", -1, 0),
        ("rename", "new/a.bin", -1, 0),
        ("read", "new/c.bin", 0, 5000),
        ("delete", "new/b.bin", -1, 0),
    ]
    assert main(["verify", "run.capture"]) == 0


def test_no_file_has_a_secret(server, work) -> None:
    program = WORKERS.replace(
        "work(0)",
        "work(0); print(client().generate_presigned_url('get_object', "
        "Params={'Bucket': 'bucket', 'Key': 'data/1.bin'}), file=open('/dev/null', 'w'))",
    )
    recorded(work, program + textwrap.indent(CHANGES, "    "), server.endpoint)
    sent = {each.headers["Authorization"].rpartition("Signature=")[2] for each in server.log}
    assert len(sent) > 50
    assert all(len(each) == 64 for each in sent)
    forbidden = [*SECRETS.values(), "Signature", *sent, *server.uploads]
    files = [
        file for folder in ("run.recording", "run.capture") for file in (work / folder).rglob("*") if file.is_file()
    ]
    assert any(file.suffix == ".requests" for file in files)
    for file in files:
        if file.parent.name != "dxt_replay_requests":  # the code, not what it wrote
            data = file.read_bytes()
            assert [text for text in forbidden if text.encode() in data] == [], file


def test_a_killed_job_loses_only_what_was_under_way(server, work) -> None:
    (work / "job.py").write_text(BOTO)
    command = [sys.executable, "-m", "dxt_replay", "record", "--with", "requests", "--", sys.executable, "job.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    job = subprocess.Popen([*command, server.endpoint, "1000000"], env=environment)
    while len(server.log) < 300:
        assert job.poll() is None
        time.sleep(0.01)
    (log,) = (work / "run.recording" / "logs").glob("*.requests")
    os.kill(int(log.name.split(".")[-3]), signal.SIGKILL)
    assert job.wait() == 128 + signal.SIGKILL
    capture = open_capture(work / "run.capture")
    lost = of_server(server.log).total() - len(rows_of(capture))
    assert 0 <= lost <= 4  # the threads of the job


def test_bytes_on_the_sockets_are_explained_under_strace(server, work) -> None:
    """The watch counts the bytes of the socket; without the requests they are unseen."""
    import shutil

    if shutil.which("strace") is None:
        pytest.skip("no strace on PATH")
    program = WORKERS.replace(
        "work(0)",
        "import time; s3 = client(); [len(s3.get_object(Bucket='bucket', "
        "Key='data/1.bin')['Body'].read()) for _ in range(20)]; time.sleep(1); work(0)",
    )
    capture = recorded(work, program, server.endpoint, tracer="strace")
    assert capture.info.coverage.bytes > 0.99
    assert [row["api"] for row in rows_of(capture)].count("S3") == len(server.log) == 100
    logs = [str(log) for log in (work / "run.recording" / "logs").glob("*.strace*")]
    assert main(["merge", *logs, "-o", "without.capture"]) != 0 or (
        (open_capture(work / "without.capture").info.coverage.bytes or 0) < 0.1
    )


OTHER_CLIENTS = """
import sys, urllib.request
import boto3
from botocore.config import Config
endpoint = sys.argv[1]
s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=Config(s3={"addressing_style": "path"}))
s3.get_object(Bucket="bucket", Key="data/0.bin")["Body"].read()
for _ in range(9):
    with urllib.request.urlopen(endpoint + "/bucket/data/1.bin") as answer:
        answer.read()
"""


@pytest.mark.parametrize("tracer", ["requests", "darshan"])
def test_bytes_of_clients_without_hooks_are_unseen(tracer, server, work, capsys) -> None:
    """A connection for each GET, which is gone before anybody looks from outside. The server counts the bytes."""
    if tracer == "darshan" and find_library(os.environ) is None:
        pytest.skip("no libdarshan.so")
    capture = recorded(work, OTHER_CLIENTS, server.endpoint, tracer=tracer)
    assert len(server.log) == 10
    (unseen,) = [each for each in capture.info.coverage.unseen if each.kind == "socket"]
    sent = 9 * SIZE
    assert unseen.name == server.endpoint.removeprefix("http://")
    assert 0.97 * sent < unseen.bytes < sent + 10 * 4096
    if tracer == "requests":
        assert capture.info.coverage.bytes == pytest.approx(0.1, rel=0.03)
    capsys.readouterr()
    assert main(["summary", "run.capture"]) == 0
    assert "What storage cost this run is not known" in capsys.readouterr().out


def test_bytes_between_processes_of_a_job_are_none(server, work) -> None:
    """Both ends of a connection are in the log of the job."""
    program = WORKERS.replace(
        "work(0)",
        "import socket; l = socket.create_server(('127.0.0.1', 0)); a = socket.create_connection(l.getsockname()); "
        "b, _ = l.accept(); b.sendall(bytes(50000)); a.recv(50000, socket.MSG_WAITALL); a.close(); b.close(); work(0)",
    )
    assert recorded(work, program, server.endpoint).info.coverage.bytes == 1.0


@pytest.mark.parametrize("kind", ["objects", "directory"])
def test_a_replay_makes_the_recorded_requests_or_calls_again(kind, server, work) -> None:
    """The listing, renames and multipart uploads as docs/objects.md says."""
    if kind == "objects":
        pytest.importorskip("obstore")
    capture = recorded(work, WORKERS + textwrap.indent(CHANGES, "    "), server.endpoint)
    (work / "twin").mkdir()
    target = server.url("twin") if kind == "objects" else "twin"
    assert main(["stage", "run.capture", "--target", target]) == 0
    assert main(["run", "run.capture", "--target", target, "-o", "replay.capture", "--pace", "none"]) == 0
    replayed = rows_of(open_capture(work / "replay.capture"))
    assert all(row["result"] == row["length"] for row in replayed)
    assert Counter(row["op"] for row in replayed) == Counter(row["op"] for row in rows_of(capture))
    if kind == "directory":
        left = {path.name for path in (work / "twin").rglob("*.bin")}
        assert left == {"0.bin", "1.bin", "2.bin", "3.bin", "c.bin"}
        return
    ranges = [each.range for each in server.of_replay("GET") if each.range]
    assert Counter((begin, end - begin + 1) for begin, end in ranges) == Counter(
        (row["offset"], row["length"]) for row in rows_of(capture) if row["op"] == "read"
    )
    new = f"twin/dxt-replay-twin/s3:/{BUCKET}/new"
    assert {each.key for each in server.of_replay("DELETE")} == {f"{new}/a.bin", f"{new}/b.bin"}
    assert {each.status for each in server.of_replay("GET") if not each.key} == {200}  # it lists three keys at a time
    assert Counter(each.key for each in server.of_replay("PUT")) == {f"{new}/{name}.bin": 1 for name in "abc"}


S3FS = """
import fsspec, sys

fs = fsspec.filesystem(
    "s3", endpoint_url=sys.argv[1], client_kwargs={"region_name": "us-east-1"}, default_fill_cache=False
)
for n in range(50):
    assert len(fs.cat_file(f"bucket/data/{n % 4}.bin", start=n * 10, end=n * 10 + 7)) == 7
with fs.open("bucket/data/1.bin", "rb", cache_type="none") as file:
    file.seek(1000)
    assert len(file.read(500)) == 500
try:
    fs.cat_file("bucket/none.bin")
except FileNotFoundError:
    pass
"""


def test_s3fs_has_its_requests(server, work) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    capture = recorded(work, S3FS, server.endpoint)
    requests = [each for each in server.log if each.key]
    found = Counter((row["status"], row["length"]) for row in rows_of(capture) if row["op"] == "read")
    assert found == Counter((each.status, each.sent * (each.status < 300)) for each in requests if each.method == "GET")
    stats = [row["status"] for row in rows_of(capture) if row["op"] == "stat"]
    assert sorted(stats) == sorted(each.status for each in requests if each.method == "HEAD")
    assert found[206, 7] == 50


def test_a_client_without_requests_to_s3_leaves_none(work, capfd) -> None:
    """A job without requests has an error of its own under `--with requests`."""
    recorded_status = main(["record", "--with", "requests", "--", sys.executable, "-c", "import botocore.client"])
    assert recorded_status != 0
    assert "no request to an object store" in capfd.readouterr().err
    assert main(["record", "--with", "requests", "--force", "--", sys.executable, "-c", "1"]) == 2
    assert "no request of the job was seen" in capfd.readouterr().err
