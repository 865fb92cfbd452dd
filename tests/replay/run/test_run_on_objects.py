"""A POSIX capture replayed on an object store: the server's log has the capture's operations, and nothing else."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.traces.errors import MissingDependencyError, UsageError
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import Op, Span, build_capture, read, write
from tests.object_servers import ObjectServer

pytest.importorskip("obstore")

MS = 1_000_000
TWIN = f"some/prefix/{TWIN_ROOT}"
FILES = ["/data/a b.bin", "/data/größe.bin", "/data/c%20.bin", "/ckpt/model.tmp", "/ckpt/model"]


@pytest.fixture
def server():
    with ObjectServer().running() as server:
        yield server


def training(folder, reads=3):
    """Reads of random ranges of three files from two ranks, of which some reach beyond the end as the twin has it; one
    lane also opens and looks at a file, and writes a checkpoint, renames it and reads it again."""
    at = np.random.default_rng(7).integers((0, 1), (300_000, 9_000), (reads, 2)).tolist()
    ops = [
        read(i % 3, rank=i % 2, lane=i // 2 % 4, start_ns=20_000 * i, offset=offset, length=length)
        for i, (offset, length) in enumerate(at)
    ]
    more = [
        *[Op("open", 0), Op("stat", 0), read(0, offset=309_000, length=0), Op("close", 0), Op("open", 3)],
        *(write(3, offset=4 * MIB * i, length=4 * MIB) for i in range(3)),
        *[Op("sync", 3), Op("close", 3), Op("rename", 3, other_file_id=4), read(4, length=100)],
    ]
    ops += [dataclasses.replace(op, lane=9, start_ns=MS * i) for i, op in enumerate(more)]
    return build_capture(folder, files=FILES, ops=ops, spans=[Span("step", 0, 20 * MS, step=0)], name="source")


def test_the_servers_log_is_the_capture(server, tmp_path):
    source, url = training(tmp_path, reads=300), server.url()
    dxt_replay.stage(source, url)
    plan = dxt_replay.stage(source, url, dry_run=True).plan
    key = {
        int(i): f"some/prefix/{path}"
        for files in (plan.already_staged, plan.created_by_run)
        for i, path in zip(files.file_id, files.path.to_pylist(), strict=True)
    }
    rows = [row for batch in source.operations() for row in batch.to_pylist() if row["op"] == "read" and row["length"]]
    recorded = Counter((key[row["file_id"]], row["offset"], row["offset"] + row["length"] - 1) for row in rows)
    for pace in ("none", "timed"):
        del server.log[:]
        result = dxt_replay.run(source, url, tmp_path / f"{pace}.capture", pace=pace)
        assert result.succeeded, result.as_json()
        assert dxt_replay.compare(source, open_capture(tmp_path / f"{pace}.capture")).exact.differences == ()
        gets = server.of_replay("GET")
        assert {(each.status, each.sent - (each.range[1] - each.range[0])) for each in gets} == {(206, 1)}
        assert Counter((each.key, *each.range) for each in gets) == recorded
        others = [f"{each.method} {each.key}" for each in server.log if each.is_of_replay and each.method != "GET"]
        checkpoint = [f"{method} {key[3]}" for method in ("HEAD", "POST", "PUT", "PUT", "POST")]
        assert others == [*[f"HEAD {key[0]}"] * 2, *checkpoint, f"PUT {key[4]}", f"DELETE {key[3]}"]
        assert len(server.objects[key[4]]) == 12 * MIB
    document = result.as_json()
    assert (document["api"], document["backends"], document["failed"], document["short"]) == ("s3", ["s3"], 0, 0)
    assert document["cache"]["resident_before_pct"] is None


def test_what_was_not_staged_is_left_alone(server, tmp_path):
    theirs = {"some/prefix/mine": b"1", "some/prefix-2/x": b"2", f"{TWIN}/data/mine": b"3", "other": b"4"}
    server.objects.update(theirs)
    source, url = training(tmp_path), server.url()
    dxt_replay.stage(source, url)
    dxt_replay.run(source, url, tmp_path / "replay.capture")
    assert not dxt_replay.verify(url).passed, "a foreign object is among the twin"
    del server.objects[f"{TWIN}/data/mine"]
    assert dxt_replay.verify(url).passed
    theirs.pop(f"{TWIN}/data/mine")
    assert dxt_replay.unstage(url) == 4
    assert server.objects == theirs
    assert {each.key for each in server.log if each.method in ("PUT", "DELETE")} <= {
        each.key for each in server.log if each.key.startswith("some/prefix/")
    }


def test_credentials_are_nowhere(server, tmp_path, monkeypatch, capfd):
    """They are used, as the server sees, and no capture, manifest, output or error has them."""
    secrets = {
        "AWS_ACCESS_KEY_ID": "AKIDdxtreplay",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t/dxt",
        "AWS_SESSION_TOKEN": "t0k3n",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    source, url = training(tmp_path), server.url(more="")
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
def test_a_wrong_url_is_told_without_what_may_be_secret(tmp_path, url, message):
    source = training(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        dxt_replay.stage(source, url)
    assert "HIDDEN" not in str(caught.value)


def test_without_obstore_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(MissingDependencyError, match=r"dxt-replay\[objects\]"):
        dxt_replay.stage(training(tmp_path), "s3://bucket/x?region=us-east-1")
