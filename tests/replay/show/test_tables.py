"""The tables of `summary --show`, and what of them rests on counters. `tests/golden` has those of a bundled job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.named_tables import views
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.show.section import MAX_GROUPS
from dxt_replay.replay.show.tables import columns_of, data_section, summary_or_tables, view_sections
from dxt_replay.replay.show.terminal import print_sections
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Span, build_capture, read, write

MS = 1_000_000


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    long = "/scratch/a/very/long/place/for/training/data/part-00000-of-01024.tfrecord"
    both = [(n, rank) for n in range(120) for rank in range(2)]
    reads = [read(0, offset=n * 4096, length=4096, start_ns=n * MS, end_ns=(n + 1) * MS, rank=rank) for n, rank in both]
    steps = [
        Span("step", start_ns=n * 10 * MS, end_ns=(n * 10 + 5 + n % 3) * MS, step=n, rank=rank) for n, rank in both[:26]
    ]
    files = [File(long, format="tfrecord"), "/b"]
    ops = [*reads, write(1, length=1 << 40, start_ns=130 * MS, rank=1)]
    return build_capture(tmp_path, files=files, ops=ops, spans=steps)


@pytest.mark.parametrize("view", [*TABLES, "by rank", "by file", "by format", "by step", "by size"])
def test_every_table_fits_80_columns(capture: Capture, capsys: pytest.CaptureFixture[str], view: str) -> None:
    by = view[3:] if view.startswith("by ") else None
    print_sections(summary_or_tables(views(capture, [] if by else [view], bins=12, by=by)))
    printed = capsys.readouterr().out
    assert printed.strip()
    assert max(len(line) for line in printed.splitlines()) <= 80
    if by:
        assert f"By {by}" in printed
        assert ("█" in printed) == (by != "file"), "the bar leaves its room to the path"


def test_contents_fit_80_columns_and_name_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        sizes = {"shape": (1000, 128, 128), "chunks": (1, 128, 128), "compression": "gzip", "dtype": "f4"}
        file.create_dataset("train/images/of/detector", **sizes)
    (tmp_path / "b").write_bytes((3).to_bytes(8, "little") + bytes(11))
    named = {str(tmp_path / "a.h5"): "hdf5", str(tmp_path / "b"): "tfrecord", "/gone": "hdf5"}
    files = [File(path, format=kind) for path, kind in named.items()]
    print_sections(summary_or_tables(views(build_capture(tmp_path, files=files), ["tfrecords", "datasets"])))
    printed = capsys.readouterr().out
    for text in ("64.0 KiB", "1 file is not on this machine, such as /gone:", "--map PREFIX=DIR"):
        assert text in printed
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_shares_are_printed_once_before_the_first_that_explains_them(capture: Capture) -> None:
    titles = [section.title for section in view_sections(views(capture, ["overlap", "steps"]))]
    assert titles == ["Shares, the first step included", "Compute and I/O by rank", "Slowest steps"]


def test_findings_hold_evidence_remedy_and_threshold(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(summary_or_tables(views(capture, ["findings"])))
    printed = " ".join(capsys.readouterr().out.split())
    assert re.match(r"At most \d+\.\d ms, \d+\.\d % of the training loop, at stake: 3 ways to get it", printed)
    assert "high: Reads are smaller than 1 MiB" in printed
    assert "part-00000-of-01024" in printed


def test_many_rows_are_cut_with_a_note_and_the_most_expensive_kept(tmp_path: Path) -> None:
    ops = [read(n, length=100 - n, start_ns=0, end_ns=n * MS) for n in range(1, MAX_GROUPS + 10)]
    capture = build_capture(tmp_path, files=[f"/{n}" for n in range(MAX_GROUPS + 10)], ops=ops)
    (section,) = view_sections(views(capture, ["files"]))
    assert [row[0] for row in section.rows] == [f"/{MAX_GROUPS + 9 - n}" for n in range(MAX_GROUPS)]
    assert section.notes == ("and 9 more: --json, or -o FILE.csv, has all",)


@pytest.mark.parametrize("name", TABLES)
def test_every_type_and_unit_of_a_column_can_be_written(name: str) -> None:
    samples = {"string": "text", "bool": True, "double": 0.5, "int32": 3, "int64": 4}
    row = {field.name: samples[str(field.type)] for field in TABLES[name].schema}
    section = data_section(name, columns_of(name), [row])
    assert len(section.rows[0]) == len(section.columns)
    assert data_section(name, columns_of(name), []).notes


def test_quiet_stretches_of_a_timeline_are_one_line(tmp_path: Path) -> None:
    ops = [read(0, length=4, start_ns=0, end_ns=MS), read(0, length=1 << 27, start_ns=900 * MS, end_ns=999 * MS)]
    (section,) = view_sections(views(build_capture(tmp_path, files=["/a"], ops=ops), ["timeline"], bins=10))
    assert section.title == "Timeline, bins of 0.1 s"
    assert [row[0] for row in section.rows] == ["0.0 s", "0.1-0.9 s", "0.9 s"]
    assert [row[3] for row in section.rows] == ["0", "0", "1,280"], "numbers that people read"


REBUILT = "From counters: rebuilt, not traced. Their times and order are estimates, in no other column."
SAID = "25 % of the I/O (1 reads and writes, 1.00 KiB) is rebuilt from counters: its times and order are estimates"


@pytest.mark.parametrize(
    ("show", "said"),
    [
        ("", SAID),
        ("files", REBUILT),
        ("ranks", REBUILT),
        ("rank-files", REBUILT),
        ("sizes", "Sizes: POSIX reads, reconstructed from counters"),
        ("timeline", "Not in this table: 1 operations rebuilt from counters, whose times are estimates."),
    ],
)
def test_what_is_rebuilt_from_counters_is_said(
    show: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rebuilt in (1, 0):
        ops = [
            read(0, offset=1024 * i, length=1024, start_ns=i * 1000, end_ns=i * 1000 + 500, lane=int(i < rebuilt),
                 origin="reconstructed" if i < rebuilt else "traced")
            for i in range(4)
        ]  # fmt: skip
        capture = str(build_capture(tmp_path, name=f"c{rebuilt}", files=["/data/a"], ops=ops).path)
        assert main(["summary", capture, *(["--show", show] if show else [])]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert (said in text) == bool(rebuilt)
        assert main(["summary", capture, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["reconstructed"]["pct"] == 25.0 * rebuilt
