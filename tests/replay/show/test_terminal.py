"""How sections become lines: as wide as the terminal, no number broken, colours on a terminal alone."""

from __future__ import annotations

import io
import sys

import pytest

from dxt_replay.replay.show.section import WARNINGS, Column, Kind, Section, bar, in_brief, prose
from dxt_replay.replay.show.terminal import print_sections


def test_sections_are_set_apart(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections([Section(title="One", rows=(("a", "b"),)), Section(title="Two", rows=(("c",),), notes=("d",))])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["One", "a  b", "", "Two", "c", "d"]


@pytest.mark.parametrize(
    ("share", "width", "expected"),
    [(0, 4, ""), (1, 4, "████"), (0.5, 4, "██"), (0.6, 4, "██▌"), (1e-9, 4, "▌"), (7, 3, "███")],
)
def test_bars(share: float, width: int, expected: str) -> None:
    assert bar(share, width) == expected


def test_an_output_without_unicode_has_plain_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    print_sections([WIDE])
    out.flush()
    assert b"############" in out.buffer.getvalue()  # type: ignore[attr-defined]


def test_text_is_no_markup_and_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections([Section(title="[red]a[/red]", rows=(("/evil\x1b[2J", "/odd\udcff"),), prose=True)])
    assert capsys.readouterr().out == "[red]a[/red]\n/evil\\x1b[2J  /odd\\udcff\n"


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
