from __future__ import annotations

import json
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import build_capture, read


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return build_capture(tmp_path, files=["/data/ann/a.npz"], ops=[read(0, length=4096, start_ns=10)])


def anonymize(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["anonymize", *(str(argument) for argument in argv)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_key_may_lie_in_a_file(capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_bytes(b"a key")
    options = ("-o", tmp_path / "a.capture", "--key-file", tmp_path / "key")
    status, out, _ = anonymize(capsys, capture.path, *options, "--json")
    assert status == 0
    assert json.loads(out)["random_key"] is False
    dxt_replay.anonymize(capture, tmp_path / "b.capture", key=b"a key")
    one, other = (open_capture(tmp_path / f"{name}.capture").paths() for name in "ab")
    assert one == other
