"""What the words and tables of a result say, and how sections become lines; `tests/golden` has whole outputs."""

import io
import re
import sys
from dataclasses import replace

import pytest

from dxt_replay.profiler_merge.analysis.finding import Finding
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.analysis.named_tables import views
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.profiler_merge.darshan.jobs import ProcessFacts
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.show.make import merge_sections
from dxt_replay.replay.show.section import WARNINGS, Column, Kind, Section, bar, in_brief, prose
from dxt_replay.replay.show.summary import enough_texts, finding_blocks, limit_sections, limit_text
from dxt_replay.replay.show.tables import columns_of, data_section, summary_or_tables, view_sections
from dxt_replay.replay.show.terminal import print_sections
from dxt_replay.traces.storage_limit import LimitPoint, NoStorageLimitError, StorageLimit
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import File, Span, build_capture, read, write
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, encode_dxt, posix_rows, write_log
from tests.replay.show.page.pages import carried

MS, MIB = 1_000_000, 1 << 20

# ------------------------------------------------------------------------------------------------------------ terminal
PATH = "/scratch/" + "deep/" * 20 + "a-b-c.bin"
WIDE = Section(
    title="Files",
    columns=(Column(head="file", kind=Kind.PATH), "bytes read", "I/O time, sum of all", Column(kind=Kind.BAR)),
    rows=(
        ("/scratch/imagenet/data/part-0004.tfrecord", "1.25 GiB", "12.345 s", "████████████"),
        ("/b", "3 B", "1 ns", "▌"),
    ),
)
NUMBERS = tuple(f"{number}.345 GiB" for number in range(12_340, 12_346))
LONG = [
    "rank 0: 74 steps are inferred: their starts from the reads",
    "/a/b.json: 3 events left out: no JSON",
    "c: late",
]


@pytest.mark.parametrize(
    ("sections", "lines"),
    [
        (
            [Section(title="One", rows=(("a", "b"),)), Section(title="Two", rows=(("c",),), notes=("d",))],
            ["One", "a  b", "", "Two", "c", "d"],
        ),
        # Text is no markup, and commands no terminal.
        (
            [Section(title="[red]a[/red]", rows=(("/evil\x1b[2J", "/odd\udcff"),), prose=True)],
            ["[red]a[/red]", "/evil\\x1b[2J  /odd\\udcff"],
        ),
        # Numbers alone may make a line too long, and a path within a sentence stays whole.
        ([Section(title="", columns=("", *"abcdef"), rows=(("x", *NUMBERS),))], ["  ".join(("x", *NUMBERS))]),
        ([prose("", [f"the file {PATH} is damaged"])], ["the file", PATH, "is damaged"]),
        # A warning in brief is its fact.
        (
            in_brief([prose("", ["The answer."]), prose(WARNINGS, LONG, brief=True)]),
            ["The answer.", "", "warning: rank 0: 74 steps are inferred", "warning: /a/b.json: 3 events left out",
             "and 1 more warning", "--details shows the rest."],
        ),
    ],
    ids=["apart", "plain", "numbers", "path", "brief"],
)  # fmt: skip
def test_what_is_printed(sections, lines, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_sections(sections)
    found = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert found[-len(lines) :] == lines


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120])
def test_a_table_is_as_wide_as_it_may_be_and_breaks_no_number(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    print_sections([WIDE])
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= width
    (row,) = (line for line in lines if "part-0004" in line)
    assert "1.25 GiB" in row
    assert "12.345 s" in row
    whole = "/scratch/imagenet/data/part-0004.tfrecord" in row
    assert (whole, "…" in row, "█" in row) == (width >= 80, width < 80, width >= 80), "a bar goes before a name"


def test_bars_and_colours(monkeypatch):
    shares = {(0, 4): "", (1, 4): "████", (0.5, 4): "██", (0.6, 4): "██▌", (1e-9, 4): "▌", (7, 3): "███"}
    assert {given: bar(*given) for given in shares} == shares
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    print_sections([WIDE])
    out.flush()
    assert b"############" in out.buffer.getvalue(), "an output without Unicode"
    monkeypatch.setenv("TERM", "xterm-256color")
    for no_color, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        printed = io.StringIO()
        printed.isatty = lambda: True
        monkeypatch.setattr(sys, "stdout", printed)
        print_sections([Section(title="warning: slow", rows=(("timing", "fail"), ("path", "high/way")), prose=True)])
        said = {"\x1b[1;33mwarning: slow": coloured, "\x1b[1;31mfail": coloured, "1mhigh/way": False}
        assert {text: text in printed.getvalue() for text in said} == said


# -------------------------------------------------------------------------------------------------------------- tables
@pytest.fixture
def capture(tmp_path):
    long = "/scratch/a/very/long/place/for/training/data/part-00000-of-01024.tfrecord"
    both = [(n, rank) for n in range(120) for rank in range(2)]
    reads = [read(0, offset=n * 4096, length=4096, start_ns=n * MS, end_ns=(n + 1) * MS, rank=rank) for n, rank in both]
    steps = [
        Span("step", start_ns=n * 10 * MS, end_ns=(n * 10 + 5 + n % 3) * MS, step=n, rank=rank) for n, rank in both[:26]
    ]
    ops = [*reads, write(1, length=1 << 40, start_ns=130 * MS, rank=1)]
    return build_capture(tmp_path, files=[File(long, format="tfrecord"), "/b"], ops=ops, spans=steps)


@pytest.mark.parametrize("view", [*TABLES, "by rank", "by file", "by format", "by step", "by size"])
def test_every_table_fits_80_columns_and_writes_every_type_and_unit(capture, capsys, view):
    by = view[3:] if view.startswith("by ") else None
    print_sections(summary_or_tables(views(capture, [] if by else [view], bins=12, by=by)))
    printed = capsys.readouterr().out
    assert printed.strip()
    assert max(len(line) for line in printed.splitlines()) <= 80
    if by:
        assert f"By {by}" in printed
        assert ("█" in printed) == (by != "file"), "the bar leaves its room to the path"
        return
    samples = {"string": "text", "bool": True, "double": 0.5, "int32": 3, "int64": 4}
    row = {field.name: samples[str(field.type)] for field in TABLES[view].schema}
    section = data_section(view, columns_of(view), [row])
    assert len(section.rows[0]) == len(section.columns)
    assert data_section(view, columns_of(view), []).notes


def test_shares_are_printed_once_and_findings_hold_evidence_remedy_and_threshold(capture):
    titles = [section.title for section in view_sections(views(capture, ["overlap", "steps"]))]
    assert titles == ["Shares, the first step included", "Compute and I/O by rank", "Slowest steps"]
    first, *others = view_sections(views(capture, ["findings"]))
    assert re.match(r"At most \d+\.\d ms, \d+\.\d % of the training loop, at stake: 3 ways to get it", first.title)
    assert any(row[0].startswith("high: Reads are smaller than 1 MiB") for row in first.rows)
    assert any("part-00000-of-01024" in row[0] for section in others for row in section.rows)


def test_quiet_stretches_of_a_timeline_are_one_line(tmp_path):
    ops = [read(0, length=4, start_ns=0, end_ns=MS), read(0, length=1 << 27, start_ns=900 * MS, end_ns=999 * MS)]
    (section,) = view_sections(views(build_capture(tmp_path, files=["/a"], ops=ops), ["timeline"], bins=10))
    assert section.title == "Timeline, bins of 0.1 s"
    assert [row[0] for row in section.rows] == ["0.0 s", "0.1-0.9 s", "0.9 s"]
    assert [row[3] for row in section.rows] == ["0", "0", "1,280"], "numbers that people read"


REBUILT = "From counters: rebuilt, not traced. Their times and order are estimates, in no other column."
SAID = {
    "": "25 % of the I/O (1 reads and writes, 1.00 KiB) is rebuilt from counters: its times and order are estimates",
    **dict.fromkeys(("--show files", "--show ranks", "--show rank-files"), REBUILT),
    "--show sizes": "Sizes: POSIX reads, reconstructed from counters",
    "--show timeline": "Not in this table: 1 operations rebuilt from counters, whose times are estimates.",
}


def test_what_is_rebuilt_from_counters_is_said(tmp_path, say):
    for rebuilt in (1, 0):
        ops = [
            read(0, offset=1024 * i, length=1024, start_ns=i * 1000, end_ns=i * 1000 + 500, lane=int(i < rebuilt),
                 origin="reconstructed" if i < rebuilt else "traced")
            for i in range(4)
        ]  # fmt: skip
        capture = build_capture(tmp_path, name=f"c{rebuilt}", files=["/data/a"], ops=ops).path
        for show, text in SAID.items():
            assert (text in say(f"summary {capture} {show}")) == bool(rebuilt)
        assert say(f"summary {capture} --json")["reconstructed"]["pct"] == 25.0 * rebuilt


# ------------------------------------------------------------------------------------------------------------- summary
def test_findings_of_the_same_waits_are_one_stake():
    def finding(code, at_stake_s, of="training loop"):
        texts = dict.fromkeys(("title", "evidence", "threshold", "remedy"), "")
        pct = None if at_stake_s is None else 10 * at_stake_s
        return Finding(code=code, severity="high", at_stake_s=at_stake_s, at_stake_pct=pct, at_stake_of=of, **texts)

    stakes = {"warm-up": 0.5, "re-reads": 4.5, "input-bound": 4.5, "small-reads": 1.0}
    found = [finding(code, stake) for code, stake in stakes.items()]
    found += [finding("not-traced", None, ""), finding("metadata-time", 7.0, "run")]
    assert [(text, [each.code for each in members]) for text, members in finding_blocks(found)] == [
        ("At most 7.000 s, 70.0 % of the run, at stake", ["metadata-time"]),
        (
            "At most 4.500 s, 45.0 % of the training loop, at stake: 3 ways to get it, the least work first",
            ["input-bound", "small-reads", "re-reads"],
        ),
        ("At most 500 ms, 5.0 % of the training loop, at stake", ["warm-up"]),
        ("1 finding of unknown cost", ["not-traced"]),
    ]


S = 1_000_000_000
LIMIT = StorageLimit(
    recorded_ns=4 * S, model_ns=4_100_000_000, fastest_ns=3_100_000_000, utilisation_pct=60.0,
    fastest_utilisation_pct=80.0, enough={"speed": 12.5},
    points=tuple(
        LimitPoint(quantity=quantity, multiple=times, elapsed_ns=ns, above_fastest_pct=0.0, utilisation_pct=1.0)
        for quantity in ("speed", "bandwidth")
        for times, ns in ((0.5, 8_100_000_000), (1.0, 4_100_000_000), (None, 3_100_000_000))
    ),
)  # fmt: skip


def test_the_training_takes_as_long_in_the_sentence_as_in_the_curves():
    assert limit_text(LIMIT) == (
        "Storage limits this training by 24.4 %: with infinitely fast storage it would take 3.000 s instead of "
        "4.000 s, and compute 80.0 % of it instead of 60.0 %."
    )
    assert limit_text(replace(LIMIT, utilisation_pct=None)).endswith("instead of 4.000 s.")
    assert limit_text(replace(LIMIT, fastest_ns=LIMIT.model_ns)).startswith("Storage does not limit this training: ")
    head, speed, bandwidth, _ = limit_sections(LIMIT)
    assert head.rows[1] == ("From 12 times the recorded speed on, storage costs at most 2 %.",)
    assert [row[:2] for row in speed.rows] == [("0.5 x", "8.000 s"), ("1 x", "4.000 s"), ("infinite", "3.000 s")]
    assert bandwidth.title.startswith("Training time by bandwidth")
    (section,) = limit_sections(NoStorageLimitError("too large"))
    assert section.rows == (("How long this training takes on other storage is not known: too large.",),)
    for multiple, expected in ((None, "Even at 64"), (0.25, "At a quarter"), (3.84, "From 3.8 times")):
        assert next(iter(enough_texts({"speed": multiple}))).startswith(expected)


# ------------------------------------------------- I/O through DFS and DAOS, which Darshan counts and no trace holds
def log_of(target, *, traced=False, moved=64 * MIB):
    """A job that wrote `moved` bytes through DFS, as which DAOS counts 8 more, and read 4 MiB beside it."""
    posix = DxtRecord(record_id=1, reads=[(i * MIB, MIB, 1.0 + i, 1.5 + i) for i in range(4)])
    counted = {
        "DFS": {"DFS_WRITES": 3, "DFS_WRITEXS": 1, "DFS_BYTES_WRITTEN": moved, "DFS_F_WRITE_TIME": 2.0},
        "DAOS": {"DAOS_ARRAY_WRITES": 4, "DAOS_OBJ_UPDATES": 1, "DAOS_BYTES_WRITTEN": moved + 8,
                 "DAOS_F_WRITE_TIME": 2.5},
    }  # fmt: skip
    modules = {
        name: ModuleSpec(version=1, streams=[encode_counters(name, [{"record_id": 7, **row}], 1)])
        for name, row in counted.items()
    }
    if traced:
        modules["POSIX"] = ModuleSpec(version=4, streams=[encode_counters("POSIX", posix_rows([posix]), 4)])
        modules["DXT_POSIX"] = ModuleSpec(version=1, streams=[encode_dxt([posix])])
    return write_log(target, job=JobSpec(nprocs=1), names={1: b"/a", 7: b"/file"}, modules=modules)


def test_counted_objects_are_shown_once_and_drawn_in_no_timeline(tmp_path, say):
    log, page = log_of(tmp_path / "a.darshan"), tmp_path / "report.html"
    assert ProcessFacts(open_log(log)).has_data
    text = say(f"summary {log} --details")
    for said in (
        "By Darshan's counters the job spent 2.500 s of",
        "DAOS 0 5 64.0 MiB Darshan's counters 2.500 s",
        "DFS 0 4 64.0 MiB Darshan's counters 2.000 s",
    ):
        assert said in text
    assert "DXT_ENABLE_IO_TRACE" not in text
    say(f"report {log} -o {page}")
    first, below = page.read_text(encoding="utf-8").split('<section id="timeline"')
    assert "<h1>By Darshan&#39;s counters the job spent 2.500 s of " in first
    assert "of the run in DAOS calls, by Darshan&#39;s counters" in first
    assert "No trace: when the I/O happened is not known." in below
    data = carried(first + below, "data")
    assert (data["timelines"], [name for name in data["figures"] if name.startswith(("course", "heat"))]) == ({}, [])


@pytest.mark.parametrize(
    ("moved", "bytes_share", "evidence", "line"),
    [
        # At best: POSIX calls may have become those of DFS.
        (64 * MIB, 4 * MIB / (64 * MIB + 8), "at least 60.0 MiB through calls of an object store", "coverage 6.25 %"),
        (2 * MIB, None, "Bytes were moved by DAOS calls, and whether calls in the trace made them is", "unknown, as"),
    ],
)
def test_counted_objects_are_no_part_of_a_whole_trace(moved, bytes_share, evidence, line, tmp_path, say):
    made = merge([log_of(tmp_path / "a.darshan", traced=True, moved=moved)], [], tmp_path / "a.capture")
    assert (made.info.coverage.bytes, made.info.coverage.operations) == (bytes_share, None)
    assert made.counted["DFS"] == {"reads": 0, "writes": 4, "bytes_read": 0, "bytes_written": moved}
    (found,) = (each for each in findings(open_capture(made.capture)) if each.code == "not-traced")
    assert evidence in found.evidence
    assert "dfuse" in found.remedy
    assert line in merge_sections(made)[0].title
    for part, there in (("", True), ("--part op=read", False)):  # a part has no figures of the whole job
        summary = say(f"summary {made.capture} --json {part}")
        assert ("DAOS" in summary["interfaces"], "DAOS" in summary["counted_times"]) == (there, there)
