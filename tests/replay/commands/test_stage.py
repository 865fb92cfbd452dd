from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import build_capture, read


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return build_capture(tmp_path, files=["/d/a", "/d/b"], ops=[read(0, length=4096), read(1, length=4096)])


def test_a_dry_run_says_what_it_would_do_and_a_run_what_it_did(
    capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    options = ["stage", str(capture.path), "--target", str(target)]
    assert main([*options, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"Would write 2 files under {target}: 8.00 KiB")
    assert "staged" not in printed
    assert not target.exists()
    target.mkdir()
    assert main(options) == 0
    *_, last, empty, following = capsys.readouterr().out.splitlines()
    assert last.startswith(f"Staged 2 files under {target}: 8.00 KiB in ")
    assert (empty, following) == (
        "",
        f"next: dxt-replay run {capture.path} --target {target} -o replay.capture",
    )
    assert main(options) == 0
    assert capsys.readouterr().out.splitlines()[-3] == "The twin is complete."
    assert main(["stage", str(capture.path), "--target", str(target), "--remove"]) == 0
    assert capsys.readouterr().out == f"Removed 2 files from {target}\n"


def test_the_next_command_has_the_same_options(
    capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, real = tmp_path / "the target", tmp_path / "real"
    real.mkdir()
    (real / "b").write_bytes(bytes(4096))
    chosen = ["--map", f"/d/b={real / 'b'}", "--part", "ranks=0"]
    target.mkdir(exist_ok=True)
    assert main(["stage", str(capture.path), "--target", str(target), *chosen]) == 0
    following = capsys.readouterr().out.splitlines()[-1].removeprefix("next: dxt-replay ")
    argv = shlex.split(following)
    assert argv[:4] == ["run", str(capture.path), "--target", str(target)]
    assert argv[-2:] == ["-o", "replay.capture"]
    assert argv[4:-2] == chosen
