from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import build_capture
from tests.simulated_application import US, Application, Storage, run


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    recorded = run(Application(depth=4, readers=2, steps=20), Storage(latency_ns=300 * US))
    return build_capture(tmp_path, files=["/data/train"], ops=recorded.ops, spans=recorded.spans)


def transform(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main(["transform", *(str(argument) for argument in argv)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_what_changed_and_what_was_assumed_is_printed(
    capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "o.capture"
    status, out, err = transform(capsys, capture.path, "-o", output, "--transfer-size", "512KiB", "--compute-speed", 2)
    assert (status, err) == (0, "")
    text = " ".join(out.split())
    assert "reads 60 32" in text
    assert "all time of the training thread between its events is compute" in text
    assert out.rstrip().endswith(f"next: dxt-replay stage {output} --target TARGET")
    assert open_capture(output).operation_count() == 32
