"""Requests to object stores: those of jobs, as `record` notes them, against the logs of the servers that answered; and
logs of requests beside a Darshan log of the same job, where each operation and byte counts once, and of s3dlio."""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.given_files import kind_of
from dxt_replay.profiler_merge.recorder.darshan import find_library
from dxt_replay.profiler_merge.request_hooks.log import MARK
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.files import record_id
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, segment_dtype, write_dxt_log
from tests.object_servers import BUCKET, ObjectServer, nginx

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAOFTHETEST", "AWS_SECRET_ACCESS_KEY": "a+secret+key", "AWS_SESSION_TOKEN": "a+token",
}  # fmt: skip
REQUESTS = 2_000
SIZE = 1 << 20

CLIENT = """
import boto3, multiprocessing, os, random, socket, sys, time, urllib.request
from botocore.config import Config
from botocore.exceptions import ClientError
from concurrent.futures import ThreadPoolExecutor
def client(**config):
    config = Config(s3={"addressing_style": "path"}, **config)
    return boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", config=config)
def get(s3, key, **more): return s3.get_object(Bucket="bucket", Key=key, **more)["Body"]
"""
BOTO = """
s3 = client(retries={"max_attempts": 0}, max_pool_connections=4)
def one(seed):
    draw = random.Random(seed)
    key = f"data/{draw.randrange(4)}.bin"
    begin, kind = draw.randrange(1 << 20), draw.random()
    try:
        if kind < 0.1:
            s3.head_object(Bucket="bucket", Key=key)
        elif kind < 0.2:
            get(s3, "data/none.bin").read()
        elif kind < 0.21:
            get(s3, key).read()
        else:
            body = get(s3, key, Range=f"bytes={begin}-{begin + draw.randrange(4096)}")
            while draw.random() < 0.5 and body.read(100):
                pass
            body.read()
    except ClientError:
        pass
    if seed == int(sys.argv[3]): os.kill(os.getpid(), 9)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(one, range(int(sys.argv[2]))))
"""
# The parent and three workers get ranges; it sends itself bytes over a socket, signs a URL, and changes objects.
ALL = """
def work(number):
    s3 = client()
    for n in range(20):
        get(s3, f"data/{n % 4}.bin", Range=f"bytes={number * 100 + n}-{number * 100 + n + 9}").read()
if __name__ == "__main__":
    work(0)
    for number, method in enumerate(("fork", "spawn", "forkserver"), start=1):
        worker = multiprocessing.get_context(method).Process(target=work, args=(number,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
    listening = socket.create_server(("127.0.0.1", 0))
    a, (b, _) = socket.create_connection(listening.getsockname()), listening.accept()
    b.sendall(bytes(50000)); a.recv(50000, socket.MSG_WAITALL); a.close(); b.close()
    s3, b = client(), {"Bucket": "bucket", "Key": "new/b.bin"}
    assert "Signature" in s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "data/1.bin"})
    s3.put_object(Bucket="bucket", Key="new/a.bin", Body=b"x" * 5000)
    b["UploadId"] = s3.create_multipart_upload(**b)["UploadId"]
    parts = [
        {"PartNumber": part, "ETag": s3.upload_part(**b, PartNumber=part, Body=b"y" * size)["ETag"]}
        for part, size in ((2, 300), (1, 700), (3, 5))
    ]
    s3.complete_multipart_upload(**b, MultipartUpload={"Parts": sorted(parts, key=lambda part: part["PartNumber"])})
    s3.list_objects_v2(Bucket="bucket", Prefix="new/")
    s3.copy_object(Bucket="bucket", Key="new/c.bin", CopySource={"Bucket": "bucket", "Key": "new/a.bin"})
    s3.delete_object(Bucket="bucket", Key="new/a.bin")
    get(s3, "new/c.bin").read()
    s3.delete_object(Bucket="bucket", Key="new/b.bin")
"""


@contextmanager
def working(folder):
    """A server of objects, with the folder as working directory and credentials in the environment."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    made = ObjectServer()
    made.objects = {f"data/{n}.bin": os.urandom(SIZE) for n in range(4)}
    with pytest.MonkeyPatch.context() as patch, made.running():
        patch.chdir(folder)
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture
def server(tmp_path):
    with working(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A job of ALL: its server, the requests of the job, and the capture."""
    folder = tmp_path_factory.mktemp("whole")
    with working(folder) as server:
        capture = recorded(ALL, server.endpoint)
        yield server, list(server.log), capture


def recorded(program, *words, tracer="requests", status=0):
    Path("job.py").write_text(CLIENT + program)
    command = ["record", "--force", "--with", tracer, "--", sys.executable, "job.py", *words]
    assert main(command) == status
    return open_capture(Path("run.capture"))


def rows_of(capture):
    return [row for batch in capture.operations() for row in batch.to_pylist()]


def of_capture(capture, requests):
    """The requests of data in a capture as the server logs them.

    A GET of a whole object has no range there, and a range that reaches beyond the end is longer there.
    """
    paths, methods, found = capture.paths(), {"read": "GET", "stat": "HEAD"}, Counter()
    whole = {each.key for each in requests if each.range is None}
    for row in rows_of(capture):
        key = paths[row["file_id"]].removeprefix(f"s3://{BUCKET}/")
        if not key.startswith("data/"):
            continue
        assert row["api"] == ("S3_REFUSED" if row["op"] == "read" and row["status"] == 404 else "S3")
        span = (row["offset"], row["offset"] + row["length"] - 1) if row["status"] == 206 else None
        assert span is not None or row["op"] == "stat" or key in whole
        found[methods[row["op"]], key, span, row["status"]] += 1
    return found


def of_server(requests, ends=lambda span: span):
    return Counter((each.method, each.key, ends(each.range), each.status) for each in requests if "data/" in each.key)


def test_nginx_logged_the_same_requests(server, tmp_path):
    (place := tmp_path / "nginx").mkdir()
    with nginx(place) as witness:
        (witness.root / BUCKET / "data").mkdir()
        for key, content in server.objects.items():
            (witness.root / BUCKET / key).write_bytes(content)
        capture = recorded(BOTO, witness.endpoint, str(REQUESTS), "-1")
        logged = witness.requests()
    assert len(logged) == REQUESTS == len(rows_of(capture))
    assert of_capture(capture, logged) == of_server(logged, lambda span: span and (span[0], min(span[1], SIZE - 1)))
    assert capture.info.coverage.bytes == 1.0


def test_workers_that_fork_and_spawn_have_their_requests(whole):
    """Bytes between processes of a job are none: both ends of a connection are in the log of the job."""
    _, log, capture = whole
    found = of_capture(capture, log)
    assert found == of_server(each for each in log if each.key.startswith("data/"))
    assert (found.total(), list(capture.ranks), capture.info.coverage.bytes) == (80, [0], 1.0)
    assert Counter(capture.lanes["role"].to_pylist()) == {"main": 1, "worker": 3}
    assert len(set(capture.lanes["pid"].to_pylist())) == 4


def test_what_a_store_refuses_is_no_read_and_is_left_out_of_a_replay(server, capsys):
    """Each try is a row with its status."""
    server.refused["GET", "data/1.bin"] = 503
    program = """
s3 = client(retries={"total_max_attempts": 2})
for key in ("data/1.bin", "data/2.bin", "data/none.bin"):
    try: get(s3, key).read()
    except Exception: pass
"""
    rows = rows_of(recorded(program, server.endpoint))
    assert [each.status for each in server.log] == [row["status"] for row in rows] == [503, 503, 200, 404]
    assert all(0 < row["first_byte_ns"] <= row["end_ns"] - row["start_ns"] for row in rows)
    capsys.readouterr()
    assert main(["summary", "run.capture", "--show", "requests", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["interfaces"]["S3"]["reads"] == 1
    shown = [(row["op"], row["status"], row["requests"]) for row in found["tables"]["requests"]]
    assert shown == [("read", 200, 1), ("read", 404, 1), ("read", 503, 2)]
    target = server.url(more="")
    assert main(["stage", "run.capture", "--target", target]) == 0
    server.log.clear()
    capsys.readouterr()
    assert main(["run", "run.capture", "--target", target, "--pace", "none", "-o", "replay.capture", "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert warnings == ["the job's store refused 3 requests: such requests are left out"]
    assert [each.key.rpartition("/")[2] for each in server.of_replay("GET")] == ["2.bin"]
    assert main(["compare", "run.capture", "replay.capture"]) == 0


def test_changes_have_the_operations_of_the_table(whole):
    capture = whole[2]
    paths = [path.removeprefix(f"s3://{BUCKET}/") for path in capture.paths()]
    rows = [(row["op"], paths[row["file_id"]], row["offset"], row["length"]) for row in rows_of(capture)]
    assert [row for row in rows if row[1].startswith("new/")] == [
        ("write", "new/a.bin", 0, 5000), ("open", "new/b.bin", -1, 0), ("write", "new/b.bin", 700, 300),
        ("write", "new/b.bin", 0, 700), ("write", "new/b.bin", 1000, 5), ("close", "new/b.bin", -1, 0),
        ("list", "new/", -1, 0), ("rename", "new/a.bin", -1, 0), ("read", "new/c.bin", 0, 5000),
        ("delete", "new/b.bin", -1, 0),
    ]  # fmt: skip
    assert main(["verify", "run.capture"]) == 0


def test_no_file_has_a_secret(whole):
    server, log, capture = whole
    sent = {each.headers["Authorization"].rpartition("Signature=")[2] for each in log}
    assert len(sent) > 50
    assert all(len(each) == 64 for each in sent)
    forbidden = [text.encode() for text in (*SECRETS.values(), "Signature", *sent, *server.uploads)]
    files = [each for folder in ("run.recording", "run.capture") for each in (capture.path.parent / folder).rglob("*")]
    assert any(file.suffix == ".requests" for file in files)
    for file in files:
        if file.is_file() and file.parent.name != "dxt_replay_requests":  # the code, not what it wrote
            data = file.read_bytes()
            assert [text for text in forbidden if text in data] == [], file


def test_a_killed_job_loses_only_what_was_under_way(server):
    rows = rows_of(recorded(BOTO, server.endpoint, "1000", "300", status=128 + signal.SIGKILL))
    assert 0 <= len(server.log) - len(rows) <= 4  # the threads of the job
    assert len(rows) >= 297


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on PATH")
def test_bytes_on_the_sockets_are_explained_under_strace(server):
    """The watch counts the bytes of the socket; without the requests they are unseen."""
    program = "s3 = client(); [get(s3, 'data/1.bin').read() for _ in range(20)]; time.sleep(1)"
    capture = recorded(program, server.endpoint, tracer="strace")
    assert capture.info.coverage.bytes > 0.99
    assert [row["api"] for row in rows_of(capture)].count("S3") == len(server.log) == 20
    logs = [str(log) for log in Path("run.recording", "logs").glob("*.strace*")]
    done = main(["merge", *logs, "-o", "without.capture"])
    assert done or (open_capture(Path("without.capture")).info.coverage.bytes or 0) < 0.1


@pytest.mark.parametrize("tracer", ["requests", "darshan"])
def test_bytes_of_clients_without_hooks_are_unseen(tracer, server, capsys):
    """A connection for each GET, which is gone before anybody looks from outside. The server counts the bytes."""
    if tracer == "darshan" and find_library(os.environ) is None:
        pytest.skip("no libdarshan.so")
    program = """
get(client(), "data/0.bin").read()
for _ in range(9):
    with urllib.request.urlopen(sys.argv[1] + "/bucket/data/1.bin") as answer:
        answer.read()
"""
    capture = recorded(program, server.endpoint, tracer=tracer)
    assert len(server.log) == 10
    (unseen,) = [each for each in capture.info.coverage.unseen if each.kind == "socket"]
    assert unseen.name == server.endpoint.removeprefix("http://")
    assert 0.97 * 9 * SIZE < unseen.bytes < 9 * SIZE + 10 * 4096
    if tracer == "requests":
        assert capture.info.coverage.bytes == pytest.approx(0.1, rel=0.03)
    capsys.readouterr()
    assert main(["summary", "run.capture"]) == 0
    assert "What storage cost this run is not known" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["objects", "directory"])
def test_a_replay_makes_the_recorded_requests_or_calls_again(kind, whole):
    """The listing, renames and multipart uploads as docs/objects.md says."""
    if kind == "objects":
        pytest.importorskip("obstore")
    server, rows, twin = whole[0], rows_of(whole[2]), Path("twin")
    twin.mkdir(exist_ok=True)
    target = server.url("twin") if kind == "objects" else "twin"
    assert main(["stage", "run.capture", "--target", target]) == 0
    assert main(["run", "run.capture", "--target", target, "--force", "-o", "replay.capture", "--pace", "none"]) == 0
    replayed = rows_of(open_capture(Path("replay.capture")))
    assert all(row["result"] == row["length"] for row in replayed)
    assert Counter(row["op"] for row in replayed) == Counter(row["op"] for row in rows)
    if kind == "directory":
        assert {path.name for path in twin.rglob("*.bin")} == {"0.bin", "1.bin", "2.bin", "3.bin", "c.bin"}
        return
    ranges = Counter(
        (each.range[0], each.range[1] - each.range[0] + 1) for each in server.of_replay("GET") if each.range
    )
    assert ranges == Counter((row["offset"], row["length"]) for row in rows if row["op"] == "read")
    new = f"twin/dxt-replay-twin/s3:/{BUCKET}/new"
    assert {each.key for each in server.of_replay("DELETE")} == {f"{new}/a.bin", f"{new}/b.bin"}
    assert {each.status for each in server.of_replay("GET") if not each.key} == {200}  # it lists three keys at a time
    assert Counter(each.key for each in server.of_replay("PUT")) == {f"{new}/{name}.bin": 1 for name in "abc"}


def test_s3fs_has_its_requests(server):
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    program = """
import fsspec
region = {"region_name": "us-east-1"}
fs = fsspec.filesystem("s3", endpoint_url=sys.argv[1], client_kwargs=region, default_fill_cache=False)
for n in range(50):
    assert len(fs.cat_file(f"bucket/data/{n % 4}.bin", start=n * 10, end=n * 10 + 7)) == 7
with fs.open("bucket/data/1.bin", "rb", cache_type="none") as file:
    file.seek(1000)
    assert len(file.read(500)) == 500
try: fs.cat_file("bucket/none.bin")
except FileNotFoundError: pass
"""
    rows = rows_of(recorded(program, server.endpoint))
    requests = [each for each in server.log if each.key]
    found = Counter((row["status"], row["length"]) for row in rows if row["op"] == "read")
    assert found == Counter((each.status, each.sent * (each.status < 300)) for each in requests if each.method == "GET")
    stats = [row["status"] for row in rows if row["op"] == "stat"]
    assert sorted(stats) == sorted(each.status for each in requests if each.method == "HEAD")
    assert found[206, 7] == 50


@pytest.mark.parametrize(
    ("program", "said"),
    [("import botocore.client", "no request to an object store"), ("1", "no request of the job was seen")],
)
def test_a_job_without_requests_to_s3_is_told_so(tmp_path, monkeypatch, capfd, program, said):
    pytest.importorskip("boto3", reason="boto3 is not installed")
    monkeypatch.chdir(tmp_path)
    assert main(["record", "--with", "requests", "--force", "--", sys.executable, "-c", program]) == 2
    assert said in capfd.readouterr().err


# Logs beside a Darshan log.

START_S, PID = 1_700_000_000, 77
READS, READ_BYTES, GETS, GET_BYTES = 10, 4096, 6, 1000
NAME = b"/scratch/data/local.bin"
FIRST = [MARK, f"P\t{PID}\t1\t\thost\t{PID}", f"A\t{START_S * 10**9}\t0"]


def row(call, path, *fields, upload="", part=""):
    """A line of a log; fields: offset, length, received, size, start, first byte, end, status."""
    return "\t".join(map(str, ("R", call, path, *fields, 1, PID, upload, part, "")))


@pytest.fixture
def logs(tmp_path):
    """Logs of one rank that reads a file and gets ranges of an object of the same name at the same time."""
    reads = np.zeros(READS, dtype=segment_dtype("DXT_POSIX", 2))
    reads["offset"], reads["length"] = np.arange(READS) * READ_BYTES, READ_BYTES
    reads["start_s"] = 1 + 0.1 * np.arange(READS)
    reads["end_s"], reads["pthread_id"] = reads["start_s"] + 0.05, 1_000
    (folder := tmp_path / "logs").mkdir()
    write_dxt_log(
        folder / f"me_python_id{PID}-{PID}_11-24-1.darshan", [DxtRecord(record_id=record_id(NAME), reads=reads)],
        dxt_version=2, names={record_id(NAME): NAME}, job=JobSpec(nprocs=1, start_s=START_S, end_s=START_S + 60),
    )  # fmt: skip
    lines = list(FIRST)
    for number in range(GETS):
        begin, length = 1_020_000_000 + number * 100_000_000, GET_BYTES * (number > 0)
        first_ns = begin + 10_000_000 * (number + 1) // 2
        moved = (number * GET_BYTES, length, length, 1 << 20)
        times = (begin, first_ns, begin + 50_000_000, 206 if number else 503)
        lines.append(row("GetObject", "scratch/data/local.bin", *moved, *times))
    (folder / f"host.{PID}.1.requests").write_text("\n".join(lines) + "\n")
    return folder


def merged(*given):
    assert main(["merge", *map(str, given), "--force", "-o", "a.capture"]) == 0
    return open_capture("a.capture")


@pytest.fixture
def requests_of(tmp_path, monkeypatch):
    """The rows of a log with these lines alone."""
    monkeypatch.chdir(tmp_path)

    def of(*lines):
        (log := tmp_path / f"host.{PID}.1.requests").write_text("\n".join([*FIRST, *lines]) + "\n")
        return rows_of(merged(log))

    return of


def test_nothing_counts_twice(logs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [each for each in rows_of(merged(logs)) if each["origin"] == "traced"]
    moved = {api: sum(each["length"] for each in rows if each["api"] == api) for api in ("POSIX", "S3")}
    assert moved == {"POSIX": READS * READ_BYTES, "S3": (GETS - 1) * GET_BYTES}
    assert Counter(each["api"] for each in rows) == {"POSIX": READS, "S3": GETS - 1, "S3_REFUSED": 1}
    lanes = {api: {each["lane"] for each in rows if each["api"] == api} for api in moved}
    assert not lanes["POSIX"] & lanes["S3"]
    capsys.readouterr()
    assert main(["summary", "a.capture", "--show", "requests", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: each["bytes"] for name, each in found["interfaces"].items()} == moved
    assert found["interfaces"]["S3"]["reads"] == GETS - 1
    names = ("op", "status", "answer", "requests", "bytes", "first_byte_p50_ns")
    assert [tuple(each[name] for name in names) for each in found["tables"]["requests"]] == [
        ("read", 206, "done", GETS - 1, (GETS - 1) * GET_BYTES, 20_000_000), ("read", 503, "error", 1, 0, 5_000_000),
    ]  # fmt: skip
    done, refused = found["tables"]["requests"]
    assert (done["first_byte_p99_ns"], refused["time_p50_ns"]) == (30_000_000, 50_000_000)


def test_requests_that_an_earlier_release_inferred_are_left_out(logs, tmp_path, monkeypatch):
    """0.2.0 wrote a field more, with the name of a client that showed its calls and not its requests."""
    monkeypatch.chdir(tmp_path)
    (log,) = logs.glob("*.requests")
    lines = log.read_text().splitlines()
    of_old = [f"{line}\t" if number else f"{line}\tobstore" for number, line in enumerate(lines[3:])]
    log.write_text("\n".join([*FIRST, *of_old]) + "\n")
    capture = merged(logs)
    assert sum(each["api"] in ("S3", "S3_REFUSED") for each in rows_of(capture)) == GETS - 1
    assert any("1 request left out: dxt-replay 0.2.0 inferred" in text for text in capture.info.warnings)


def test_a_read_that_broke_off_keeps_its_bytes(requests_of):
    cases = [
        ("GetObject", "206", 700, 700, "S3"), ("GetObject", "", 700, 700, "S3"),
        ("GetObject", "0", 700, 700, "S3"),  # it broke off after 700 bytes, which the job did receive
        ("GetObject", "0", 0, 0, "S3_REFUSED"),
        ("GetObject", "403", 250, 0, "S3_REFUSED"),  # the bytes of the error's own text are no data
        ("HeadObject", "404", 0, 0, "S3"),
    ]  # fmt: skip
    lines = [
        row(call, "b/k", 0, received, received, "", 1000 + at, "", 2000, status)
        for at, (call, status, received, *_) in enumerate(cases)
    ]
    assert [(each["length"], each["api"]) for each in requests_of(*lines)] == [each[3:] for each in cases]


def test_a_part_behind_one_that_no_log_has_has_no_offset(requests_of):
    lines = [
        row("UploadPart", "b/k", 0, length, 0, "", 1000 + part, "", 2000, 200, upload=9, part=part)
        for part, length in ((1, 5), (2, 6), (4, 7))
    ]
    assert [each["offset"] for each in requests_of(*lines)] == [0, 5, -1]


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


# Operation logs of s3dlio. src/s3_logger.rs, HEADER; the lines are those of `to_log_line`.
HEADER = "idx\tthread\top\tclient_id\tn_objects\tbytes\tendpoint\tfile\terror\tstart\tfirst_byte\tend\tduration_ns\n"


def line(idx, op, moved, file, begin, first, end, client="agent-1", endpoint="s3://bucket", error=""):
    times = [f"2026-11-23T10:00:{each}Z" if each else "" for each in (begin, first, end)]
    return "\t".join(map(str, (idx, 17, op, client, 1, moved, endpoint, file, error, *times, 0))) + "\n"


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
def test_a_log_of_s3dlio_becomes_a_capture(packed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = tmp_path / ("ops.tsv.zst" if packed else "ops.tsv")
    log.write_bytes(pa.compress(TEXT.encode(), "zstd", asbytes=True) if packed else TEXT.encode())
    assert kind_of(log) == "s3dlio"
    capture = merged(log)
    paths, rows = capture.paths(), rows_of(capture)
    names = ("offset", "length", "first_byte_ns", "status", "api")
    assert [(each["rank"], each["op"], paths[each["file_id"]], *(each[name] for name in names)) for each in rows] == [
        (0, "list", "s3://bucket/", -1, 0, None, None, "S3"),
        (0, "read", "s3://bucket/data/a.npz", 0, 700, 250_000_000, None, "S3"),
        (0, "read", "s3://bucket/data/b.npz", -1, 50, 100_000_000, None, "S3"),
        (0, "read", "s3://bucket/data/c.npz", 0, 0, 100_000_000, 0, "S3_REFUSED"),
        (1, "write", "s3://bucket/out", 0, 9, None, None, "S3"),
    ]
    assert rows[1]["start_ns"] - rows[0]["start_ns"] == 999_999_999
    assert rows[1]["end_ns"] - rows[1]["start_ns"] == 250_000_007
    assert {each["connection"] for each in rows} == {None}
    for said in ("file:// left out", "without an offset"):
        assert any(said in text for text in capture.info.warnings)


def test_a_log_that_is_cut_off_is_read_up_to_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = HEADER + "".join(line(n, "GET", n, f"bucket/{n % 7}", "01", "01", "02") for n in range(20_000))
    packed = pa.compress(whole.encode(), "zstd", asbytes=True)
    (tmp_path / "ops.tsv.zst").write_bytes(packed[: len(packed) // 2])
    capture = merged("ops.tsv.zst")
    assert 0 < capture.operation_count() < 20_000
    assert any("cut off" in text for text in capture.info.warnings)
