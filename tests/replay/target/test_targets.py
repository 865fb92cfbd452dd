"""What every target does, by one contract; what is a directory's own, and an object store's."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import stat

import numpy as np
import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.target import _small_files, object_store, objects
from dxt_replay.replay.target.content import BLOCK_BYTES, Content, noise_block
from dxt_replay.replay.target.manifest import MANIFEST_NAME, PLANNED, WHOLE, read_manifest
from dxt_replay.replay.target.path_columns import column
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.posix import open_directory
from dxt_replay.replay.target.protocol import SMALL_BYTES
from dxt_replay.replay.target.stage import check_staged, plan_stage, stage, unstage
from dxt_replay.replay.target.targets import locked_target, open_target
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.units import MIB
from tests.capture_builder import File, Op, build_capture, read, write
from tests.object_servers import BUCKET, ObjectServer, s3rver
from tests.planted import make_outside, nothing_changes, plant

A, B, C = (f"{TWIN_ROOT}/{name}" for name in ("a", "größe/b", "größe/deeper/c"))


def paths(*names):
    return column(names)


def held(target, path):
    """What a file holds."""
    with target.open(path) as file:
        if file is None:
            return None
        data = bytearray(file.size + 1)
        return bytes(data[: file.read_into(memoryview(data), 0)])


class TargetContract:
    """`where`: of a target that does not exist."""

    @pytest.fixture
    def target(self, where):
        with open_target(where, make=True) as target:
            yield target

    def test_one_that_does_not_exist_holds_nothing(self, where):
        with open_target(where) as target, target.locked():
            assert not target.exists
            assert target.stat(paths(A, B))[:, 0].tolist() == [0, 0]
            assert held(target, A) is None
            assert list(target.list()) == []
            assert target.remove(paths(A)) == 0
            target.prune(paths(A))
            target.room()
            where_again = target.where
        with open_target(where_again, make=True) as target:
            assert target.exists

    def test_what_is_put_is_held(self, target):
        target.put(B, [b"one", memoryview(b"two")], replace=False, sync=True)
        target.put(C, [], replace=False, sync=False)
        target.sync()
        assert target.stat(paths(A, B, C))[:, 1:].tolist() == [[0, 0], [6, 1], [0, 1]]
        assert (held(target, A), held(target, B), held(target, C)) == (None, b"onetwo", b"")
        assert {path for path, is_directory in target.list() if not is_directory} == {B, C}

    def test_a_part_is_read(self, target):
        target.put(A, [b"0123456789"], replace=False, sync=False)
        with target.open(A) as file:
            assert file is not None
            into = bytearray(4)
            assert [file.read_into(memoryview(into), offset) for offset in (3, 8, 10, 99)] == [4, 2, 0, 0]
            assert (into, file.size) == (bytearray(b"8956"), 10)

    def test_only_what_is_to_be_replaced_is(self, target):
        target.put(A, [b"old"], replace=False, sync=False)
        with pytest.raises(TargetError, match="a exists and was not made by dxt-replay"):
            target.put(A, [b"new"], replace=False, sync=False)
        assert held(target, A) == b"old"
        target.put(A, [b"newer"], replace=True, sync=False)
        assert held(target, A) == b"newer"

    @pytest.mark.parametrize("before", [None, b"old"])
    def test_a_file_that_cannot_be_finished_leaves_what_was_there(self, target, before):
        def blocks():
            yield b"new"
            raise KeyboardInterrupt

        if before is not None:
            target.put(A, [before], replace=False, sync=False)
        with pytest.raises(KeyboardInterrupt):
            target.put(A, blocks(), replace=True, sync=False)
        assert held(target, A) == before
        assert {path for path, _ in target.list()} == ({A} if before else set())

    def test_a_hole_is_zeros(self, target):
        target.put_hole(A, 5000, replace=False)
        assert held(target, A) == bytes(5000)
        with target.open(A) as file:
            assert file is not None
            assert Content(record_id=1, size=5000, is_hole=True).first_difference(file, 0, 5000) is None

    def test_many_small_files_are_noise(self, target):
        sizes = np.array([0, 1, 7, 8, 9, 4096, 100_001, SMALL_BYTES], dtype=np.int64)
        record_ids = np.array([0, 1, 2**64 - 1, 3, 4, 5, 6, 7], dtype=np.uint64)
        names = [f"{TWIN_ROOT}/d{i % 3}/{i}-é" for i in range(len(sizes))]
        placed = np.zeros(len(sizes), dtype=bool)
        target.put_many(column(names), sizes, record_ids, placed)
        assert placed.all()
        for name, size, record_id in zip(names, sizes.tolist(), record_ids.tolist(), strict=True):
            assert held(target, name) == b"".join(map(bytes, Content(record_id=record_id, size=size).blocks()))

    def test_small_files_before_one_that_is_refused_are_placed(self, target):
        names = [f"{TWIN_ROOT}/{i}" for i in range(3)]
        target.put(names[1], [b"mine"], replace=False, sync=False)
        placed, sizes = np.zeros(3, dtype=bool), np.full(3, 10, dtype=np.int64)
        with pytest.raises(TargetError, match="1 exists and was not made by dxt-replay"):
            target.put_many(column(names), sizes, np.arange(3, dtype=np.uint64), placed)
        assert placed.tolist() == [True, False, False]
        assert target.stat(column(names))[:, 1:].tolist() == [[10, 1], [4, 1], [0, 0]]
        target.put_many(paths(), sizes[:0], np.zeros(0, dtype=np.uint64), placed[:0])

    def test_only_what_is_named_is_removed(self, target):
        for name in (A, B, C):
            target.put(name, [b"x"], replace=False, sync=False)
        target.make_parents(paths(f"{TWIN_ROOT}/empty/x"))
        assert target.remove(paths(A, C, f"{TWIN_ROOT}/none/x")) == 2
        target.prune(paths(A, C, f"{TWIN_ROOT}/empty/x"))
        assert [path for path, is_directory in target.list() if not is_directory] == [B]
        assert {path for path, is_directory in target.list() if is_directory} <= {f"{TWIN_ROOT}/größe"}

    def test_two_do_not_hold_the_lock(self, where, target):
        with target.locked(), pytest.raises(TargetError, match="another process is staging"), locked_target(where):
            pass
        with locked_target(where):
            pass

    def test_a_capture_is_staged_checked_and_taken_away(self, where, tmp_path):
        """A large file, small ones in two directories, one that is looked at, and one that a run makes."""
        files = ["/d/large", "/d/small", "/e/0", "/out/made", File("/seen", size=5000)]
        ops = [read(0, length=MIB + 5), read(1, length=9), read(2, length=0), write(3, length=7), Op("stat", 4)]
        capture = build_capture(tmp_path, files=files, ops=ops)
        with pytest.raises(TargetError, match=r"does not exist: .*run `dxt-replay stage`"):
            check_staged(capture, where)
        plan = plan_stage(capture, where)
        assert (plan.bytes_to_write, len(plan.to_write), len(plan.created_by_run)) == (MIB + 14, 4, 1)
        stage(plan)
        with open_target(where) as target:
            sizes = dict(zip(plan.to_write.path.to_pylist(), plan.to_write.size.tolist(), strict=True))
            assert {path: len(held(target, path)) for path in sizes} == sizes
            states = read_manifest(target).files["state"].to_pylist()
            assert (states.count(WHOLE), states.count(PLANNED)) == (4, 0)
            base = target.base
        assert check_staged(capture, where)[0].path == base + f"{TWIN_ROOT}/d/large".encode()
        again = plan_stage(capture, where)
        assert (len(again.to_write), len(again.already_staged)) == (0, 4)
        with pytest.raises(TargetError, match="changed after the plan was made"):
            stage(plan)
        assert unstage(where) == 4
        with open_target(where) as target:
            assert (list(target.list()), held(target, MANIFEST_NAME)) == ([], None)
        assert dxt_replay.stage(capture.path, where).plan.bytes_to_write == MIB + 14
        assert dxt_replay.unstage(where) == 4
        for more in ((), ("--remove",)):
            assert main(["stage", str(capture.path), "--target", str(where), *more]) == 0
            with open_target(where) as target:
                assert (held(target, f"{TWIN_ROOT}/d/small") is None) == bool(more)


class TestDirectory(TargetContract):
    @pytest.fixture
    def where(self, tmp_path):
        return tmp_path / "a/target"


class TestObjects(TargetContract):
    @pytest.fixture
    def where(self):
        pytest.importorskip("obstore")
        with ObjectServer().running() as server:
            yield server.url()


@pytest.fixture(scope="module")
def s3rver_endpoint(tmp_path_factory):
    pytest.importorskip("obstore")
    with s3rver(tmp_path_factory.mktemp("s3rver")) as endpoint:
        yield endpoint


class TestS3rver(TargetContract):
    """A server that others wrote, which checks signatures and ignores `If-None-Match`.

    It answers 500 to some of several deletes at a time, as it removes directories that have become empty.
    """

    @pytest.fixture
    def where(self, s3rver_endpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(objects, "REQUESTS_AT_ONCE", 1)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "S3RVER")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3RVER")
        return f"s3://{BUCKET}/{tmp_path.name}?endpoint={s3rver_endpoint}&region=us-east-1"


@pytest.fixture(name="posix")
def posix_fixture(tmp_path):
    with open_directory(tmp_path / "target", make=True) as target:
        (target.path / TWIN_ROOT).mkdir()
        yield target


def made(target, names, sizes):
    """Which files are whole."""
    placed = np.zeros(len(names), dtype=bool)
    paths, record_ids = column([f"{TWIN_ROOT}/{name}" for name in names]), np.arange(len(names), dtype=np.uint64)
    try:
        target.put_many(paths, np.array(sizes, dtype=np.int64), record_ids, placed)
    except TargetError:
        assert not placed.all()
    return placed.tolist()


@pytest.mark.parametrize("thing", ["file", "link to a file", "link to nothing", "directory"])
def test_nothing_that_exists_is_written_into(thing, posix, tmp_path):
    root, outside = posix.path / TWIN_ROOT, make_outside(tmp_path)
    plant(thing, root / "b", outside, tmp_path)
    with nothing_changes(outside):
        assert made(posix, ["a", "b", "c"], [10, 20, 30]) == [True, False, False]
    assert sorted(path.name for path in root.iterdir()) == ["a", "b"]
    assert thing != "file" or (root / "b").read_bytes() == b"mine"


def test_a_file_that_the_system_refuses_is_taken_away(posix):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        whole = made(posix, ["a", "b", "c"], [8192, 10_000, 5])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert whole == [True, False, False]
    assert {path.name: path.stat().st_size for path in (posix.path / TWIN_ROOT).iterdir()} == {"a": 8192}


def test_what_is_there_is_seen_and_no_link_is_followed(posix):
    (posix.path / TWIN_ROOT / "a").write_bytes(b"four")
    os.link(posix.path / TWIN_ROOT / "a", posix.path / TWIN_ROOT / "twin")
    (posix.path / TWIN_ROOT / "é").symlink_to(posix.path / TWIN_ROOT / "a")
    (posix.path / TWIN_ROOT / "d").mkdir()
    found = posix.stat(column([f"{TWIN_ROOT}/{name}" for name in ("a", "none", "é", "d", "twin", "none/x")]))
    kinds = [stat.S_IFMT(mode) for mode in found[:, 0].tolist()]
    assert kinds == [stat.S_IFREG, 0, stat.S_IFLNK, stat.S_IFDIR, stat.S_IFREG, 0]
    assert found[[0, 1, 4], 1:].tolist() == [[4, 2], [0, 0], [4, 2]]


@pytest.mark.parametrize("call", ["stat", "remove"])
def test_a_refusal_names_its_file(call, posix):
    long = f"{TWIN_ROOT}/{'n' * 256}"
    with pytest.raises(TargetError, match=f"{long}: {os.strerror(errno.ENAMETOOLONG)}"):
        getattr(posix, call)(column([f"{TWIN_ROOT}/a", long, f"{TWIN_ROOT}/b"]))


def test_compiled_calls_do_not_reach_beyond_their_arrays(tmp_path):
    text, done = np.frombuffer(b"/x/a", dtype=np.uint8), np.zeros(2, dtype=np.int64)
    found, record_ids = np.zeros((1, 3), dtype=np.int64), np.zeros(1, dtype=np.uint64)
    with open_directory(tmp_path) as target:
        for begin, end in ((3, 5), (4, 3), (-97, 4)):
            with pytest.raises(ValueError, match="not within the text"):
                _small_files.remove(target.fd, text, np.array([begin]), np.array([end]), done)
        name = target.fd, text, np.array([3]), np.array([4])
        with pytest.raises(ValueError, match="three numbers"):
            _small_files.look(*name, found[:0], done)
        for sizes, message in (([BLOCK_BYTES + 1], "at most 1048576 bytes"), ([1, 2], "for each name")):
            with pytest.raises(ValueError, match=message):
                _small_files.write(*name, np.array(sizes), record_ids, noise_block(), done)
    assert list(tmp_path.iterdir()) == []


def test_requests_that_no_replay_makes_in_a_test():
    pytest.importorskip("obstore")
    with ObjectServer().running() as server:
        client = object_store.parse_object_url(server.url()).client()
        assert [object_store.create(client, "lock"), object_store.create(client, "lock")] == [True, False]
        server.refused["PUT", "other"] = 403
        with pytest.raises(PermissionError):
            object_store.create(client, "other")
        server.objects["empty"] = b""
        assert object_store.read_range(client, "empty", 0, memoryview(bytearray(9))) == 0
        server.objects.update({f"{folder}/{number}": b"" for folder in ("a", "a-b", "c") for number in range(8)})
        assert sorted(object_store.keys_below(client, "a/")) == [f"a/{number}" for number in range(8)]
        assert len(list(object_store.keys_below(client, ""))) == 2 + 24, "all pages of a list"


def test_a_server_that_is_silent_is_a_timeout():
    obstore = pytest.importorskip("obstore")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        given = {"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "region": "x", "skip_signature": True}
        given |= {"client_options": {"allow_http": True, "timeout": "100ms"}, "retry_config": {"max_retries": 0}}
        with pytest.raises(TimeoutError):
            object_store.size_of(obstore.store.S3Store("bucket", **given), "x")


def test_a_plain_endpoint_of_the_environment_is_used(monkeypatch):
    pytest.importorskip("obstore")
    with ObjectServer().running() as server:
        server.objects["some/key"] = b"12345"
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        client = object_store.parse_object_url("s3://bucket/some?region=us-east-1&skip_signature=true").client()
        assert object_store.size_of(client, "some/key") == 5


@pytest.mark.parametrize(
    "options", ["", "?endpoint=http://host:9000/base&region=eu-west-1&skip_signature=true&opens=none"]
)
@pytest.mark.parametrize("place", ["s3://bucket", "s3://bucket/a/b"])
def test_a_url_names_the_same_place_again(place, options):
    url = place + options + ("&part_size=16777216" if options else "")
    found = object_store.parse_object_url(url)
    assert (found.url, object_store.parse_object_url(found.url)) == (url, found)
