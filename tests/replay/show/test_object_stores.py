"""I/O through DFS and DAOS, which Darshan counts and no trace holds: shown, never added up, never taken for traced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.darshan.jobs import ProcessFacts
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.show.make import merge_sections
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import (
    DxtRecord,
    JobSpec,
    ModuleSpec,
    encode_counters,
    encode_dxt,
    posix_rows,
    write_log,
)
from tests.replay.show.page.pages import carried

MIB = 1 << 20
_READ = [(i * MIB, MIB, 1.0 + i, 1.5 + i) for i in range(4)]


def log_of(target: Path, *, posix: DxtRecord | None = None, traced: bool = True, moved: int = 64 * MIB) -> Path:
    """A job that wrote `moved` bytes through DFS, as which DAOS counts 8 more, and did `posix` beside it."""
    rows = {
        "DFS": {"DFS_WRITES": 3, "DFS_WRITEXS": 1, "DFS_BYTES_WRITTEN": moved, "DFS_F_WRITE_TIME": 2.0},
        "DAOS": {
            "DAOS_ARRAY_WRITES": 4,
            "DAOS_OBJ_UPDATES": 1,
            "DAOS_BYTES_WRITTEN": moved + 8,
            "DAOS_F_WRITE_TIME": 2.5,
        },
    }
    modules = {
        name: ModuleSpec(version=1, streams=[encode_counters(name, [{"record_id": 7, **row}], 1)])
        for name, row in rows.items()
    }
    if posix is not None:
        modules["POSIX"] = ModuleSpec(version=4, streams=[encode_counters("POSIX", posix_rows([posix]), 4)])
        if traced:
            modules["DXT_POSIX"] = ModuleSpec(version=1, streams=[encode_dxt([posix])])
    return write_log(target, job=JobSpec(nprocs=1), names={1: b"/a", 7: b"/file"}, modules=modules)


def shown(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main([*command]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_their_time_and_bytes_are_in_the_summary_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "summary", str(log_of(tmp_path / "a.darshan")), "--details")
    assert "By Darshan's counters the job spent 2.500 s of" in text
    assert "in DAOS calls" in text
    assert "DAOS 0 5 64.0 MiB Darshan's counters 2.500 s" in text
    assert "DFS 0 4 64.0 MiB Darshan's counters 2.000 s" in text
    assert "DXT_ENABLE_IO_TRACE" not in text


def test_their_bytes_are_no_part_of_a_whole_trace(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a.darshan", posix=DxtRecord(record_id=1, reads=_READ))
    made = merge([log], [], tmp_path / "a.capture")
    coverage = made.info.coverage
    assert coverage.bytes == 4 * MIB / (64 * MIB + 8)  # at best: POSIX calls may have become those of DFS
    assert coverage.operations is None
    assert made.counted["DFS"] == {"reads": 0, "writes": 4, "bytes_read": 0, "bytes_written": 64 * MIB}
    (found,) = (each for each in findings(open_capture(made.capture)) if each.code == "not-traced")
    assert "at least 60.0 MiB through calls of an object store are not in it" in found.evidence
    assert "dfuse" in found.remedy
    assert "coverage 6.25 %" in merge_sections(made)[0].title


def test_where_more_went_through_posix_it_is_not_known_what_the_trace_holds(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a.darshan", posix=DxtRecord(record_id=1, reads=_READ), moved=2 * MIB)
    made = merge([log], [], tmp_path / "a.capture")
    assert (made.info.coverage.bytes, made.info.coverage.operations) == (None, None)
    assert "coverage unknown, as some I/O is in no trace" in merge_sections(made)[0].title
    (found,) = (each for each in findings(open_capture(made.capture)) if each.code == "not-traced")
    assert "Bytes were moved by DAOS calls, and whether calls in the trace made them is not known" in found.evidence


def test_the_page_of_counters_alone_is_no_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.html"
    shown(capsys, "report", str(log_of(tmp_path / "a.darshan")), "-o", str(target))
    page = target.read_text(encoding="utf-8")
    first, below = page.split('<section id="timeline"')
    assert "<h1>By Darshan&#39;s counters the job spent 2.500 s of " in first
    assert "of the run in DAOS calls, by Darshan&#39;s counters" in first
    assert "No trace: when the I/O happened is not known." in below
    data = carried(page, "data")
    assert (data["timelines"], [name for name in data["figures"] if name.startswith(("course", "heat"))]) == ({}, [])


def test_a_part_has_no_figures_of_the_whole_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(tmp_path / "a.darshan", posix=DxtRecord(record_id=1, reads=_READ))
    for options, there in (([], True), (["--part", "op=read"], False)):
        assert main(["summary", str(log), "--json", *options]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert ("DAOS" in summary["interfaces"], "DAOS" in summary["counted_times"]) == (there, there)


def test_a_process_that_only_used_a_store_is_one_of_the_job(tmp_path: Path) -> None:
    assert ProcessFacts(open_log(log_of(tmp_path / "a.darshan"))).has_data
