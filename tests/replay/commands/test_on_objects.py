"""`regress`, `capacity` and `simulate --check` on object stores of which the answer is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.replay.capacity import STORAGE
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import Capture
from tests import simulated_application as application
from tests.capture_builder import build_capture, read
from tests.object_servers import ObjectServer

pytest.importorskip("obstore")

MS = 1_000_000


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer().running() as server:
        yield server


def training(folder: Path, *, steps: int, compute_ns: int) -> Capture:
    """A rank that reads one range for each step, up to two steps ahead."""
    made = application.Application(
        steps=steps, depth=2, reads_per_batch=1, think_ns=0, decode_ns=0, compute_ns=compute_ns, jitter=0.0
    )
    recorded = application.run(made, application.Storage(latency_ns=1 * MS))
    return build_capture(folder, files=application.FILES, ops=recorded.ops, spans=recorded.spans)


def reading(folder: Path, reads: int = 20) -> Capture:
    ops = [read(0, start_ns=i * MS, end_ns=i * MS + MS // 2, offset=4096 * i, length=4096) for i in range(reads)]
    return build_capture(folder, files=["/data/a.bin"], ops=ops)


def test_capacity_is_arithmetic(tmp_path: Path) -> None:
    """The server answers one request in 50 ms. N ranks with a request a step need steps of N x 50 ms. They compute for
    100 ms a step and shall be used 70 %, so steps of up to 143 ms will do: two ranks, not three."""
    with ObjectServer(service_s=0.05).running() as server:
        source = training(tmp_path, steps=10, compute_ns=100 * MS)
        found = dxt_replay.capacity(source, server.url(), utilisation_pct=70.0, most=4)
        assert (found.ranks, found.interval, found.limited_by) == (2, (2, 2), STORAGE), found.as_json()
        assert found.as_json()["target"] == server.url()
        requests = [run.ranks * 10 for run in found.runs if run.storage]
        assert len(server.of_replay("GET")) == sum(requests)


def test_ten_milliseconds_more_are_found_and_none_are_not(tmp_path: Path) -> None:
    """The server itself needs about 1 ms. The sides are the same bucket behind two servers."""
    source = reading(tmp_path)
    with ObjectServer().running() as fast, ObjectServer(service_s=0.01).running() as slow:
        slow.objects = fast.objects
        dxt_replay.stage(source, fast.url())
        choices = {"repeats": 6, "pace": "timed"}  # judged by latency
        found = dxt_replay.regress(source, fast.url(), slow.url(), **choices)
        assert found.verdict.value == "regression", found.as_json()
        assert any(text.startswith("target s3://") for text in found.as_json()["environment"]["differences"])
    with ObjectServer(service_s=0.01).running() as slow:
        same = dxt_replay.regress(source, slow.url(), slow.url(), threshold_pct=50.0, **choices)
        assert same.verdict.value != "regression", same.as_json()
        assert same.as_json()["environment"]["targets"]["candidate"]["file_system"] == "s3"
        assert not any(text.startswith("target") for text in same.as_json()["environment"]["differences"])


def test_a_record_of_an_object_store_is_compared_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, record = reading(tmp_path), tmp_path / "monday.json"
    with ObjectServer().running() as server:
        base = ["regress", str(source.path), "--candidate", server.url(), "--repeats", "6", "--pace", "timed"]
        assert main([*base, "--baseline", server.url(), "--record", str(record), "--threshold", "900"]) == 0
        server.service_s = 0.03
        capsys.readouterr()
        assert main([*base, "--baseline", str(record), "--threshold", "100", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["verdict"] == "regression"
