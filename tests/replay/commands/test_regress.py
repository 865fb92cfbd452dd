"""`dxt-replay regress` as a user meets it, with real runs: exit status, output, JUnit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.replay.regress.record import read_record
from tests.capture_builder import Span, build_capture, read
from tests.places import MPIEXEC, needs_mpi

MS = 1_000_000


def source_of(folder: Path, ranks: int = 1) -> Path:
    """Ten steps of 2 ms; each waits for a read."""
    ops, spans = [], []
    for rank in range(ranks):
        for step in range(10):
            at = step * 2 * MS
            ops.append(read(0, rank=rank, start_ns=at, end_ns=at + 20_000, offset=4096 * step, length=4096, step=step))
            spans += [
                Span("step", at, at + 2 * MS, rank=rank, step=step),
                Span("input_wait", at, at + 20_000, rank=rank, step=step),
                Span("compute", at + 30_000, at + 2 * MS, rank=rank, step=step),
            ]
    return build_capture(folder, ops=ops, files=["/a"], spans=spans, name="s").path


def arguments(folder: Path, *more: str, source: Path | None = None) -> list[str]:
    """Of six pairs, whose difference is no regression however busy the machine is."""
    for name in ("old", "new"):
        (folder / name).mkdir()
    places = ["--baseline", str(folder / "old"), "--candidate", str(folder / "new")]
    return ["regress", str(source or source_of(folder)), *places, "--repeats", "6", "--threshold", "1000", *more]


@pytest.mark.parametrize(("more", "failures"), [([], 0), (["--fail-inconclusive"], 1)])
def test_a_verdict_that_noise_forbids_fails_where_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], failures: int
) -> None:
    """No six pairs of 20 ms tell a change of 0.001 %."""
    junit = tmp_path / "junit.xml"
    given = arguments(tmp_path, "--threshold", "0.001", "--json", "--report", str(junit), *more)
    status = main(given)
    document = json.loads(capsys.readouterr().out)
    assert (document["primary"], document["pace"], document["cache"]["policy"]) == ("elapsed_s", "steps", "cold")
    if document["verdict"] == "inconclusive":
        assert (status, int(xml.parse(junit).getroot().attrib["failures"])) == (failures, failures)


def test_real_data_are_read_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = source_of(tmp_path)
    for name in ("real-old", "real-new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(os.urandom(1 << 17))
    maps = ["--map", f"baseline:/={tmp_path}/real-old", "--map", f"candidate:/={tmp_path}/real-new"]
    assert main(arguments(tmp_path, "--json", *maps, source=source)) == 0
    document = json.loads(capsys.readouterr().out)
    assert all((run["failed"], run["bytes"]["read"]) == (0, 40960) for run in document["runs"])
    assert not list((tmp_path / "new").rglob("a"))


def test_a_kept_replay_is_refused_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept" / "pair-002-candidate.capture"
    kept.mkdir(parents=True)
    (kept / "precious").write_text("words", encoding="utf-8")
    given = ["-o", str(kept.parent), "--force"]
    assert main(arguments(tmp_path, *given)) == 2
    assert "pair-002-candidate.capture exists and is not a capture" in capsys.readouterr().err
    assert not list(tmp_path.rglob("dxt-replay-twin")), "staged for nothing"


def test_a_record_is_written_and_compared_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, first, second = str(source_of(tmp_path)), tmp_path / "first.json", tmp_path / "second.json"
    (tmp_path / "twin").mkdir()
    twin, given = str(tmp_path / "twin"), [source, "--pace", "none", "--warm", "--threshold", "1000", "--repeats"]
    assert main(["regress", *given, "6", twin, "--record", str(first), "--json"]) == 0
    paired = json.loads(capsys.readouterr().out)
    assert paired["environment"]["targets"].keys() == {"baseline", "candidate"}
    assert paired["against"] is None

    assert (
        main(["regress", *given, "4", "--baseline", str(first), "--candidate", twin, "--record", str(second), "--json"])
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert (document["against"]["record"], document["against"]["runs"]) == ("first.json", 12)
    assert [run["side"] for run in document["runs"]] == ["baseline"] * 12 + ["candidate"] * 5
    assert document["environment"]["differences"] == []
    assert document["metrics"]["elapsed_s"]["baseline"] == [
        run["metrics"]["elapsed_s"]
        for run in sorted(paired["runs"], key=lambda run: run["start_ns"])
        if not run["warmup"]
    ]
    assert len(read_record(second).runs) == 5

    assert main(["regress", *given, "2", "--baseline", str(second), "--candidate", twin]) == 2
    assert "runs against this record are needed" in capsys.readouterr().err


@needs_mpi
def test_under_mpiexec_all_processes_take_part_and_one_speaks(tmp_path: Path) -> None:
    source = source_of(tmp_path, ranks=2)
    program = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "dxt_replay.replay.commands.main"]
    given = arguments(tmp_path, "--json", "--report", str(tmp_path / "j.xml"), source=source)
    done = subprocess.run([*program, *given], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [run["operations"] for run in document["runs"]] == [20] * 14
    assert document["order"] == [run["side"] for run in document["runs"] if not run["warmup"]]
    assert xml.parse(tmp_path / "j.xml").getroot().tag == "testsuites"
