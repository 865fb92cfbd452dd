"""A POSIX capture replayed on an object store: the server's log has the capture's operations, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.traces.errors import MissingDependencyError, UsageError
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import Op, Span, build_capture, read, write
from tests.object_servers import ObjectServer, Request

pytest.importorskip("obstore")

US, MS = 1_000, 1_000_000
TWIN = f"some/prefix/{TWIN_ROOT}"
FILES = ["/data/a b.bin", "/data/größe.bin", "/data/c%20.bin"]


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer().running() as server:
        yield server


def reading(folder: Path, *, reads: int, lanes: int = 4, gap_us: int = 20, name: str = "source") -> Capture:
    """Reads of random ranges of three files from two ranks; some reach beyond the end as the twin has it."""
    random = np.random.default_rng(7)
    offsets, lengths = random.integers(0, 300_000, reads), random.integers(1, 9_000, reads)
    ops = [
        read(
            int(i % 3),
            rank=i % 2,
            lane=i // 2 % lanes,
            start_ns=i * gap_us * US,
            offset=int(offsets[i]),
            length=int(lengths[i]),
        )
        for i in range(reads)
    ]
    return build_capture(folder, files=FILES, ops=ops, name=name)


def keys(capture: Capture, url: str, prefix: str) -> dict[int, str]:
    """The key of each file, by the plan of its staging."""
    files = dxt_replay.stage(capture, url, dry_run=True).plan.already_staged
    return {int(i): prefix + path for i, path in zip(files.file_id, files.path.to_pylist(), strict=True)}


def recorded_reads(capture: Capture, key_of: dict[int, str]) -> Counter[tuple[str, tuple[int, int]]]:
    found: Counter[tuple[str, tuple[int, int]]] = Counter()
    for rank in capture.ranks:
        for batch in capture.operations(rank, columns=["file_id", "offset", "length"]):
            for row in batch.to_pylist():
                found[key_of[row["file_id"]], (row["offset"], row["offset"] + row["length"] - 1)] += 1
    return found


def answered_reads(requests: list[Request]) -> Counter[tuple[str, tuple[int, int]]]:
    assert {each.status for each in requests} == {206}
    assert all(each.range is not None and each.sent == each.range[1] - each.range[0] + 1 for each in requests)
    return Counter((each.key, each.range) for each in requests if each.range is not None)


@pytest.mark.parametrize("pace", ["none", "timed"])
def test_the_servers_log_is_the_capture(server: ObjectServer, tmp_path: Path, pace: str) -> None:
    source, url = reading(tmp_path, reads=600), server.url()
    dxt_replay.stage(source, url)
    result = dxt_replay.run(source, url, tmp_path / "replay.capture", pace=pace)
    assert result.succeeded, result.as_json()
    assert answered_reads(server.of_replay("GET")) == recorded_reads(source, keys(source, url, "some/prefix/"))
    assert {each.method for each in server.log if each.is_of_replay} == {"GET"}
    document = result.as_json()
    assert (document["api"], document["backends"], document["failed"], document["short"]) == ("s3", ["s3"], 0, 0)
    assert document["cache"]["resident_before_pct"] is None
    replay = open_capture(tmp_path / "replay.capture")
    assert dxt_replay.compare(source, replay).exact.differences == ()


def checkpointing(folder: Path) -> Capture:
    """Open, stat, reads and close of a data file; a checkpoint that is written, renamed and read again."""
    ops = [
        Op("open", 0, start_ns=0),
        Op("stat", 0, start_ns=1 * MS),
        *(read(0, start_ns=(2 + i) * MS, offset=4096 * i, length=4096) for i in range(5)),
        read(0, start_ns=8 * MS, offset=5 * 4096, length=0),
        Op("close", 0, start_ns=9 * MS),
        Op("open", 1, start_ns=10 * MS),
        *(write(1, start_ns=(11 + i) * MS, offset=4 * MIB * i, length=4 * MIB) for i in range(3)),
        Op("sync", 1, start_ns=15 * MS),
        Op("close", 1, start_ns=16 * MS),
        Op("rename", 1, start_ns=17 * MS, other_file_id=2),
        read(2, start_ns=18 * MS, offset=0, length=100),
    ]
    files = ["/data/train.bin", "/ckpt/model.tmp", "/ckpt/model"]
    return build_capture(folder, files=files, ops=ops, spans=[Span("step", 0, 20 * MS, step=0)])


def test_each_operation_is_the_request_that_the_docs_name(server: ObjectServer, tmp_path: Path) -> None:
    source, url = checkpointing(tmp_path), server.url()
    dxt_replay.stage(source, url)
    for number in range(2):
        del server.log[:]
        result = dxt_replay.run(source, url, tmp_path / f"{number}.capture")
        assert result.succeeded, result.as_json()
        sent = [(each.method, each.key.removeprefix(f"{TWIN}/")) for each in server.log if each.is_of_replay]
        assert sent == [
            *[("HEAD", "data/train.bin")] * 2,
            *[("GET", "data/train.bin")] * 5,
            ("HEAD", "ckpt/model.tmp"),
            ("POST", "ckpt/model.tmp"),
            *[("PUT", "ckpt/model.tmp")] * 2,
            ("POST", "ckpt/model.tmp"),
            ("PUT", "ckpt/model"),
            ("DELETE", "ckpt/model.tmp"),
            ("GET", "ckpt/model"),
        ]
        assert len(server.objects[f"{TWIN}/ckpt/model"]) == 12 * MIB


def test_what_was_not_staged_is_left_alone(server: ObjectServer, tmp_path: Path) -> None:
    theirs = {"some/prefix/mine": b"1", "some/prefix-2/x": b"2", f"{TWIN}/data/mine": b"3", "other": b"4"}
    server.objects.update(theirs)
    source, url = checkpointing(tmp_path), server.url()
    dxt_replay.stage(source, url)
    dxt_replay.run(source, url, tmp_path / "replay.capture")
    assert not dxt_replay.verify(url).passed, "a foreign object is among the twin"
    del server.objects[f"{TWIN}/data/mine"]
    assert dxt_replay.verify(url).passed
    theirs.pop(f"{TWIN}/data/mine")
    assert dxt_replay.unstage(url) == 2
    assert server.objects == theirs
    assert {each.key for each in server.log if each.method in ("PUT", "DELETE")} <= {
        each.key for each in server.log if each.key.startswith("some/prefix/")
    }


def test_credentials_are_nowhere(
    server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """They are used, as the server sees, and no capture, manifest, output or error has them."""
    secrets = {
        "AWS_ACCESS_KEY_ID": "AKIDdxtreplay",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t/dxt",
        "AWS_SESSION_TOKEN": "t0k3n",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    source, url = reading(tmp_path, reads=30), server.url(more="")
    assert main(["stage", str(source.path), "--target", url]) == 0
    server.refused["GET", f"{TWIN}/data/größe.bin"] = 403
    assert main(["run", str(source.path), "--target", url, "-o", str(tmp_path / "replay.capture"), "--json"]) == 1
    server.refused["HEAD", "some/prefix/dxt-replay-manifest.json"] = 403
    assert main(["stage", str(source.path), "--target", url]) == 2
    assert all("AKIDdxtreplay" in each.headers.get("authorization", "") for each in server.log if each.is_of_replay)
    out, err = capfd.readouterr()
    written = [path.read_bytes() for path in (tmp_path / "replay.capture").rglob("*") if path.is_file()]
    for text in (out.encode(), err.encode(), *written, *server.objects.values()):
        assert not [value for value in secrets.values() if value.encode() in text]
    assert "the server answered 403; check the credentials" in err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://", "has no bucket"),
        ("s3://key:HIDDEN@bucket/x", "more than a bucket"),
        ("s3://bucket/a//b", "not a prefix"),
        ("s3://bucket/../b", "not a prefix"),
        ("s3://bucket/x?secret_access_key=HIDDEN", "secret_access_key is not an option"),
        ("s3://bucket/x?endpoint=http://user:HIDDEN@host", "has a user name or password"),
        ("s3://bucket/x?endpoint=host:90", "not the URL of a server"),
        ("s3://bucket/x?opens=some", "choose head, none"),
        ("s3://bucket/x?part_size=1MiB", "give 5.00 MiB to 1.00 GiB"),
        ("s3://bucket/x?part_size=large", "part_size="),
    ],
)
def test_a_wrong_url_is_told_without_what_may_be_secret(tmp_path: Path, url: str, message: str) -> None:
    source = reading(tmp_path, reads=3)
    with pytest.raises(UsageError, match=message) as caught:
        dxt_replay.stage(source, url)
    assert "HIDDEN" not in str(caught.value)


def test_without_obstore_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(MissingDependencyError, match=r"dxt-replay\[objects\]"):
        dxt_replay.stage(reading(tmp_path, reads=3), "s3://bucket/x?region=us-east-1")
