"""Whole calibrations, as short as they can be, of directories and of object stores whose times are known: what comes of
them, and that nothing is left of them; and how their requests are timed."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dxt_replay
from benchmarks.slowed_storage import CannotThrottleError, delayed
from dxt_replay.replay.calibration import trials
from dxt_replay.replay.calibration.calibration import cache_bytes, calibrate, calibrate_objects, dirty_bytes
from dxt_replay.replay.calibration.objects import object_bench, object_caveats
from dxt_replay.replay.calibration.scratch import NAME, refused, write_data
from dxt_replay.replay.calibration.trials import issue, lane_items, measure_read_ahead
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import BATCH_ITEMS, OPEN, READ_AT
from dxt_replay.replay.regress.environment import target_environment
from dxt_replay.replay.simulation.model import model_of, read_storage_model
from dxt_replay.replay.target import page_cache
from dxt_replay.replay.target.object_store import parse_object_url
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.units import MIB
from tests.capture_builder import build_capture, read
from tests.object_servers import ObjectServer
from tests.places import ROOT

SECONDS = 1.0


@pytest.fixture(autouse=True, scope="module")
def quick():
    """Objects are small, and no burst of a throttle has to come back: these places have none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "IDLE_S", 0.0)
        patch.setattr(trials, "OBJECT_BYTES", MIB)
        patch.setattr(trials, "OBJECT_SIZES", tuple(4096 << 2 * power for power in range(5)))
        yield


@pytest.fixture
def target(tmp_path):
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def test_every_call_is_measured_and_its_file_is_read_as_a_storage_model(target, tmp_path):
    output, seen = tmp_path / "measured.json", []
    done = dxt_replay.calibrate(
        target, output, minutes=SECONDS / 60, on_progress=lambda passed, whole, what: seen.append((passed, whole))
    )
    assert os.listdir(target) == []
    assert {whole for _, whole in seen} == {SECONDS}
    assert [passed for passed, _ in seen] == sorted(passed for passed, _ in seen)
    calls = {(each.call, each.state) for each in done.measured}
    assert {("read", "cold"), ("read", "cached"), ("open", ""), ("close", ""), ("stat", ""), ("create", "")} <= calls
    for each in done.measured:
        assert each.requests > 0
        assert 0 < each.low_ns <= each.time_ns <= each.high_ns
        assert each.time_ns <= each.p95_ns <= each.p99_ns
        assert each.p50_ns <= each.p95_ns
    assert read_storage_model(output) == done.model
    assert {"read", "open", "close", "stat"} <= done.model.operations.keys()
    assert done.document()["measured"]["unseen"] == list(done.unseen)
    text = " ".join(done.unseen)
    assert all(each in text for each in ("cannot be dropped", "other clients", "writes it to the storage later"))
    with pytest.raises(TargetError, match="--force replaces it"):
        dxt_replay.calibrate(target, output, minutes=SECONDS / 60)


@pytest.mark.parametrize("reached", ["writing data to read", "throttles", "cold read"])
def test_ctrl_c_leaves_nothing(tmp_path, reached):
    def interrupt(done, whole, what):
        assert [name.startswith(NAME) for name in os.listdir(tmp_path)] == [True]
        if what == reached:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(tmp_path, SECONDS, on_progress=interrupt)
    assert os.listdir(tmp_path) == []


def test_a_signal_amid_the_requests_leaves_nothing(tmp_path, target):
    words = ["-m", "dxt_replay.replay.commands.main", "calibrate", "--target", str(target), "-o", str(tmp_path / "m")]
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not list(target.glob("*/data")) and time.monotonic() < until:
        os.sched_yield()
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in printed) == (143, False)
    assert (os.listdir(target), (tmp_path / "m").exists()) == ([], False)


def test_a_target_that_cannot_be_used_is_one_clear_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for place, message in (
        (Path("/sys"), r"cannot write below the target /sys: .*; choose another --target"),
        (tmp_path / "none", "does not exist: give a directory on the file system to measure"),
        (tmp_path / "file", "is not a directory"),
    ):
        with pytest.raises(TargetError, match=message):
            calibrate(place, SECONDS)
    (tmp_path / "file").unlink()
    little = os.statvfs_result([4096, 4096, 1000, 1000, 100, 1000, 1000, 1000, 0, 255])
    monkeypatch.setattr(os, "statvfs", lambda path: little)
    with pytest.raises(TargetError, match=r"has 400 KiB free, and a calibration needs 64.0 MiB: free space there"):
        calibrate(tmp_path, SECONDS)
    assert os.listdir(tmp_path) == []


def test_space_that_runs_out_meanwhile_is_one_clear_error(target):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(TargetError, match=r"cannot measure .*: File too large; choose another --target"):
            calibrate(target, SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(target) == []


def test_a_file_system_in_memory_is_measured_without_a_cache_beside_it():
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK) or target_environment(place).file_system != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs that can be written here")
    done = calibrate(place, SECONDS)
    assert (done.file_system, done.model.cache) == ("tmpfs", None)
    assert "does not drop pages on request" in done.unseen[0]
    assert not list(place.glob(f"{NAME}*"))


def test_every_lane_does_its_items_with_pauses_until_the_time_is_over(tmp_path):
    (tmp_path / "data").write_bytes(bytes(1 << 20))

    def issued(*lanes, seconds=60.0):
        slot = FileSlot(path=os.fsencode(tmp_path / "data"), uses=10_000)
        return issue(Files([slot]), lanes, seconds=seconds, doing="test", least=0)

    count = BATCH_ITEMS + 10
    lane = lane_items(READ_AT, 0, count, offset=4096 * (np.arange(count) % 256), length=4096)
    kind, begin_ns, end_ns = issued(lane, lane, lane)
    assert (len(kind), set(kind.tolist())) == (3 * count, {READ_AT})
    assert (np.diff(end_ns) >= 0).all()
    assert (end_ns >= begin_ns).all()
    _, begin_ns, end_ns = issued(lane_items(READ_AT, 0, 5, offset=4096 * np.arange(5), length=4096, pause_ns=3_000_000))
    assert len(end_ns) == 5
    assert (begin_ns[1:] - end_ns[:-1] >= 3_000_000).all()
    assert len(issued(lane_items(READ_AT, 0, 100, length=1, pause_ns=10**9), seconds=0.05)[0]) < 100


def test_what_the_file_system_refuses_is_an_error(tmp_path):
    files = Files([FileSlot(path=os.fsencode(tmp_path / "absent"), uses=1)])
    with pytest.raises(TargetError, match=r"cannot measure it: No such file or directory; choose another --target"):
        issue(files, [lane_items(OPEN, 0, 1)], seconds=60, doing="measure it")
    full = "cannot measure /x: No space left on device; free space there or choose another --target"
    assert str(refused(OSError(errno.ENOSPC, ""), "measure /x")) == full


def test_what_the_machine_says_of_its_memory(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemAvailable:    64 kB\n")
    assert cache_bytes(file) == 65_536
    file.write_text("MemAvailable: much\n")
    assert cache_bytes(file) == cache_bytes(tmp_path / "absent") == 1 << 30
    for stated, least, most in (("1234", 1234, 1234), ("0", 1, cache_bytes())):
        (tmp_path / "dirty_bytes").write_text(f"{stated}\n")
        (tmp_path / "dirty_ratio").write_text("10\n")
        assert least <= dirty_bytes(tmp_path) <= most


DATA_BYTES = 16 * MIB


@pytest.fixture
def data(tmp_path):
    path = os.fsencode(tmp_path / "data")
    assert write_data(path, DATA_BYTES, 60) == DATA_BYTES
    return path


def test_the_window_is_what_the_kernel_says(data):
    """On a file system on a disk of its own, where the kernel says how far it reads ahead."""
    most_kib = target_environment(Path(os.fsdecode(data))).read_ahead_kib
    if page_cache.drop([data]).kept or page_cache.resident([data]).resident_bytes or most_kib is None:
        pytest.skip("pages cannot be dropped here, or the kernel does not say how far it reads ahead")
    found, dropped_at_open = measure_read_ahead(data, DATA_BYTES, 60)
    assert (found > 0, dropped_at_open) == (most_kib > 0, False)
    assert found <= most_kib << 10
    assert measure_read_ahead(data, DATA_BYTES, 60) == (None, False), "a file that is still cached says nothing"


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
@pytest.mark.parametrize("pages", ["kept", "dropped"])
def test_pages_that_an_open_drops_are_seen(data, pages):
    """Through FUSE; "dropped" is libfuse's default. Its window is 128 KiB, however slow the file system is."""
    try:
        with delayed(Path(os.fsdecode(data)).parent, 6000, pages=pages) as mount:
            path = os.fsencode(mount / "data")
            page_cache.drop([path])
            found = measure_read_ahead(path, DATA_BYTES, 60)
    except CannotThrottleError as error:
        pytest.skip(str(error))
    assert found == (128 << 10, pages == "dropped")


SERVICE_S = 0.01


@pytest.fixture(scope="module")
def calibrated():
    """Of a server that takes SERVICE_S for each request, one at a time."""
    pytest.importorskip("obstore")
    with ObjectServer(service_s=SERVICE_S).running() as server:
        server.objects["some/prefix/theirs"] = b"1"
        yield calibrate_objects(server.url(), SECONDS), server


def test_no_request_of_a_store_is_quicker_than_its_server_and_nothing_is_left_there(calibrated, tmp_path):
    from tests.replay.commands.test_searches import training

    done, server = calibrated
    assert server.objects == {"some/prefix/theirs": b"1"}
    assert {each.key.split("/")[2][:23] for each in server.log if each.key} == {".dxt-replay-calibration"}
    measured = {(each.call, each.state) for each in done.measured}
    assert measured >= {("GET", ""), ("GET", "first byte"), ("PUT", ""), ("HEAD", ""), ("LIST", ""), ("DELETE", "")}
    for each in done.measured:
        requests = 2 if each.call.startswith("Copy") else 1
        assert each.p50_ns >= requests * SERVICE_S * 1e9, (each.call, each.size)
    store = done.as_json()["object_store"]
    assert store["first_byte_us"] >= SERVICE_S * 1e6
    rates = [each["requests_per_s"] or 0 for each in store["by_connections"]]
    assert max(rates) < 2 / SERVICE_S, "one request at a time, not several"
    assert model_of(done.document()) == done.model
    assert done.model.objects
    assert done.model.operations.keys() == {"read", "write", "open", "stat", "rename", "list", "delete"}
    assert any("opens" not in text and "connection" in text for text in done.unseen)
    # 20 reads one after the other take 20 times the service time at least.
    found = dxt_replay.simulate(training(tmp_path, steps=20, compute_ns=1_000), done.model, runs=1)
    assert found.prediction.elapsed_ns > 20 * SERVICE_S * 1e9 * 0.9


class Refusing(dict):
    """Statuses of a server that answers so to these methods, whatever the key."""

    def get(self, asked, default=0):
        return super().get(asked[0], default)


def test_without_the_right_to_write_the_twin_is_read(calibrated, tmp_path, capsys):
    source = build_capture(tmp_path, files=["/data/a"], ops=[read(0, offset=0, length=100_000)])
    output = tmp_path / "model.json"
    with ObjectServer().running() as server:
        dxt_replay.stage(source, server.url())
        server.refused = Refusing(PUT=403, POST=403, DELETE=403)
        assert main(["calibrate", "--target", server.url(), "-o", str(output), "--minutes", "0.02"]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "PUT, CopyObject and DELETE (the server answered 403)" in printed
        document = json.loads(output.read_text())
        assert {each["call"] for each in document["measured"]["times"]} == {"GET", "HEAD", "LIST"}
        assert read_storage_model(output).operations.keys() == {"read", "open", "stat", "list"}
        del server.objects["some/prefix/dxt-replay-manifest.json"]
        with pytest.raises(TargetError, match=r"cannot write below .* no twin is staged there"):
            calibrate_objects(server.url(), SECONDS)
        server.refused = Refusing(HEAD=503)
        with object_bench(parse_object_url(server.url("elsewhere")), np.random.default_rng(1), 0.1, print) as bench:
            assert bench.run(trials.Probe(trials.HEAD), seconds=0.1) is None
        assert object_caveats((), bench)[0] == "Not measured: HEAD (the store asks for fewer requests)."
