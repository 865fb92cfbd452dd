from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.run.result import Repeats
from dxt_replay.replay.show.comparison_sections import comparison_sections
from dxt_replay.replay.show.merge_sections import merge_sections
from dxt_replay.replay.show.run_sections import repeat_sections, run_sections
from dxt_replay.replay.show.section import MAX_GROUPS, WARNINGS, Column, Kind, Section, in_brief, prose
from dxt_replay.replay.show.summary_sections import summary_sections
from dxt_replay.replay.show.terminal import print_sections
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, Span, build_capture, read, write
from tests.replay.show.test_merge_sections import clock, merged
from tests.run_results import RUN, run_result

ESCAPE = "\x1b"


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return build_capture(
        tmp_path,
        files=["/data/" + "deep/" * 30 + "train.tfrecord", "/evil\x1b[2J[red]file[/red]", b"/odd\xff"],
        ops=[
            read(0, length=262_144, start_ns=0, end_ns=1_000_000),
            write(1, length=100, start_ns=2_000_000, end_ns=3_000_000),
            read(2, length=0, start_ns=4_000_000, end_ns=4_000_000),
            Op("close", 0, start_ns=5_000_000, end_ns=5_000_001, origin="reconstructed"),
        ],
        spans=[Span("step", 0, 6_000_000, step=0), Span("compute", 500_000, 2_500_000)],
    )


def text_of(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    assert ESCAPE not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    return text


def rows(sections: list[Section]) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for section in sections for row in section.rows}


def test_a_summary_fits_a_pipe(
    capture: Capture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    print_sections(summary_sections(summarise(capture, by="file")))
    text = text_of(capsys)
    assert "[red]file[/red]" in text, "paths are no markup"
    assert "\\x1b[2J" in text
    assert "/odd\\xff" in text


def test_the_rows_of_a_summary(capture: Capture) -> None:
    found = rows(summary_sections(summarise(capture)))
    assert found["reads"] == ("2, 256 KiB in all",)
    assert found["writes"] == ("1, 100 B in all",)
    assert found["besides, from counters"] == ("1 operation, 0 B",)
    assert found["transfer size"] == ("0 B", "100 B", "85.4 KiB", "256 KiB")
    assert found["steps"] == ("1, mean 6.00 ms",)
    assert found["I/O time inside compute"] == ("50.00 %",)
    assert found["POSIX"] == ("2", "1", "256 KiB", "the traced operations")


def test_an_empty_capture_is_printed_with_dashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(summary_sections(summarise(build_capture(tmp_path))))
    assert "nan" not in text_of(capsys).lower()


def test_many_groups_are_cut_with_the_largest_kept(tmp_path: Path) -> None:
    ops = [read(file, length=1, start_ns=file, end_ns=2 * file) for file in range(MAX_GROUPS + 9)]
    found = summarise(build_capture(tmp_path, files=[f"/{file}" for file in range(len(ops))], ops=ops), by="file")
    section = next(section for section in summary_sections(found) if section.title == "By file")
    assert len(section.rows) == MAX_GROUPS
    assert section.rows[0][0] == f"/{MAX_GROUPS + 8}"
    assert section.notes == ("and 9 more with less I/O time: --json and --csv have all",)


def test_the_rows_of_a_comparison(capture: Capture, tmp_path: Path) -> None:
    other = build_capture(tmp_path, files=["/x"], ops=[read(0, length=100, result=-5, due_ns=0)], name="other")
    sections = comparison_sections(compare(capture, other))
    found = rows(sections)
    assert found["bytes moved"] == ("256 KiB", "0 B", "+100.0 %")
    assert found["operations"] == ("4", "1", "DIFFERENT")
    assert found["failed operations"] == ("", "1", "")
    assert found["operation begun after it was due"] == ("0 ns",) * 4
    assert sections[0].rows[0][0].startswith("FAILED: the replay did not do the same work")


JOB: Mapping[str, Any] = {
    **RUN,
    "operations": 1234567,
    "elapsed_s": 1.5,
    "recorded_s": 1.25,
    "lag_us": {"p50": 1.0, "p90": 2.0, "p99": 30.0, "max": 4000.0},
    "jitter_us": None,
    "latency_us": {"p50": 10.0, "p90": 20.0, "p99": 300.0, "max": 40000.0},
    "latency_by_operation_us": {},
    "response_us": {"p50": 11.0, "p90": 22.0, "p99": 330.0, "max": 44000.0},
    "bytes": {"read": 4096, "written": 0},
    "cache": {"policy": "cold", "resident_before_pct": None},
}


def sections_of(**changes: Any) -> list[Section]:
    """What `run` prints of JOB with changes."""
    return run_sections(run_result({**JOB, **changes}))


def us(p99: float) -> dict[str, float]:
    """Percentiles of a time with this p99."""
    return {"p50": p99 / 4, "p90": p99 / 2, "p99": p99, "max": 2 * p99}


def test_a_stopped_run_says_so_in_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(sections_of(stopped=True))
    text = text_of(capsys)
    assert text.startswith("STOPPED before the end")
    assert "Warnings\nthe replay was stopped before its end\n" in text
    print_sections(repeat_sections(Repeats(runs=(run_result({**JOB, "stopped": True}),))))
    assert text_of(capsys).startswith(
        "STOPPED in run 1: its figures end there\nReplayed 1,234,567 operations in 1.500 s"
    )


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({}, "Replayed 1,234,567 operations in 1.500 s (recorded 1.250 s), none failed; lag p99 30.0 us, on time"),
        ({"lag_us": us(5000.0)}, "none failed; lag p99 5.00 ms, LATE (limit 1.00 ms)"),
        (
            {"lag_us": us(5000.0), "jitter_us": us(600.0)},
            "lag p99 5.00 ms, on time for this machine (limit 6.00 ms)",
        ),
        (
            {
                "lag_us": us(5000.0),
                "jitter_us": us(600.0),
                "jitter_before_us": us(20.0),
                "processors_pct": 95.0,
            },
            "LATE (limit 1.00 ms): before the run this machine woke an idle thread within 20.0 us, so the rest is the "
            "replay's own share (it took 95.00 % of the processors)",
        ),
        ({"failed": 3, "errors": {"ENOENT": 3}}, "FAILED: replayed 1,234,567 operations"),
        ({"failed": 3, "errors": {"ENOENT": 3}}, "; 3 operations failed (ENOENT: 3)."),
        ({"close_errors": {"EIO": 1}}, "1 file failed to close (EIO: 1)."),
        ({"lag_us": None}, "(recorded 1.250 s), none failed."),
    ],
)
def test_the_first_line_of_a_run_says_what_happened_and_whether_it_is_good(
    changes: dict[str, Any], headline: str
) -> None:
    assert headline in sections_of(**changes)[0].rows[0][0]


def test_a_run_is_printed_with_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(sections_of())
    text = text_of(capsys)
    assert "1,234,567" in text
    found = rows(sections_of())
    assert found["lag (begin - due)"] == ("1.00 us", "2.00 us", "30.0 us", "4.00 ms")
    assert found["page cache"] == ("cold; - of the data in it before",)
    assert found["elapsed"] == ("1.500 s (recorded 1.250 s)",)
    faster = rows(sections_of(speed=5.0))
    two = {"read": JOB["latency_us"], "write": JOB["response_us"]}
    by_operation = rows(sections_of(latency_by_operation_us=two))
    assert (by_operation["read"], by_operation["write"][0]) == (("10.0 us", "20.0 us", "300 us", "40.0 ms"), "11.0 us")
    one = sections_of(latency_by_operation_us={"read": JOB["latency_us"]})
    assert [section.title for section in one] == ["", "Run", "Times of an operation"], "one operation says it all"
    assert faster["elapsed"] == ("1.500 s (recorded 1.250 s, 250 ms at this speed)",)
    assert "this machine's jitter" not in found


def test_a_merge_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    clocks = [
        clock(rank, method="nesting", offset_ns=-2_000_000 - rank, interval_ns=(0, 1500))
        for rank in range(MAX_GROUPS + 1)
    ]
    warnings = ("only half of the bytes were traced",)
    print_sections(merge_sections(merged(ranks=1, coverage=(0.5, None), clocks=clocks, warnings=warnings)))
    text = text_of(capsys)
    for part in ("nesting", "-2.00 ms", "1.50 us", "50.00 %", "and 1 more clocks", "only half of the bytes"):
        assert part in text


def test_sections_are_set_apart(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections([Section(title="One", rows=(("a", "b"),)), Section(title="Two", rows=(("c",),), notes=("d",))])
    assert [line.rstrip() for line in text_of(capsys).splitlines()] == ["One", "a  b", "", "Two", "c", "d"]


WIDE = Section(
    title="Files",
    columns=(Column(head="file", kind=Kind.PATH), "bytes read", "I/O time, sum of all", Column(kind=Kind.BAR)),
    rows=(
        ("/scratch/imagenet/data/part-0004.tfrecord", "1.25 GiB", "12.345 s", "████████████"),
        ("/b", "3 B", "1 ns", "▌"),
    ),
)


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120])
def test_a_table_is_as_wide_as_it_may_be_and_breaks_no_number(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_sections([WIDE])
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= width
    (row,) = (line for line in lines if "part-0004" in line)
    assert "1.25 GiB" in row
    assert "12.345 s" in row
    assert ("/scratch/imagenet/data/part-0004.tfrecord" in row) == (width >= 80)
    assert ("…" in row) == (width < 80), "only where it has to be"
    assert ("█" in row) == (width >= 80), "a bar goes before a name is shortened"


def test_numbers_alone_may_make_a_line_too_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    numbers = tuple(f"{number}.345 GiB" for number in range(12_340, 12_346))
    print_sections([Section(title="Many", columns=("", *"abcdef"), rows=(("x", *numbers),))])
    last = capsys.readouterr().out.splitlines()[-1]
    assert all(number in last for number in numbers)


def test_a_path_within_a_sentence_stays_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = "/scratch/" + "deep/" * 20 + "a-b-c.bin"
    print_sections([Section(title="Warnings", rows=((f"the file {path} is damaged",),), prose=True, notes=(path,))])
    assert [line for line in capsys.readouterr().out.splitlines() if path in line] == [path, path]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_severities_and_verdicts_have_colours_on_a_terminal(
    no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stdout", Terminal())
    print_sections([Section(title="warning: slow", rows=(("timing", "fail"), ("path", "high/way")), prose=True)])
    assert isinstance(sys.stdout, Terminal)
    printed = sys.stdout.getvalue()
    assert ("\x1b[1;33mwarning: slow" in printed) == coloured
    assert ("\x1b[1;31mfail" in printed) == coloured
    assert "\x1b[1;31mhigh/way" not in printed


@pytest.mark.parametrize(
    ("warning", "shown"),
    [
        ("4 mkdirs left out: a capture has no such operation", "4 mkdirs left out"),
        ("rank 0: 74 steps are inferred: their starts from the reads", "rank 0: 74 steps are inferred"),
        ("/a/b.json: 3 events left out: not valid JSON", "/a/b.json: 3 events left out"),
        ("rank 0: late", "rank 0: late"),
    ],
)
def test_a_warning_in_brief_is_its_fact(warning: str, shown: str) -> None:
    brief = in_brief([prose("", ["The answer."]), prose(WARNINGS, [warning], brief=True)])
    assert [row[0] for section in brief for row in section.rows] == [
        "The answer.",
        f"warning: {shown}",
        "--details shows the rest.",
    ]
