"""Calibrations of object stores whose times are known."""

from __future__ import annotations

import json

import pytest

import dxt_replay
from dxt_replay.replay.calibration.calibration import calibrate_objects
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.simulation.model import model_of, read_storage_model
from dxt_replay.traces.errors import TargetError
from tests.capture_builder import build_capture, read
from tests.object_servers import ObjectServer

pytest.importorskip("obstore")

SECONDS = 3.0
SERVICE_S = 0.02


@pytest.fixture(scope="module")
def calibrated():
    """Of a server that takes SERVICE_S for each request, one at a time."""
    with ObjectServer(service_s=SERVICE_S).running() as server:
        server.objects["some/prefix/theirs"] = b"1"
        yield calibrate_objects(server.url(), SECONDS), server


def test_it_leaves_nothing_and_reads_what_it_wrote(calibrated):
    _, server = calibrated
    assert server.objects == {"some/prefix/theirs": b"1"}
    assert {each.key.split("/")[2][:23] for each in server.log if each.key} == {".dxt-replay-calibration"}


def test_no_request_is_quicker_than_the_server(calibrated):
    done, _ = calibrated
    measured = {(each.call, each.state) for each in done.measured}
    assert measured >= {("GET", ""), ("GET", "first byte"), ("PUT", ""), ("HEAD", ""), ("LIST", ""), ("DELETE", "")}
    for each in done.measured:
        requests = 2 if each.call.startswith("Copy") else 1
        assert each.p50_ns >= requests * SERVICE_S * 1e9, (each.call, each.size)
    store = done.as_json()["object_store"]
    assert store["first_byte_us"] >= SERVICE_S * 1e6
    for each in store["by_connections"]:
        assert (each["requests_per_s"] or 0) < 2 / SERVICE_S, "one request at a time, not several"


def test_the_model_is_what_simulate_reads(calibrated):
    done, _ = calibrated
    assert model_of(done.document()) == done.model
    assert done.model.objects
    assert done.model.operations.keys() == {"read", "write", "open", "stat", "rename", "list", "delete"}
    assert any("opens" not in text and "connection" in text for text in done.unseen)


def test_a_prediction_has_the_arithmetic_of_the_server(calibrated, tmp_path):
    """20 reads one after the other take 20 times the service time at least, and no less than measured."""
    from tests.replay.commands.test_on_objects import training

    done, _ = calibrated
    source = training(tmp_path, steps=20, compute_ns=1_000)
    found = dxt_replay.simulate(source, done.model, runs=1)
    assert found.prediction.elapsed_ns > 20 * SERVICE_S * 1e9 * 0.9


def test_without_the_right_to_write_the_twin_is_read(tmp_path, capsys):
    source = build_capture(tmp_path, files=["/data/a"], ops=[read(0, offset=0, length=100_000)])
    output = tmp_path / "model.json"

    class ReadOnly(dict):
        def get(self, asked, default=0):
            return 403 if asked[0] in ("PUT", "POST", "DELETE") else default

    with ObjectServer().running() as server:
        dxt_replay.stage(source, server.url())
        server.refused = ReadOnly()
        assert main(["calibrate", "--target", server.url(), "-o", str(output), "--minutes", "0.03"]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "PUT, CopyObject and DELETE (the server answered 403)" in printed
        document = json.loads(output.read_text())
        assert {each["call"] for each in document["measured"]["times"]} == {"GET", "HEAD", "LIST"}
        assert read_storage_model(output).operations.keys() == {"read", "open", "stat", "list"}
        del server.objects["some/prefix/dxt-replay-manifest.json"]
        with pytest.raises(TargetError, match=r"cannot write below .* no twin is staged there"):
            calibrate_objects(server.url(), SECONDS)


def test_a_store_that_asks_for_fewer_requests_is_told(tmp_path):
    class Busy(dict):
        def get(self, asked, default=0):
            return 503 if asked[0] == "HEAD" else default

    with ObjectServer().running() as server:
        server.refused = Busy()
        done = calibrate_objects(server.url(), SECONDS)
        assert "Not measured: HEAD (the store asks for fewer requests)." in done.unseen
        assert server.objects == {}
