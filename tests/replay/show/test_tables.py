"""The tables of `summary --show`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.named_tables import views
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.replay.show.tables import columns_of, data_section, summary_or_tables, view_sections
from dxt_replay.replay.show.terminal import print_sections
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Span, build_capture, read, write

MS = 1_000_000


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    long = "/scratch/a/very/long/place/for/training/data/part-00000-of-01024.tfrecord"
    return build_capture(
        tmp_path,
        files=[File(long, format="tfrecord"), "/b"],
        ops=[
            *(
                read(0, offset=n * 4096, length=4096, start_ns=n * MS, end_ns=(n + 1) * MS, rank=rank)
                for n in range(120)
                for rank in range(2)
            ),
            write(1, length=1 << 40, start_ns=130 * MS, rank=1),
        ],
        spans=[
            Span("step", start_ns=n * 10 * MS, end_ns=(n * 10 + 5 + n % 3) * MS, step=n, rank=rank)
            for n in range(13)
            for rank in range(2)
        ],
    )


@pytest.mark.parametrize("view", TABLES)
def test_every_view_fits_80_columns(capture: Capture, capsys: pytest.CaptureFixture[str], view: str) -> None:
    print_sections(summary_or_tables(views(capture, [view], bins=12)))
    printed = capsys.readouterr().out
    assert printed.strip()
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_contents_fit_80_columns_and_name_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset(
            "train/images/of/detector", shape=(1000, 128, 128), chunks=(1, 128, 128), compression="gzip", dtype="f4"
        )
    (tmp_path / "b").write_bytes((3).to_bytes(8, "little") + bytes(11))
    files = [
        File(str(tmp_path / "a.h5"), format="hdf5"),
        File(str(tmp_path / "b"), format="tfrecord"),
        File("/gone", format="hdf5"),
    ]
    print_sections(summary_or_tables(views(build_capture(tmp_path, files=files), ["tfrecords", "datasets"])))
    printed = capsys.readouterr().out
    assert "64.0 KiB" in printed
    assert "1 file is not on this machine, such as /gone:" in printed
    assert "--map PREFIX=DIR" in printed
    assert max(len(line) for line in printed.splitlines()) <= 80


@pytest.mark.parametrize("by", ["rank", "file", "format", "step", "size"])
def test_breakdowns_fit_80_columns(capture: Capture, capsys: pytest.CaptureFixture[str], by: str) -> None:
    print_sections(summary_or_tables(views(capture, [], by=by)))
    printed = capsys.readouterr().out
    assert f"By {by}" in printed
    assert ("█" in printed) == (by != "file"), "the bar leaves its room to the path"
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_shares_are_printed_once_before_the_first_that_explains_them(capture: Capture) -> None:
    titles = [section.title for section in view_sections(views(capture, ["overlap", "steps"]))]
    assert titles == ["Shares, the first step included", "Compute and I/O by rank", "Slowest steps"]


def test_findings_say_so_when_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(summary_or_tables(views(build_capture(tmp_path), ["findings"])))
    assert "Nothing stands out" in capsys.readouterr().out


def test_findings_hold_evidence_remedy_and_threshold(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(summary_or_tables(views(capture, ["findings"])))
    printed = " ".join(capsys.readouterr().out.split())
    assert re.match(r"At most \d+\.\d ms, \d+\.\d % of the training loop, at stake: 3 ways to get it", printed)
    assert "high: Reads are smaller than 1 MiB" in printed
    assert "part-00000-of-01024" in printed


def test_many_rows_are_cut_with_a_note(tmp_path: Path) -> None:
    ops = [read(n, length=1, start_ns=n) for n in range(50)]
    capture = build_capture(tmp_path, files=[f"/{n}" for n in range(50)], ops=ops)
    (section,) = view_sections(views(capture, ["files"]))
    assert len(section.rows) == 40
    assert section.notes == ("and 10 more: --json, or -o FILE.csv, has all",)


@pytest.mark.parametrize("name", TABLES)
def test_every_type_and_unit_of_a_column_can_be_written(name: str) -> None:
    samples = {"string": "text", "bool": True, "double": 0.5, "int32": 3, "int64": 4}
    row = {field.name: samples[str(field.type)] for field in TABLES[name].schema}
    section = data_section(name, columns_of(name), [row])
    assert len(section.rows[0]) == len(section.columns)
    assert data_section(name, columns_of(name), []).notes


def test_quiet_stretches_of_a_timeline_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [read(0, length=4, start_ns=0, end_ns=MS), read(0, length=1 << 27, start_ns=900 * MS, end_ns=999 * MS)]
    found = views(build_capture(tmp_path, files=["/a"], ops=ops), ["timeline"], bins=10)
    (section,) = view_sections(found)
    assert section.title == "Timeline, bins of 0.1 s"
    assert [row[0] for row in section.rows] == ["0.0 s", "0.1-0.9 s", "0.9 s"]
    assert [row[3] for row in section.rows] == ["0", "0", "1,280"], "numbers that people read"


def test_files_are_sorted_by_the_time_that_they_cost(tmp_path: Path) -> None:
    ops = [read(n, length=100 - n, start_ns=0, end_ns=n * MS) for n in range(1, 4)]
    capture = build_capture(tmp_path, files=[f"/{n}" for n in range(4)], ops=ops)
    (section,) = view_sections(views(capture, ["files"]))
    assert [row[0] for row in section.rows] == ["/3", "/2", "/1"]
