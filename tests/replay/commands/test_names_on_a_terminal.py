"""Names that anybody may have chosen cannot command the terminal, nor make two lines of one, in any command."""

from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Op, Span, build_capture, read

HOSTILE = "a\x1b[31m\x07\x9b2J\u202eb"
MS = 1_000_000


def hostile_capture(folder: Path) -> Capture:
    """Three steps whose files, spans and mounts have names that command a terminal."""
    ops = [Op("open", 0), *(read(0, offset=10 * i, length=10, start_ns=i * MS + 2_000, step=i) for i in range(3))]
    spans = [
        span
        for step in range(3)
        for span in (
            Span("step", step * MS, (step + 1) * MS, step=step, name=HOSTILE),
            Span("compute", step * MS + 1000, (step + 1) * MS, step=step, name=HOSTILE),
        )
    ]
    files = [File(f"/{HOSTILE}\n/c", mount=f"/{HOSTILE}", fs_type=HOSTILE)]
    return build_capture(folder, name=HOSTILE, files=files, ops=ops, spans=spans)


COMMANDS = {
    "summary": (0, "summary {capture}"),
    "summary of files": (0, "summary {capture} --show files --show ranks --show findings --show timeline"),
    "report": (0, "report {capture} -o {folder}/r.html"),
    "verify": (0, "verify {capture}"),
    "stage": (0, "stage {capture} --target {folder}/t"),
    "run": (0, "run {capture} --target {folder}/t -o {folder}/r.capture --pace none"),
    "run on nothing": (2, "run {capture} --target {folder}/none -o {folder}/r.capture"),
    "compare": (0, "compare {capture} {capture}"),
    "simulate": (0, "simulate {capture} --storage nvme"),
    "simulate on an unknown model": (2, "simulate {capture} --storage {folder}/none.yaml"),
    "transform": (0, "transform {capture} -o {folder}/w.capture --transfer-size 5B"),
    "transform nothing": (2, "transform {capture} -o {folder}/w.capture --compression {folder}"),
    "fit": (0, "fit {capture} -o {folder}/w.yaml"),
    "anonymize": (0, "anonymize {capture} -o {folder}/n.capture"),
    "export to chrome": (0, "export {capture} --to chrome -o {folder}/e.json.gz"),
    "export to fio": (0, "export {capture} --to fio --target {folder} -o {folder}/e.fio"),
    "generate from nothing": (2, "generate {folder}/none.yaml -o {folder}/g.capture"),
    "generate with an unknown key": (2, "generate unet3d_a100 {hostile}=1 -o {folder}/g.capture"),
    "calibrate nothing": (2, "calibrate {folder}/none -o {folder}/model.yaml"),
    "record an unknown program": (2, "record -o {folder}/rec.capture -- {folder}/none"),
    "merge nothing": (2, "merge {folder}/none.darshan -o {folder}/m.capture"),
    "an unknown command": (2, "{hostile}"),
    "an unknown option": (2, "summary --{hostile}"),
    "an unknown value": (2, "summary {capture} --show {hostile}"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_no_command_prints_a_control_character(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    expected, line = COMMANDS[case]
    folder = tmp_path / HOSTILE
    folder.mkdir()
    (folder / "t").mkdir()
    capture = hostile_capture(folder).path
    if case == "run":
        assert main(["stage", str(capture), "--target", str(folder / "t")]) == 0
    status = main([word.format(capture=capture, folder=folder, hostile=HOSTILE) for word in line.split()])
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert status == expected, text
    assert {c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"} == set()
    assert [each.startswith("dxt-replay: ") for each in printed.err.splitlines()].count(True) >= (status == 2)
    if status == 2:
        assert all(each.startswith("dxt-replay: ") for each in printed.err.splitlines()), printed.err
    shutil.rmtree(folder)
